"""What a thread block of an emitted kernel takes of its core, and how many clusters run at once."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.devices import Clusters, Device

WARPS = 8
"""Warps of a block that compute."""
THREADS = 32 * WARPS + 32
"""Threads of a block: eight warps compute, and a ninth starts the copies that they wait for."""
FRAGMENT, FRAGMENT_BYTES = 16, 512
"""Rows and values of a row in a block of a matrix for tensor cores, and its bytes."""
_VALUE_BYTES = 4


def block_memory(device: Device, resident: int = 1) -> int:
    """Bytes of shared memory a block may have where ``resident`` blocks share a core."""
    clusters = _clusters(device)
    own = clusters.core_memory_bytes // resident - clusters.block_reserved_bytes
    return min(own, device.data_bytes or own)


def tile_query_bytes(queries: int, key_lanes: int, *, twice: bool) -> int:
    """Queries as attention by tiles has them, ``twice`` where each is two values."""
    return 2 * (1 + twice) * _up(queries, 16) * _up(key_lanes, 32)


def tile_work_bytes(queries: int, key_lanes: int, tokens: int, *, twice: bool = False) -> int:
    """What attention by tiles of ``tokens`` keeps besides queries: scores, of several parts of the
    lanes where there are fewer units of eight tokens than warps, weights, ``twice`` where each is
    two values, and factors."""
    padded = _up(queries, 16)
    units = tokens // (16 if tokens % (16 * WARPS) == 0 else 8)
    parts = min(max(WARPS // units, 1), _up(key_lanes, 32) // 32)
    scores = padded * _VALUE_BYTES * (parts * (tokens + 8) + 1)
    return scores + 2 * (1 + twice) * padded * tokens


def coresident(device: Device, cluster: int, resident: int = 1) -> int:
    """Clusters that run at once: each lies within one domain (GPC) of the device.

    Blocks of one cluster may share a core. What a chip really takes is for its driver to say
    (cuOccupancyMaxActiveClusters): which multiprocessors are switched off differs between chips.
    """
    return sum(cores * resident // cluster for cores in _clusters(device).domains)


def waves(device: Device, clusters: int, cluster: int, resident: int) -> Sequence[int]:
    """Clusters of each wave until ``clusters`` of them have run; empty if none fits."""
    at_once = coresident(device, cluster, resident)
    if not at_once:
        return ()
    full, rest = divmod(clusters, at_once)
    return [at_once] * full + ([rest] if rest else [])


def _clusters(device: Device) -> Clusters:
    if device.clusters is None:
        raise ValueError(f"device {device.name} has no clusters")
    return device.clusters


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit

"""What the device does at best: reading, clusters at once, and the time of a meeting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from programs import fill_noise
from timing import Task, Timed, in_turn

from meshc.backends.cuda.driver.device_memory import Buffer
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel
from meshc.backends.cuda.executor import Grid
from meshc.support.diagnostics import MeshcError

# Stages and KiB of a tile of the read_* kernels: 32 to 192 KiB in flight.
RINGS = (
    *((stages, 16) for stages in (2, 4, 6, 8, 10, 12)),
    *((stages, 32) for stages in (2, 3, 4, 5, 6)),
)
BARRIER_BYTES = 512
SIZES = range(1, 17)
MEETING_SIZES = (2, 4, 8, 16)
ROUNDS = 1000


@dataclass(frozen=True)
class Read:
    """Bytes per second with ``in_flight`` bytes of copies per multiprocessor, in tiles of
    ``tile_kib``; ``runs`` says that blocks read runs of tiles, as emitted kernels do."""

    in_flight: int
    tile_kib: int
    runs: bool
    timed: Timed


def reads(device: Device, kernels: dict[str, Kernel], read_bytes: int, repeats: int) -> list[Read]:
    """The sweep of ring depths over a buffer of ``read_bytes``, a block per multiprocessor. It
    holds noise: equal bytes may be moved in fewer transfers.

    Raises MeshcError.
    """
    source = device.allocate(read_bytes)
    fill_noise(device, kernels, source, "f16", 1.0, 0)
    blocks = device.facts.multiprocessors
    sums = device.allocate(4 * blocks)
    tasks, kinds = [], []
    for stages, kib in RINGS:
        kernel, tile = kernels[f"read_{stages}x{kib}"], kib * 1024
        grid = Grid(blocks, 64, 1, BARRIER_BYTES + stages * tile)
        for runs in (0, 1):
            arguments = [source, sums, np.int32(read_bytes // tile), np.int32(runs)]
            launch = partial(kernel.launch, grid, arguments, device.stream)
            tasks.append(Task(kernel.name, launch, read_bytes // tile * tile))
            kinds.append((stages * tile, kib, bool(runs)))
    timed = in_turn(device, tasks, repeats)
    source.free()
    sums.free()
    return [Read(*kind, one) for kind, one in zip(kinds, timed, strict=True)]


def read_ceiling(found: list[Read]) -> float:
    """Bytes per second of the best of a sweep."""
    return max(one.timed.bandwidth for one in found)


def active_clusters(
    device: Device, kernels: dict[str, Kernel]
) -> list[tuple[int, int | None, int | None]]:
    """Cluster size with the clusters that are on the device at once, of blocks with all of a
    multiprocessor's shared memory and with half of it; None where the driver refuses."""
    kernel = kernels["cluster_barrier"]
    found = []
    for size in SIZES:
        whole, half = (
            _active(kernel, Grid(size, 288, size, block_bytes(device, resident)))
            for resident in (1, 2)
        )
        found.append((size, whole, half))
    return found


def block_bytes(device: Device, resident: int) -> int:
    """Shared memory that each of ``resident`` blocks of a multiprocessor may have."""
    facts = device.facts
    return facts.core_bytes // resident // 128 * 128 - facts.reserved_bytes


def _active(kernel: Kernel, grid: Grid) -> int | None:
    try:
        return kernel.active_clusters(grid)
    except MeshcError:
        return None


@dataclass(frozen=True)
class Spread:
    """Where ``blocks`` blocks in clusters of ``cluster`` ran, with all shared memory of a
    multiprocessor each: on ``cores`` of these, ``most`` on one; the multiprocessors of each
    cluster."""

    cluster: int
    blocks: int
    cores: int
    most: int
    clusters: list[list[int]]


def spreads(device: Device, kernels: dict[str, Kernel]) -> list[Spread]:
    """As many clusters as are on the device at once, of each size that the driver allows.

    Raises MeshcError."""
    kernel, found = kernels["places"], []
    for size in (1, *MEETING_SIZES):
        active = _active(kernel, Grid(size, 288, size, block_bytes(device, 1)))
        if not active:
            continue
        blocks = size * active
        at = device.allocate(4 * blocks)
        grid = Grid(blocks, 288, size, block_bytes(device, 1))
        kernel.launch(grid, [at, np.int32(ROUNDS)], device.stream)
        places = at.read(np.uint32, blocks)
        at.free()
        counts = np.unique(places, return_counts=True)[1]
        clusters = places.reshape(active, size).tolist()
        found.append(Spread(size, blocks, len(counts), int(counts.max()), clusters))
    return found


@dataclass(frozen=True)
class Latency:
    """Seconds of one ``what`` among ``blocks`` blocks."""

    what: str
    blocks: int
    seconds: float


def latencies(device: Device, kernels: dict[str, Kernel], repeats: int) -> list[Latency]:
    """Meetings of one cluster by its size, and of a whole grid. Raises MeshcError.

    One launch has ``ROUNDS`` of them, another twice as many; the difference has no cost of starts.
    """
    blocks = device.facts.multiprocessors
    met = device.allocate(4 * max(blocks, max(MEETING_SIZES)))
    counter = device.allocate(4)
    found = []
    for what, kernel, grid in _meetings(kernels, blocks):
        tasks = []
        for rounds in (ROUNDS, 2 * ROUNDS):
            arguments = [met, np.int32(rounds), *([counter] if grid.whole_grid else [])]
            tasks.append(Task(what, partial(_meet, device, kernel, grid, arguments)))
        short, long = in_turn(device, tasks, repeats)
        found.append(Latency(what, grid.blocks, (long.median - short.median) / ROUNDS))
    met.free()
    counter.free()
    return found


def _meetings(kernels: dict[str, Kernel], blocks: int) -> Iterator[tuple[str, Kernel, Grid]]:
    for size in MEETING_SIZES:
        yield "cluster barrier", kernels["cluster_barrier"], Grid(size, 288, size, 0)
    for size in MEETING_SIZES:
        yield "load from a peer", kernels["peer_load"], Grid(size, 32, size, 128)
    for size in MEETING_SIZES:
        grid = Grid(size, 256, size, 16 + 3 * 4 * 132)
        yield "ClusterReduce of 130 floats", kernels[f"reduce_{size}"], grid
    yield "grid barrier", kernels["grid_barrier"], Grid(blocks, 288, 1, 0, True)


def _meet(device: Device, kernel: Kernel, grid: Grid, arguments: Sequence[object]) -> None:
    if grid.whole_grid:
        counter = arguments[-1]
        assert isinstance(counter, Buffer)
        counter.fill()
    kernel.launch(grid, arguments, device.stream)

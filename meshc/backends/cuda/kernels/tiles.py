"""Shared memory of kernels with a ring of tiles, from the plan that chose them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshc.analysis.cuda.blocks import (
    FRAGMENT,
    FRAGMENT_BYTES,
    LEAST_STAGES,
    Part,
    SharedMemory,
)
from meshc.backends.cuda.kernels.arena import Arena
from meshc.devices import Device

PAGES = (1, 16, 64)
"""Tokens of a page of a cache."""
NOTES = {
    "COLUMNS": "inputs",
    "OUT_COLUMNS": "inputs of the output projection",
    "OWN_SUMS": "own sums of the row groups of two rounds",
    "ALL_SUMS": "sums that this block finishes",
    "PARTS": "sums of the warps",
    "OWN": "own rows",
    "ALL": "rows of all blocks",
    "PROJECTED": "queries, keys, values",
    "JOINED": "attention sums of the warps",
    "ATTENDED_AT": "attention sums of this block",
    "TOTAL": "of the cluster",
    "OWN_SCORES": "over this block's lanes",
    "SCORES": "over all lanes, then weights",
    "WEIGHTS": "sums of weights",
    "OUTPUTS": "of this block's lanes",
    "PLAIN": "queries without rotary lanes, of own heads",
    "FRESH": "new tokens as the cache holds them",
    "OWN_ABSORBED_AT": "own rows of absorbed queries",
    "FACTORS": "of the sums before a tile",
    "OWN_QUERIES_AT": "own rows of queries",
    "QUERY_LATENTS": "of all blocks, then as columns",
    "STATISTICS": "highest scores and weights",
    "ASKED": "queries as fragments",
    "SHARES": "of the blocks in the cluster's sums",
    "OWN_VALUES_AT": "own rows of values",
    "VALUES": "of all blocks",
    "OWN_COLUMNS": "of the cluster's output",
}


@dataclass(frozen=True)
class FirstReads:
    """What a grid reads first: ``units``, blocks or clusters of them, share the ``groups`` row
    groups of a weight in runs, unit n from group ``groups * n / units`` on, and begin with
    ``bytes``."""

    units: int
    groups: int
    group_bytes: int
    bytes: int


def first_reads(
    units: int, cluster: int, groups: int, width: int, block_bytes: int
) -> FirstReads | None:
    """What ``units`` of ``cluster`` blocks each read first of a matrix with rows of ``width``
    values: ``block_bytes`` by each block. None where some units have no row group."""
    if groups < units:
        return None
    group_bytes = -(-width // FRAGMENT) * FRAGMENT_BYTES
    count = min(groups // units * group_bytes, cluster * block_bytes)
    return FirstReads(units, groups, group_bytes, count)


class DoesNotFit(Exception):
    """No kernel of this shape can be made; the message says why."""


def check_cluster(device: Device, blocks: int) -> None:
    """Raises DoesNotFit for more blocks than a cluster of ``device`` can have."""
    most = max(device.clusters.sizes) if device.clusters is not None else 1
    if blocks > most:
        raise DoesNotFit(f"a cluster of {blocks} blocks is larger than {most}")


def page_misfits(page: int) -> list[str]:
    """What keeps a cache from having pages of this many tokens, in words."""
    known = ", ".join(map(str, PAGES))
    return [] if page in PAGES else [f"pages of {page} tokens are none of {known}"]


def arena(memory: SharedMemory) -> Arena:
    """The parts of a plan at their offsets, the ring first. Raises DoesNotFit."""
    if not memory.fits:
        raise DoesNotFit(
            f"{memory.fixed_bytes} bytes of vectors and sums leave no room for {LEAST_STAGES} "
            f"tiles of {memory.tile_bytes} bytes in {memory.limit} bytes of shared memory"
        )
    found = Arena()
    found.add("RING", memory.stages * memory.tile_bytes)
    _place(found, memory.parts)
    return found


def _place(found: Arena, parts: Iterable[Part], at: int | None = None) -> None:
    """``parts`` one after the other from ``at`` on, or behind all others, and what follows each."""
    for part in parts:
        made = found.add(part.name, part.bytes, NOTES.get(part.name, ""), at)
        _place(found, part.then, made.at)
        at = None if at is None else made.end


def literal(value: float) -> str:
    """``value`` as a constant of type float."""
    return f"{value!r}f"


def optional_factor(factor: float) -> str:
    """A multiplier as a template takes it: its literal, or nothing where it changes nothing."""
    return "" if factor == 1.0 else literal(factor)

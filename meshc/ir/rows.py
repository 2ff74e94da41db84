"""What a module knows of its tokens: the dim of their rows, and how attention meets the cache.

The frontend records both, a graph that is read from text without them gets them once
(:mod:`meshc.ir.read_rows`), and every level prints them in its header. Weights whose lanes the
packing reorders stand beside them:

    rows dim = L, capacity = S
    attention query = H, key = G, lane = D, keys = S
    paired wq = D, wk = [D, 16]

All entries are names of dims, so that their extents stand in one place, the section ``dims``; of
lanes that are paired in runs, the number of lanes of a run stands beside the dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshc.ir.types import TensorType


@dataclass(frozen=True)
class Rows:
    """Rows of tokens: ``dim`` counts those of a step, and at most as many as the dim ``capacity``
    are ever known, which is the one of the caches; without caches it is ``dim`` itself."""

    dim: str
    capacity: str


@dataclass(frozen=True)
class Attention:
    """Dims of products of queries with cached keys whose softmax runs over the keys.

    ``query`` heads share ``key`` heads in equal groups (both are one dim where each has its own;
    ``key`` is empty where keys have no heads and all queries share them), ``lane`` is what the
    product contracts, and ``keys`` counts the cached keys.
    """

    query: str
    key: str
    lane: str
    keys: str

    @property
    def headless(self) -> bool:
        """Whether all query heads share keys that have no heads."""
        return not self.key

    def dims(self) -> tuple[str, ...]:
        """The names that are given."""
        return tuple(d for d in (self.query, self.key, self.lane, self.keys) if d)


@dataclass(frozen=True)
class TokenPart:
    """Tokens of a batch: as many as the extent of ``dim``, from the token ``first`` on."""

    dim: str
    first: int


def token_part_mistakes(
    parts: tuple[TokenPart, ...], batch: str, dims: Mapping[str, int]
) -> Iterator[str]:
    """What is wrong with ``parts`` of the tokens that the dim ``batch`` counts, a sentence each:
    they are all tokens, each once, in order."""
    end = 0
    for part in parts:
        if part.dim not in dims:
            yield f"tokens: {part.dim} is no dim of this module"
            return
        if part.first != end:
            yield f"tokens: {part.dim} begins with token {part.first}, not with {end}"
        end = part.first + dims[part.dim]
    if parts and end != dims.get(batch, 1):
        yield f"tokens: parts hold {end} tokens, but there are {dims.get(batch, 1)}"


def rows_mistakes(rows: Rows | None, dims: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with ``rows`` of a module that declares ``dims``, a sentence each."""
    for name in () if rows is None else dict.fromkeys((rows.dim, rows.capacity)):
        if name not in dims:
            yield f"rows: {name} is no dim of this module"


def attention_mistakes(
    attention: tuple[Attention, ...], rows: Rows | None, dims: Mapping[str, int]
) -> Iterator[str]:
    """What is wrong with ``attention`` beside ``rows``, a sentence each."""
    for one in attention:
        unknown = [name for name in dict.fromkeys(one.dims()) if name not in dims]
        for name in unknown:
            yield f"attention: {name} is no dim of this module"
        if unknown:
            continue
        if one.key and dims[one.query] % max(dims[one.key], 1):
            yield (
                f"attention: the {dims[one.key]} heads of {one.key} do not divide the "
                f"{dims[one.query]} of {one.query}"
            )
        if rows is None:
            yield "attention: the header says no rows, whose capacity counts the keys"
        elif rows.capacity != one.keys:
            yield f"attention: its keys are {one.keys}, but the capacity of rows is {rows.capacity}"
    if len(set(attention)) < len(attention):
        yield "attention: the same one is recorded twice"


@dataclass(frozen=True)
class Paired:
    """Lanes of ``dim`` that are taken in the order 0, n/2, 1, n/2 + 1, .. of each run of n lanes;
    ``run`` is n, and 0 where all lanes are one run. Lanes behind one run, fewer than it has, are a
    run of their own."""

    dim: str
    run: int = 0

    def lanes(self, extent: int) -> int:
        """The lanes of a run, of a dim of ``extent``."""
        return self.run or extent

    def fits(self, extent: int) -> bool:
        """Whether ``extent`` lanes are runs of pairs."""
        run = self.lanes(extent)
        return extent % 2 == run % 2 == 0 < run <= extent and (not extent % run or extent < 2 * run)

    def element(self, lane: Any, extent: int) -> Any:
        """What is taken at ``lane``, a number, an expression or an array, of ``extent`` lanes."""
        run = self.lanes(extent)
        rest, half, odd = extent % run, run // 2, lane % 2
        if run == extent:
            return lane // 2 + odd * half
        first, within = lane // run, lane % run
        if not rest:
            return first * run + (within // 2 + within % 2 * half)
        # The lanes of the one run have the number 0, those behind it 1, and a half of their own.
        return lane // 2 + (odd + first) * half - (odd + first) // 2 * (half - rest // 2)


def paired_mistakes(
    paired: Mapping[str, Paired], weights: Mapping[str, TensorType], dims: Mapping[str, int]
) -> Iterator[str]:
    """What is wrong with ``paired`` of a module that takes ``weights``, a sentence each."""
    for name, pairs in paired.items():
        kind, dim, run = weights.get(name), pairs.dim, pairs.run
        if kind is None:
            yield f"paired: there is no weight '{name}'"
        elif dim not in kind.dims or dims.get(dim, 1) % 2:
            yield f"paired: {dim} is no dim of '{name}' with an even number of lanes"
        elif not pairs.fits(dims[dim]):
            yield f"paired: {dim} of '{name}' has no runs of {run} lanes"

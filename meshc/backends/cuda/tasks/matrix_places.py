"""Where matrices, caches and tables lie in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.backends.cuda.tasks.prompt_weights import Place
from meshc.backends.cuda.tasks.spelling import flattened, unflattened
from meshc.ir.affine import Expr
from meshc.ir.coded_rows import SCALES_TOGETHER, row_bytes_with_scale
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View, Whole


@dataclass(frozen=True)
class Matrix:
    """Weights as tasks stream them: ``groups`` of rows of ``blocks`` in each of ``lead``, at their
    ``place`` in memory, whose groups are ``every`` in all."""

    place: Place
    lead: tuple[int, ...]
    groups: int
    blocks: int
    every: int

    def block(self, lead: Sequence[Expr], group: Expr, first: Expr) -> Expr:
        """Where the block ``first`` of a row group is."""
        own = self.place.own
        if own:
            group = group // own * self.place.every + group % own + self.place.first
        return (flattened(lead, self.lead) * self.every + group) * self.blocks + first


@dataclass(frozen=True)
class Cache:
    """A cache with rows of ``lanes``, whole eights, for each token of ``heads`` heads: ``name`` of
    the memory, of which a layer has ``layer`` values, 0 where it is not of layers. Its own lanes
    are those from ``first`` on. Lanes of one that is ``coded`` are floats of eight bits, and rows
    have a scale each (mc_coded_rows.cuh), perhaps ``behind`` them."""

    name: str
    heads: int
    lanes: int
    layer: int
    first: int
    coded: bool = False
    behind: bool = False

    def tile_bytes(self, tokens: int) -> int:
        """Bytes of the rows of ``tokens`` tokens, of coded ones whole sixteens, in a tile."""
        if not self.coded:
            return 2 * tokens * self.lanes
        if self.behind:
            return tokens * row_bytes_with_scale(self.lanes)
        return -(-tokens // SCALES_TOGETHER) * SCALES_TOGETHER * (self.lanes + 1)

    def copied(self, count: str) -> str:
        """Bytes that are copied of so many tokens, of coded rows, in C."""
        return f"mc::CodedRows<{self.lanes}>::bytes({count})"

    def rows(self, page: int) -> str:
        """What the library calls the order of its rows in pages of ``page`` tokens."""
        return f"mc::{'Coded' if self.coded else ''}CacheRows<{self.heads}, {page}, {self.lanes}>"


@dataclass(frozen=True)
class Table:
    """Rows of ``width`` of ``words`` words, or positions, that the input ``asked`` for names."""

    name: str
    words: int
    width: int
    asked: str

    def row(self, request: str, lane: str, there: str) -> str:
        """An element of the row of a request, 0 where it has none."""
        word = f"{self.asked}[{request}]"
        at = f"mc::in_fragments<{self.width}>({word}, {lane})"
        return (
            f"({word} >= 0 && {word} < {self.words}{there} ? mc::widen({self.name}[{at}]) : 0.0f)"
        )


def base(view: View, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index in the buffer of the element ``index`` of ``view``."""
    at = list(index)
    if view.order:
        turned = list(at)
        for place, dim in enumerate(view.order):
            turned[dim] = at[place]
        at = turned
    if view.reshape:
        whole = flattened(at, [extent.constant for extent in view.reshape])
        kept = View(view.buffer, view.indices).shape()
        at = list(unflattened(whole, [extent.constant for extent in kept]))
    found, left = [], iter(at)
    for position in range(len(view.buffer_type.shape)):
        chosen = view.indices[position] if position < len(view.indices) else Whole()
        if isinstance(chosen, Point):
            found.append(chosen.at)
        elif isinstance(chosen, Range):
            found.append(chosen.start + next(left) * chosen.step)
        else:
            found.append(next(left))
    return tuple(found)


def positions_of(tables: Sequence[Value]) -> str:
    """The dim of positions of the second of two tables, whose first has words."""
    if len(tables) < 2:
        return ""
    first, second = (t.type for t in tables)
    assert isinstance(first, TensorType) and isinstance(second, TensorType)
    return next(d for d in second.dims if d not in first.dims)

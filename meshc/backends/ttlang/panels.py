"""How a value lies in the memory of a chip: every node has a block of whole tiles of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshc.backends.ttlang.node_elements import Grid
from meshc.backends.ttlang.operation import TILE, Window, place
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class Panel:
    """A value as blocks of ``height`` x (``groups`` * ``width``) tiles, one for each node.

    ``rows`` are the dims that lie over rows of tiles, ``columns`` those over columns. The last of
    ``columns`` is ``width`` tiles wide, and the others number ``groups`` of such: the lanes of each
    head are whole tiles. Of *numbers*, one for each row and group, the last column of each tile
    but the first means nothing; of a *line*, a value without rows, the first row of a tile is the
    only one that means anything.
    """

    kind: TensorType
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    height: int
    groups: int
    width: int
    numbers: bool = False

    @property
    def line(self) -> bool:
        """Whether it has no rows."""
        return not self.rows

    @property
    def wide(self) -> int:
        """Tiles of a row of its block."""
        return self.groups * self.width

    def window(
        self,
        tensor: str,
        row: tuple[tuple[str, int], ...],
        column: tuple[tuple[str, int], ...],
        size: tuple[int, int],
        first: tuple[int, int] = (0, 0),
    ) -> Window:
        """``size`` tiles of a node's own block, from those on that the sums ``row`` and ``column``
        of names times numbers, and ``first``, say."""
        return Window(
            tensor,
            place(("row", self.height), *row, first=first[0]),
            place(("column", self.wide), *column, first=first[1]),
            *size,
        )


def numbers_of(panel: Panel, kind: TensorType) -> Panel:
    """What a reduction over the last column dim of ``panel`` leaves, a value of ``kind``."""
    left = panel.columns[:-1]
    return replace(panel, kind=kind, columns=left, width=1, numbers=True)


def alike(panel: Panel, kind: TensorType) -> Panel:
    """``panel`` for another value that lies as it does."""
    return replace(panel, kind=kind)


def matrix(
    grid: Grid, value: Value, rows: Sequence[str], columns: Sequence[str], kind: TensorType
) -> Panel:
    """The panel of ``value``, which lies as ``kind`` and has the dims ``rows`` and ``columns``.
    Raises ``ttlang-tiles`` where its part of a node is no whole tiles."""
    if not columns:
        fail("ttlang-tiles", f"{value} ({kind}) has no dim that lies over columns of tiles")
    lanes = [grid.local(kind, rows), grid.local(kind, columns[-1:])]
    groups = grid.local(kind, columns[:-1])
    for count, dims in zip(lanes, (rows, columns[-1:]), strict=True):
        if dims and count % TILE:
            fail(
                "ttlang-tiles",
                f"a node has {count} {', '.join(dims)} of {value} ({kind}), and a tile has {TILE}",
                help=f"use a mesh on which every node has a multiple of {TILE} rows and lanes",
            )
    for node in grid.nodes:
        grid.elements(kind, (*rows, *columns), node)
    height = lanes[0] // TILE or 1
    return Panel(kind, tuple(rows), tuple(columns), height, groups, lanes[1] // TILE)

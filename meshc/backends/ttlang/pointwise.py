"""Operations whose nodes work on their own block, tile row by tile row and group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshc.backends.ttlang.node_elements import Grid
from meshc.backends.ttlang.operation import (
    Body,
    Buffer,
    Compute,
    Operation,
    Window,
    block_of,
    blocks_of,
    fetched,
    repeated,
    stored,
    through,
)
from meshc.backends.ttlang.panels import Panel

RESULT = "out"
LETTERS = "abcdefgh"
_ONE = Window("", "0", "0", 1, 1)


@dataclass(frozen=True)
class Operand:
    """Tiles that are read beside a row of tiles of a group: ``window``, of no tensor yet, and over
    which dims of a block (-1 columns, -2 rows) their first column or row is repeated."""

    window: Window
    repeats: tuple[int, ...] = ()


def own(panel: Panel, grouped: bool = True) -> Operand:
    """The same row of a value that lies over the same rows; its group, or the only one."""
    return Operand(_row(panel, grouped))


def spread_numbers(panel: Panel, grouped: bool) -> Operand:
    """The number of each row, beside its lanes."""
    return Operand(_row(panel, grouped), (-1,))


def spread_line(panel: Panel, grouped: bool) -> Operand:
    """The only row of a value without rows."""
    column = (("group", panel.width),) if grouped and panel.groups > 1 else ()
    return Operand(panel.window("", (), column, (1, panel.width)), (-2,))


def constant(width: int) -> Operand:
    """A number that fills a tile which all nodes read, beside ``width`` tiles."""
    return Operand(_ONE, (-1,) if width > 1 else ())


def square(width: int) -> Operand:
    """A matrix of ``width`` x ``width`` tiles that all nodes read."""
    return Operand(Window("", "0", "0", width, width))


def pointwise(grid: Grid, result: Panel, operands: Sequence[Operand], expression: str) -> Operation:
    """``expression`` names its operands ``{a}``, ``{b}``, .., and ``{w}`` the tiles of a row of the
    result."""
    names = LETTERS[: len(operands)]
    windows = [
        replace(operand.window, tensor=name) for name, operand in zip(names, operands, strict=True)
    ]
    out = replace(_row(result, True), tensor=RESULT)
    values = {
        name: _repeated(block_of(name), operand, out)
        for name, operand in zip(names, operands, strict=True)
    }

    def of_all(body: Body) -> Body:
        return repeated("line", result.height, repeated("group", result.groups, body))

    return Operation(
        grid.mesh.columns,
        grid.mesh.rows,
        (*names, RESULT),
        (),
        tuple(Buffer(blocks_of(w.tensor), w.tensor, w.rows, w.columns) for w in (*windows, out)),
        (
            of_all(tuple(statement for window in windows for statement in fetched(window))),
            of_all(stored(out)),
        ),
        of_all(
            (
                Compute(
                    tuple(map(through, names)),
                    (through(RESULT),),
                    (expression.format(**values, w=out.columns),),
                ),
            )
        ),
    )


def _row(panel: Panel, grouped: bool) -> Window:
    line = (("line", 1),) if panel.height > 1 else ()
    group = (("group", panel.width),) if grouped and panel.groups > 1 else ()
    return panel.window("", line, group, (1, panel.width))


def _repeated(block: str, operand: Operand, out: Window) -> str:
    if not operand.repeats:
        return block
    dims = ", ".join(map(str, operand.repeats))
    return f"ttl.block.broadcast({block}, dims=[{dims}], shape=({out.rows}, {out.columns}))"

"""Moves of blocks along lines of cores, each line turning its ring once.

In a move every core of a row, or of a column, hands what it holds to the next lower rank, round
after round; behind round t a core sees what the core t ranks above had at first, and keeps what
comes in the round that is its own. So a move is any choice of a source on the same line, it takes
a channel that products turn their operands on anyway, and two pieces of room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.ir.affine import Cond, Expr, IntLike
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Mesh
from meshc.ir.ops import tile
from meshc.ir.types import BufferType, TokenType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, Symbol, View
from meshc.passes.tile.phases.renaming import free

Coordinates = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class LineMove:
    """Along ``axis``, of which a core keeps what the core had that is ``above`` ranks higher,
    counted around the ring; an expression in the coordinates of the core that keeps it."""

    axis: str
    above: Expr

    def rounds(self, mesh: Mesh) -> Expr:
        """The number of rounds behind which a core keeps what it sees."""
        return self.above % mesh.size(self.axis)


def plans(mesh: Mesh) -> list[tuple[LineMove, ...]]:
    """Moves that may bring a block of each core where another phase wants it, the fewest first:
    none; a shear, which aligns operands for cyclic shifts or undoes that; a shear and a reflection,
    which also change rows for columns; and the transposition.

    What the two phases of a model differ by is one of them: ranks count modulo the length of a
    line, so rows and columns are equally many where a move depends on the other axis.
    """
    found: list[tuple[LineMove, ...]] = [()]
    down, across = mesh.plane
    if mesh.rows != mesh.columns or mesh.rows == 1:
        return found
    for one, other in ((down, across), (across, down)):
        mine, theirs = Expr.var(mesh.index(one)), Expr.var(mesh.index(other))
        away, back = LineMove(one, -theirs), LineMove(one, theirs)
        reflected = LineMove(other, mine - 2 * theirs)
        found += [(away,), (back,), (away, reflected), (away, reflected, back)]
    return sorted(found, key=len)


def sources(mesh: Mesh, moves: Sequence[LineMove], cores: Coordinates) -> Coordinates:
    """Positions of the cores whose blocks ``cores`` hold behind ``moves``."""
    functions = coordinate_functions(mesh)
    for move in reversed(moves):
        size = mesh.size(move.axis)
        env = coordinates(mesh, cores)
        rank = env[mesh.index(move.axis)] + move.above.evaluate(env, functions)
        place = functions[f"core_{move.axis}"](np.asarray(rank) % size)
        cores = {**cores, move.axis: np.asarray(place)}
    return cores


def coordinates(mesh: Mesh, cores: Coordinates) -> Mapping[str, IntLike]:
    """All coordinates of cores at these positions on the axes."""
    return {name: value.evaluate(cores) for name, value in coordinate_values(mesh).items()}


class Mover:
    """Writes the statements of moves into ``block``, over ``rings`` by axis. Names of values and
    loops are none of ``taken``."""

    def __init__(self, mesh: Mesh, rings: Mapping[str, str], taken: set[str]) -> None:
        self.mesh, self.rings, self.taken = mesh, rings, taken
        self.block = Block()

    def move(self, layers: int, pieces: Sequence[tuple[Value, Value, Sequence[LineMove]]]) -> None:
        """Move what buffers hold of each of ``layers``, or with 0 all of it. ``pieces`` are buffer,
        room for two pieces, which may be larger, and moves."""
        loop = tile.For(var=self._name("layer"), count=Expr.const(layers)) if layers else None
        index = () if loop is None else (Point(Expr.var(loop.var)),)
        ops = [
            op
            for buffer, room, moves in pieces
            for step in moves
            for op in self._line(View(buffer, index), room, step)
        ]
        if loop is None:
            self.block.ops += ops
            return
        loop.regions = [Block(ops=ops)]
        self.block.ops.append(loop)

    def _line(self, piece: View, room: Value, move: LineMove) -> list[Op]:
        """One move of one piece."""
        kind = piece.buffer.type
        assert isinstance(kind, BufferType)
        size = prod(kind.shape[len(piece.indices) :])
        flat = View(piece.buffer, piece.indices, (Expr.const(size),))
        step = Expr.var(self._name("step"))

        def slot(number: Expr) -> View:
            whole = Range(Expr.const(0), Expr.const(size))
            return View(room, (Point(number % 2), whole))

        channel = Symbol(self.rings[move.axis])
        sent = Value(self._name("sent"), TokenType())
        got = Value(self._name("got"), TokenType())
        body: list[Op] = [
            tile.Send([channel, slot(step)], [sent]),
            tile.Recv([channel, slot(step + 1)], [got]),
            tile.Wait([sent, got]),
            tile.Compute(
                [flat, slot(step + 1)],
                kernel="copy",
                when=Cond.eq(move.rounds(self.mesh), step + 1),
            ),
        ]
        rounds = Expr.const(self.mesh.size(move.axis) - 1)
        turn = tile.For(regions=[Block(ops=body)], var=str(step), count=rounds)
        return [tile.Compute([slot(Expr.const(0)), flat], kernel="copy"), turn]

    def _name(self, name: str) -> str:
        found = free(name, self.taken)
        self.taken.add(found)
        return found

"""How the contraction of a distributed product is cut: the LCM scheme (WaferLLM section 5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir.affine import Cond, Expr
from meshc.ir.mesh import Mesh


@dataclass(frozen=True)
class Chunks:
    """``count`` = lcm(rows, columns) chunks of ``lanes`` lanes each.

    A core holds ``per_column`` of the left operand, whose contracted dim lies over columns,
    and ``per_row`` of the right one, whose lies over rows. Each step of an algorithm uses up one
    of each.
    """

    mesh: Mesh
    count: int
    lanes: int

    @staticmethod
    def of(mesh: Mesh, left_lanes: int) -> Chunks:
        """The chunks when a core holds ``left_lanes`` lanes of the left operand."""
        count = lcm(mesh.rows, mesh.columns)
        return Chunks(mesh, count, ceil_div(left_lanes, count // mesh.columns))

    @property
    def row(self) -> Expr:
        """Which row of the mesh a core holds, by rank."""
        return Expr.var(self.mesh.index(self.mesh.down))

    @property
    def column(self) -> Expr:
        """Which column of the mesh a core holds, by rank."""
        return Expr.var(self.mesh.index(self.mesh.across))

    @property
    def per_row(self) -> int:
        """Chunks of the right operand on a core."""
        return self.count // self.mesh.rows

    @property
    def per_column(self) -> int:
        """Chunks of the left operand on a core."""
        return self.count // self.mesh.columns

    @property
    def ahead_left(self) -> Expr:
        """By how many chunks Cannon's alignment turns the left operand of a row."""
        return self.row * self.per_row

    @property
    def ahead_right(self) -> Expr:
        """By how many chunks it turns the right operand of a column."""
        return self.column * self.per_column

    def left(self, slot: Expr, aligned: bool) -> Expr:
        """Which chunk of the left operand a core holds in ``slot``."""
        own = self.column * self.per_column + slot
        return (own + self.ahead_left) % self.count if aligned else own

    def right(self, slot: Expr, aligned: bool) -> Expr:
        """Which chunk of the right operand a core holds in ``slot``."""
        own = self.row * self.per_row + slot
        return (own + self.ahead_right) % self.count if aligned else own

    def lets(self, chunk: Expr) -> list[tuple[str, Expr]]:
        """Helpers of a port whose buffer has a dim ``q`` of lanes inside the chunk: the chunk,
        the column whose left operand has it, the lane there."""
        k = Expr.var("k")
        return [
            ("k", chunk),
            ("home", Expr.call(f"core_{self.mesh.across}", k // self.per_column)),
            ("lane", (k % self.per_column) * self.lanes + Expr.var("q")),
        ]

    def within(self, lanes: int) -> Cond:
        """That ``lane`` is one of the ``lanes`` which a core holds of the left operand."""
        exact = lanes == self.per_column * self.lanes
        return Cond.true() if exact else Cond.lt(Expr.var("lane"), lanes)

    def parts(self) -> dict[str, Expr]:
        """Which column, and which part of the factors of columns, ``home`` is."""
        home, mesh = Expr.var("home"), self.mesh
        segment = mesh.size(mesh.inner)
        found = {mesh.across: Expr.call(f"ring_{mesh.across}", home)}
        if mesh.group:
            found[mesh.group] = home // segment
            found[mesh.inner] = Expr.call(f"ring_{mesh.inner}", home % segment)
        return found

"""Where the regions of a mesh lie in the layout's rectangle.

Regions are rectangles of one size that share edges, so the places of all of them count from the
first column and row that any has, in whole regions. What no region takes of the rectangle around
them is idle. A mesh of one region is the rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshc.analysis.traffic.handovers import handovers, origins_of
from meshc.backends.csl.spelling.expressions import Spelling
from meshc.backends.csl.spelling.guards import piecewise_function
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Cond, Expr, Piecewise
from meshc.ir.mesh import Mesh
from meshc.support.diagnostics import fail

_FIRST = ("top", "left")  # of rows, of columns


@dataclass(frozen=True)
class Regions:
    """``mesh`` in its rectangle, and how the layout spells the place of a core there."""

    mesh: Mesh

    @property
    def several(self) -> bool:
        """Whether the rectangle is divided."""
        return self.mesh.regions > 1

    @cached_property
    def origins(self) -> tuple[tuple[int, int], ...]:
        """First (column, row) of each region. Raises ``regions-apart`` where two regions in a row
        have no edge in common, ``csl-regions`` where two have the same place."""
        if not self.several:
            return ((0, 0),)
        handovers(self.mesh)
        places = origins_of(self.mesh)
        left, top = (min(place[axis] for place in places) for axis in (0, 1))
        found = tuple((column - left, row - top) for column, row in places)
        for region, place in enumerate(found):
            first = found.index(place)
            if first < region:
                fail("csl-regions", f"regions {first} and {region} are the same cores")
        return found

    @property
    def columns(self) -> int:
        """Columns of the rectangle."""
        return max(column for column, _ in self.origins) + self.mesh.columns

    @property
    def rows(self) -> int:
        """Rows of the rectangle."""
        return max(row for _, row in self.origins) + self.mesh.rows

    @property
    def idle(self) -> list[tuple[int, int]]:
        """First (column, row) of each place of the rectangle that no region has."""
        places = [
            (column, row)
            for row in range(0, self.rows, self.mesh.rows)
            for column in range(0, self.columns, self.mesh.columns)
        ]
        return [place for place in places if place not in self.origins]

    # --- what the layout says

    def at(self, axis: str, place: csl.Operand) -> csl.Expression:
        """``place`` on an ``axis`` of the plane, counted in a region, as a place of the rectangle;
        inside the loops of :meth:`over`."""
        if axis not in self._apart:
            return csl.as_expression(place)
        return _behind(csl.Name(_FIRST[axis == self.mesh.across]), place)

    def next_at(self, axis: str, place: csl.Expression) -> csl.Expression:
        """``place`` on ``axis``, counted in the next region, as a place of the rectangle."""
        if axis not in self._apart:
            return place
        return _behind(csl.call(self._first_of(axis), csl.Name(self.mesh.outer) + 1), place)

    def functions(self, spell: Spelling) -> list[csl.Statement]:
        """Functions of a region that give its first column and row."""
        found: list[csl.Statement] = []
        for axis, firsts in self._apart.items():
            region, last = Expr.var(self.mesh.outer), Expr.const(firsts[-1])
            pieces = [(Cond.eq(region, r), Expr.const(first)) for r, first in enumerate(firsts)]
            pieces[-1] = (Cond.true(), last)
            what = "column" if axis == self.mesh.across else "row"
            name, remark = self._first_of(axis), f"The first {what} of a region."
            found.append(piecewise_function(self.mesh, name, Piecewise.of(pieces), spell, remark))
        return found

    def over(self, axes: Sequence[str], inner: csl.Statements) -> list[csl.Statement]:
        """``inner`` for each place on ``axes`` of the plane, of each region."""
        found = over(self.mesh, axes, inner)
        if not self.several:
            return found
        outer = self.mesh.outer
        known = [
            csl.const(_FIRST[axis == self.mesh.across], csl.call(self._first_of(axis), outer))
            for axis in self._apart
        ]
        return [csl.loop(outer, self.mesh.regions, [*known, *found])]

    @cached_property
    def _apart(self) -> dict[str, list[int]]:
        """Axes of the plane on which regions lie apart, and where each begins there."""
        columns, rows = (list(firsts) for firsts in zip(*self.origins, strict=True))
        of = {self.mesh.across: columns, self.mesh.down: rows}
        return {axis: firsts for axis, firsts in of.items() if any(firsts)}

    def _first_of(self, axis: str) -> str:
        return "first_column" if axis == self.mesh.across else "first_row"


def over(mesh: Mesh, axes: Sequence[str], inner: csl.Statements) -> list[csl.Statement]:
    """``inner`` for each place on ``axes`` of ``mesh``."""
    found = [*inner]
    for axis in reversed(axes):
        found = [csl.loop(axis, mesh.size(axis), found)]
    return found


def _behind(first: csl.Expression, place: csl.Operand) -> csl.Expression:
    """``place`` counted from ``first``."""
    return first if csl.as_expression(place) == csl.as_expression(0) else first + place

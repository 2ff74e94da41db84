"""Cycles of scalar code: one per operation and load, two per branch, four per call.

These are the costs that ``docs/sim.md`` lists for scalar code, predictions that no published number
calibrates. They are counted in the tree that is emitted.
"""

from __future__ import annotations

from collections.abc import Collection

from meshc.analysis.csl.costs import LENGTH, OFFSET
from meshc.analysis.csl.windows import Window
from meshc.backends.csl.spelling.expressions import Spelling, condition, expression
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Cond, Expr

BRANCH = 2
BACK = 4  # to the beginning of a loop
CALLED = 4
STORE = 1
TAKEN = 3 + STORE  # an element of an array into a variable: two loads, an addition
EFFECT = 2  # an activation, or that a task is blocked or unblocked
COMPARED = 2 + BRANCH  # one case of a switch: load, comparison, branch
DIVISION = 20  # by what is no constant
REAL_DIVISION = 50
TO_INTEGER = 100
_HELPER = {"mod": CALLED + DIVISION + 4}
_HELPER["floor"] = CALLED + _HELPER["mod"] + DIVISION + 1


class Scalar:
    """Costs of expressions as ``spell`` writes them; ``local`` names need no load."""

    def __init__(self, spell: Spelling) -> None:
        self.spell = spell

    def value(self, value: Expr, local: Collection[str]) -> int:
        """Cycles of working a value out."""
        return self._cycles(expression(value, self.spell), local)

    def test(self, cond: Cond, local: Collection[str]) -> int:
        """Cycles of a branch on a condition that is decided at run time."""
        return self._cycles(condition(cond, self.spell), local) + BRANCH

    def address(self, window: Window, local: Collection[str]) -> int:
        """Cycles of addressing a window: of moving its descriptor and setting its length, nothing
        where it never moves and has one length."""
        moving = window.start - window.start.constant
        found = 0 if moving.is_const else OFFSET + self.value(moving, local)
        return found if window.constant else found + LENGTH

    def _cycles(self, what: csl.Expression, local: Collection[str]) -> int:
        """A load for each name, and for a coordinate function; the other calls are helpers'."""
        near = {self.spell(name) for name in local}
        found = 0
        for node in what.walk():
            if isinstance(node, csl.Name):
                found += node not in near
            elif isinstance(node, csl.Call):
                found += _HELPER.get(node.function, 1)
            else:
                found += isinstance(node, (csl.Infix, csl.Prefix))
        return found

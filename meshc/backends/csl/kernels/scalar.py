"""Cycles of scalar code: one per operation and load, two per branch, four per call.

These are the costs that ``docs/sim.md`` lists for scalar code, predictions that no published number
calibrates. They are counted in emitted text, so they follow what is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from meshc.backends.csl.kernels.costs import DESCRIPTOR
from meshc.backends.csl.spelling.expressions import Spelling, condition, expression
from meshc.backends.csl.spelling.windows import Window
from meshc.ir.affine import Cond, Expr

BRANCH = 2
CALL = 4
STORE = 1
EFFECT = 2  # an activation, or that a task is blocked or unblocked
OFFSET = 4 + DESCRIPTOR  # a descriptor moved at run time, its distance apart
LENGTH = 4 + DESCRIPTOR  # a descriptor whose length is set at run time
TASK = 6  # picking and starting a task
COMPARED = 2 + BRANCH  # one case of a switch: load, comparison, branch
_DIVISION = 20  # by what is no constant
_HELPER = {"mod": CALL + _DIVISION + 4}
_HELPER["floor"] = CALL + _HELPER["mod"] + _DIVISION + 1
_OPERATION = re.compile(r"[<>=!]=|[-+*/%<>]|\b(?:and|or)\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_WORDS = {"and", "or", "true", "false"}


class Scalar:
    """Costs of expressions as ``spell`` writes them; ``local`` names need no load."""

    def __init__(self, spell: Spelling) -> None:
        self.spell = spell

    def value(self, value: Expr, local: Collection[str]) -> int:
        """Of working a value out."""
        return self._counted(expression(value, self.spell), local)

    def test(self, cond: Cond, local: Collection[str]) -> int:
        """Of a branch on a condition that is decided at run time."""
        return self._counted(condition(cond, self.spell), local) + BRANCH

    def address(self, window: Window, local: Collection[str]) -> int:
        """Of the descriptor of a window: nothing for one that never moves and has one length."""
        moving = window.start - window.start.constant
        found = 0 if moving.is_const else OFFSET + self.value(moving, local)
        return found if window.constant else found + LENGTH

    def _counted(self, text: str, local: Collection[str]) -> int:
        known = {self.spell(name) for name in local} | _WORDS
        names = [name for name in _NAME.findall(text) if name not in known]
        loads = sum(name not in _HELPER for name in names)
        helpers = sum(_HELPER.get(name, 0) for name in names)
        return loads + helpers + len(_OPERATION.findall(text))

"""What a form of a graph op is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshc.ir.core import Op
from meshc.passes.mesh.forms.lowering import Lowering


@dataclass(frozen=True)
class Form:
    """One way to compute an op on a mesh.

    ``lower`` emits mesh ops for it into a way that has all before it, in whose layouts the operands
    lie; it moves them first where it needs them elsewhere. It fails with a diagnosed error where
    the op has no such form. ``name`` is what a person pins; a form that is ``only_pinned`` is
    computed where a person asks for it and never chosen by the search.
    """

    name: str
    lower: Callable[[Lowering], None]
    only_pinned: bool = False


def only(name: str, lower: Callable[[Lowering, Op], None], op: Op) -> list[Form]:
    """The forms of an op that has one."""
    return [Form(name, lambda way: lower(way, op))]

"""Forms of other packages: entry points of the group ``meshc.forms``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshc.ir.core import Op
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.plugins import Kind


@dataclass(frozen=True)
class BroughtForm:
    """A form of ops of the class ``op``: ``lower`` emits mesh ops for one into a way, as that of a
    `Form` does. It is called by the name of its entry point."""

    op: type[Op]
    lower: Callable[[Lowering, Op], None]


def brought_forms(name: str, op: Op) -> list[Form]:
    """The form called ``name`` that an installed package brings for ``op``, which is computed where
    a person pins it. Raises ``bad-plugin``."""
    found: BroughtForm | None = KIND.named(name, op.span)
    if found is None or not isinstance(op, found.op):
        return []
    lower = found.lower
    return [Form(name, lambda way: lower(way, op), only_pinned=True)]


def _fault(name: str, found: object) -> str:
    """What is wrong with what is offered as the form ``name``, or an empty text."""
    return "" if isinstance(found, BroughtForm) else "is no meshc.BroughtForm"


KIND = Kind("meshc.forms", "form", "docs/mesh-level.md", _fault)
"""Forms of installed packages."""

"""Witnesses of the facts about task programs, in words."""

from __future__ import annotations

from meshc.analysis.proofs.isl import Point
from meshc.analysis.tasks.accesses import At


def element_text(at: At, point: Point) -> str:
    """The element that ``point`` speaks of, such as ``%stream[1, 0, 5]``."""
    own = at.access.elements
    names = [at.name(name) if place < at.shared else name for place, name in enumerate(own)]
    return f"{at.access.buffer}[{', '.join(str(point[name]) for name in names)}]"


def task_text(at: At, point: Point) -> str:
    """The task at ``point``, such as ``@attend (g=0, pos=3)``."""
    names = [n for n in (*at.access.names, *at.module.scalars) if at.name(n) in point]
    return f"@{at.access.family.name} ({', '.join(f'{n}={point[at.name(n)]}' for n in names)})"

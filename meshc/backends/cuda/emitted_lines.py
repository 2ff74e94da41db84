"""Which lines of a kernel of tasks the ops of its module became.

A phase has a section of the kernel under its name, where blocks compute and where they bring what
is streamed; its families and what is in them are in these lines. Blocks meet at the head of the
section behind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshc.backends.lines_of_ops import Stretch, completed
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.task import Meet, Phase

_SECTION = re.compile(r"\s*(?:// ---- |\{  // )([\w.]+)(?::|$)")


def emitted_lines(module: Module, text: str) -> dict[Op, list[Stretch]]:
    """By op, the lines of ``text``, a kernel that was emitted from ``module``."""
    lines = text.split("\n")
    sections: dict[str, list[Stretch]] = {}
    for at, line in enumerate(lines):
        if match := _SECTION.match(line):
            sections.setdefault(match[1], []).append(_section(lines, at))
    found: dict[Op, list[Stretch]] = {}
    met: list[Op] = []
    for op in module.walk():
        if isinstance(op, Meet):
            met.append(op)
        elif isinstance(op, Phase) and op.name in sections:
            mine = sections[op.name]
            found[op] = mine
            found |= dict.fromkeys(op.regions[0].walk(), mine)
            head = mine[-1].first
            found |= {meeting: [Stretch(head, head + 1)] for meeting in met}
            met = []
    return completed(module, found)


def _section(lines: Sequence[str], head: int) -> Stretch:
    """The block in braces at or behind the line ``head`` (from 0)."""
    first = head if "{" in lines[head] else head + 1
    indent = len(lines[first]) - len(lines[first].lstrip())
    closing = " " * indent + "}"
    last = next((at for at in range(first, len(lines)) if lines[at] == closing), first)
    return Stretch(head + 1, last + 1)

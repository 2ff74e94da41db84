"""Declarations of integers in lines of C, without those that nothing uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_INTEGERS = re.compile(r"( *)const int (\w+ = .*);(  // .*)?")
_NAMES = re.compile(r"\w+(?= = )")
_BETWEEN = re.compile(r", (?=\w+ = )")


def used_alone(lines: Iterable[str]) -> list[str]:
    """``lines``, of whose ``const int`` each names what is read in its block: dims of tasks are
    declared before it is known what of them a task's statements spell."""
    kept: list[str] = []
    for line in reversed([*lines]):
        found = _INTEGERS.fullmatch(line)
        if found is None:
            kept.append(line)
            continue
        indent, parts, note = found.groups()
        used: list[str] = []
        for part in reversed(_parts(parts)):
            name = part.partition(" = ")[0]
            later = f" {' '.join(used)} "
            if _reads(name, later) or _read_in_block(name, kept, len(indent)):
                used.append(part)
        if used:
            kept.append(f"{indent}const int {', '.join(reversed(used))};{note or ''}")
    return kept[::-1]


def _parts(text: str) -> list[str]:
    """``a = f(x, y), b = 2`` as ``a = f(x, y)`` and ``b = 2``."""
    return _BETWEEN.split(text)


def _read_in_block(name: str, behind: Sequence[str], indent: int) -> bool:
    """Whether the block of a declaration reads ``name``; ``behind`` are the lines that follow it,
    the last one first. Blocks with a declaration of the same name read their own."""
    hidden: int | None = None
    for line in reversed(behind):
        depth = len(line) - len(line.lstrip())
        if not line:
            continue
        if depth < indent:
            return False
        if hidden is not None and depth >= hidden:
            continue
        hidden = None
        found = _INTEGERS.fullmatch(line)
        if found is not None and name in _NAMES.findall(found[2]):
            hidden = depth
            if _reads(name, found[2]):
                return True
        elif _reads(name, line):
            return True
    return False


def _reads(name: str, text: str) -> bool:
    """Whether ``text`` has the word ``name`` where it is not declared."""
    return re.search(rf"\b{name}\b(?! = )", text) is not None

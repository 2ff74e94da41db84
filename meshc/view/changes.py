"""What a pass changed in the text of a module."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

Change = tuple[int, int, int, int]
"""Lines ``[first, behind)`` of the text before in whose place stand lines ``[first, behind)`` of
the one after, counted from 0."""

_MOST_COMPARED = 6_000
"""Lines of two texts that are compared one with another; of longer ones only what is alike at both
ends is found."""


def changes(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """The changes from one text to the other, in order; lines that are alike are in none."""
    head = _alike(before, after)
    tail = _alike(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(old) + len(new) > _MOST_COMPARED:
        return [(head, head + len(old), head, head + len(new))]
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(head + a, head + b, head + c, head + d) for tag, a, b, c, d in codes if tag != "equal"]


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines at the start are the same in both."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

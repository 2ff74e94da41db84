"""Drafts: tokens that a text may go on with, guessed before a program is asked.

A step of a program that verifies drafts reads the next token of a request and some drafts behind
it, and gives logits behind each. A token is chosen by these as it would be without drafts; the
first one that is another than its draft is the last of the step. So drafts change how many tokens a
step gives and never which ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Text = Sequence[int]
"""The tokens of a request so far, those of its prompt first."""


class Drafter(Protocol):
    """Guesses how texts go on."""

    def draft(self, texts: Mapping[int, tuple[Text, int]]) -> dict[int, list[int]]:
        """For each request, by name, at most so many tokens that may come next; a request may be
        left out. What a request has only grows while it is there."""

    def leave(self, name: int) -> None:
        """Request ``name`` is not there any more."""


class Repeats:
    """Drafts what came behind the last tokens of a text where they stood before (prompt lookup):
    behind the last ``longest`` of them, or if these are new behind fewer, at their latest place."""

    def __init__(self, longest: int = 3) -> None:
        self._longest = longest
        self._known: dict[int, _Places] = {}

    def draft(self, texts: Mapping[int, tuple[Text, int]]) -> dict[int, list[int]]:
        """See :class:`Drafter`."""
        found = {}
        for name, (text, most) in texts.items():
            places = self._known.setdefault(name, _Places(self._longest))
            found[name] = places.behind(text)[:most]
        return found

    def leave(self, name: int) -> None:
        """See :class:`Drafter`."""
        self._known.pop(name, None)


class _Places:
    """Where in a text each run of up to ``longest`` tokens stands for the last time, but for its
    end."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._behind: dict[tuple[int, ...], int] = {}
        self._ends = 0

    def behind(self, text: Text) -> list[int]:
        """What follows the last tokens of ``text`` at an earlier place."""
        for end in range(self._ends + 1, len(text)):
            for length in range(1, min(self._longest, end) + 1):
                self._behind[tuple(text[end - length : end])] = end
        self._ends = max(self._ends, len(text) - 1)
        for length in range(min(self._longest, len(text)), 0, -1):
            place = self._behind.get(tuple(text[len(text) - length :]))
            if place is not None:
                return list(text[place:])
        return []

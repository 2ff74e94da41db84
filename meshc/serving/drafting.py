"""Drafts: tokens that a text may go on with, guessed before a program is asked.

A step of a program that verifies drafts reads the next token of a request and some drafts behind
it, and gives logits behind each. A token is chosen by these as it would be without drafts; the
first one that is another than its draft is the last of the step. So drafts change how many tokens a
step gives and never which ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from meshc.serving.engines import PagedEngine

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


class OfModel:
    """Drafts the most likely tokens of another model, of the same tokens, which ``engine`` runs:
    it serves nobody else and has pages for as many whole requests as it has places."""

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine
        self._each = engine.pages // engine.requests
        self._room = min(engine.capacity, self._each * engine.page)
        self._free = list(range(engine.requests))
        self._places: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}  # tokens that caches of a place have

    def draft(self, texts: Mapping[int, tuple[Text, int]]) -> dict[int, list[int]]:
        """See :class:`Drafter`. A text for which there is no room gets none."""
        fitting = {n: (t, most) for n, (t, most) in texts.items() if len(t) + most <= self._room}
        found: dict[int, list[int]] = {name: [] for name in fitting}
        for name, (text, _) in fitting.items():
            self._begin(name, text)
        while running := [name for name, (_, most) in fitting.items() if len(found[name]) < most]:
            fed = {name: [*fitting[name][0], *found[name]] for name in running}
            places = {name: self._places[name] for name in running}
            at = {name: len(self._held[place]) for name, place in places.items()}
            logits = self._engine.step({places[n]: (fed[n][at[n]], at[n]) for n in running})
            for name in running:
                self._held[places[name]].append(fed[name][at[name]])
                if at[name] + 1 == len(fed[name]):
                    found[name].append(int(logits[places[name]].argmax()))
        return found

    def leave(self, name: int) -> None:
        """See :class:`Drafter`."""
        place = self._places.pop(name, None)
        if place is not None:
            self._free.append(place)

    def _begin(self, name: int, text: Text) -> None:
        """Let caches hold nothing but ``text``, and most of it where much is missing."""
        if name not in self._places:
            place = self._places[name] = self._free.pop(0)
            self._held[place] = []
            self._engine.lay(place, range(place * self._each, (place + 1) * self._each))
        place = self._places[name]
        held = self._held[place]
        pairs = enumerate(zip(held, text[:-1], strict=False))
        del held[next((n for n, (a, b) in pairs if a != b), min(len(held), len(text) - 1)) :]
        multiple = self._engine.multiple
        if len(text) - len(held) > multiple:
            first = len(held) // multiple * multiple
            rows = self._engine.embedded(text[first:-1], first)
            self._engine.read(place, rows, first, range(0))
            held[:] = text[:-1]


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

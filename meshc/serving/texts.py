"""From tokens that come one by one to pieces of text that are final."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_UNFINISHED = "\ufffd"


class Tokenizer(Protocol):
    """What turns texts into token ids and back."""

    def encode(self, text: str, room: int | None = None) -> list[int]:
        """The ids of ``text``; a text that surely has more of them than ``room`` need not be read
        to its end. Raises ``MeshcError``."""

    def continuation(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """What ``ids`` add to the text of ``prompt``."""


class Flow:
    """The text of one answer. Without a tokenizer it is the ids, with spaces between.

    ``stopped`` says that one of the texts ``stops`` has come, which is not part of the answer;
    ``text`` is what was given so far.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], stops: Sequence[str]
    ) -> None:
        self._tokenizer, self._prompt, self._stops = tokenizer, prompt, stops
        self.tokens: list[int] = []
        self.stopped = False
        self.text = ""

    def push(self, token: int, last: bool, shown: bool = True) -> str:
        """The text that is final now that ``token`` has come and was not before; of the last token
        all that is left. One that is not ``shown`` only ends the text."""
        self.tokens.append(token)
        text = self._spelled(self.tokens if shown else self.tokens[:-1])
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            text = text[: min(places)]
        elif not last:
            # A character may need more tokens, and the beginning of a stop may become one.
            text = text.rstrip(_UNFINISHED)
            text = text[: len(text) - self._begun(text)]
        piece = text[len(self.text) :]
        self.text += piece
        return piece

    def _begun(self, text: str) -> int:
        """Characters at the end of ``text`` with which one of the stops begins, at most."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0

    def _spelled(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is not None:
            return self._tokenizer.continuation(self._prompt, tokens)
        return "".join(f"{token} " for token in tokens)

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

    def control_text(self, token: int) -> str:
        """The text of a control token, which is no part of other texts; empty for any other."""

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of ``ids`` by itself, as it stands behind other ones."""

    def described(self) -> str:
        """The tokenizer, in the JSON of the ``tokenizers`` package."""


class Flow:
    """The text of one answer. Without a tokenizer it is the ids, with spaces between.

    ``stopped`` says that one of the texts ``stops`` has come, which is not part of the answer;
    ``text`` is what was given so far. Texts of control tokens are no part of it either, but stops
    are looked for as if they were.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt: Sequence[int], stops: Sequence[str]
    ) -> None:
        self._tokenizer, self._prompt, self._stops = tokenizer, prompt, stops
        self.tokens: list[int] = []
        self.stopped = False
        self.text = ""
        self._controls: list[tuple[int, str]] = []  # where in the text they came

    @staticmethod
    def of_prompt(tokenizer: Tokenizer | None, prompt: Sequence[int]) -> str:
        """The text of ``prompt``."""
        if tokenizer is not None:
            return tokenizer.continuation((), prompt)
        return "".join(f"{token} " for token in prompt)

    def push(self, token: int, last: bool, shown: bool = True) -> str:
        """The text that is final now that ``token`` has come and was not before; of the last token
        all that is left. One that is not ``shown`` only ends the text."""
        if self._stops and self._tokenizer is not None:
            control = self._tokenizer.control_text(token)
            if control:
                self._controls.append((len(self._spelled(self.tokens)), control))
        self.tokens.append(token)
        text = self._spelled(self.tokens if shown else self.tokens[:-1])
        whole = self._with_controls(text)
        places = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self.stopped = True
            text = text[: self._without_controls(min(places))]
        elif not last:
            # A character may need more tokens, and the beginning of a stop may become one.
            unfinished = len(whole) - len(whole.rstrip(_UNFINISHED))
            whole = whole[: len(whole) - unfinished]
            end = self._without_controls(len(whole) - self._begun(whole))
            text = text[:end]
        piece = text[len(self.text) :]
        self.text += piece
        return piece

    def _with_controls(self, text: str) -> str:
        """``text`` with the texts of control tokens where they came."""
        pieces, start = [], 0
        for place, control in self._controls:
            pieces += [text[start:place], control]
            start = place
        return "".join((*pieces, text[start:]))

    def _without_controls(self, place: int) -> int:
        """Where ``place``, of a text with control tokens, lies in that without them."""
        for own, control in self._controls:
            if place <= own:
                break
            place = max(own, place - len(control))
        return place

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
        return self.of_prompt(None, tokens)

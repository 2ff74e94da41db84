"""What is told of the requests of a server to whoever watches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Ending = Literal["stop", "length", "error", "cancelled"]


@dataclass(frozen=True)
class Ended:
    """A request that has ended, for its ``reason``: an end token or text, its number of tokens, an
    error, of which there are ``words``, or that its client wants no more. ``seconds`` passed since
    it came, ``first_token_s`` until its first token, None where there was none."""

    name: int
    prompt_tokens: int
    tokens: int
    reason: Ending
    seconds: float
    first_token_s: float | None
    words: str = ""


class Watcher(Protocol):
    """Hears of requests in the thread that serves them; must return at once."""

    def token(self, seconds: float, is_first: bool) -> None:
        """A request has a token, so long after the one before, or after it came."""

    def ended(self, request: Ended) -> None:
        """A request has ended."""


class Course:
    """How a request of ``prompt_tokens`` goes, of which ``watchers`` hear."""

    def __init__(
        self,
        name: int,
        prompt_tokens: int,
        watchers: tuple[Watcher, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._prompt_tokens = name, prompt_tokens
        self._watchers, self._clock = watchers, clock
        self._begun = self._last = clock()
        self._first: float | None = None
        self._tokens = 0

    def token(self) -> None:
        """It has one more token."""
        now = self._clock()
        for watcher in self._watchers:
            watcher.token(now - self._last, not self._tokens)
        self._first = now - self._begun if self._first is None else self._first
        self._last = now
        self._tokens += 1

    def end(self, reason: Ending, words: str = "") -> None:
        """It has ended."""
        seconds = self._clock() - self._begun
        counts = self._name, self._prompt_tokens, self._tokens
        request = Ended(*counts, reason, seconds, self._first, words)
        for watcher in self._watchers:
            watcher.ended(request)

"""Tokens of an iteration: stretches of prompts and single tokens of requests that decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Chunk(NamedTuple):
    """Tokens of one request: the position of the first and of the one after the last."""

    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """How many they are."""
        return self.stop - self.start


Batch = tuple[Chunk, ...]
"""The rows of an iteration, request by request; a token of a request that decodes is a chunk of
one."""


def tokens_of(batch: Batch) -> int:
    """Rows of a batch."""
    return sum(chunk.tokens for chunk in batch)


def prompts(lengths: Sequence[int]) -> Batch:
    """Whole prompts of so many tokens."""
    return tuple(Chunk(0, length) for length in lengths)


def cut(batch: Batch, at: int) -> tuple[Batch, Batch]:
    """The first ``at`` tokens of ``batch`` and those behind them. The prompt that is cut goes on in
    the second part at the position where it ended in the first, so that causal attention sees what
    it saw."""
    first: list[Chunk] = []
    second: list[Chunk] = []
    left = at
    for chunk in batch:
        middle = chunk.start + min(max(left, 0), chunk.tokens)
        if middle > chunk.start:
            first.append(Chunk(chunk.start, middle))
        if middle < chunk.stop:
            second.append(Chunk(middle, chunk.stop))
        left -= chunk.tokens
    return tuple(first), tuple(second)

"""A language model that serves by batches of tokens: a step reads tokens of prompts beside those of
requests that go on, and is told which are whose.

Weights are read once for all of them. Rows of a step know nothing of each other but for those of
one request, which stand one behind the other, and new keys and values stand among the cached ones
where they will be found later: what a token has depends, to the bit, neither on what is read beside
it nor on where its text is cut. Rows without a token are of a request that is nobody, whose pages
are the last one of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshc.backends.cuda.host import NO_LARGEST
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.paged import NOBODY, Array, PagedModel
from meshc.backends.cuda.program import AHEAD_OF, OWNERS


@dataclass(frozen=True)
class Part:
    """Tokens of a ``request``, of which a step reads ``count``, the first of them in the row
    ``first``; perhaps the ``last`` ones that are to be read."""

    request: int
    first: int
    count: int
    last: bool

    @property
    def end(self) -> int:
        """The row of the last of these tokens."""
        return self.first + self.count - 1


class MixedModel(PagedModel):
    """See :class:`PagedModel`; a :class:`~meshc.serving.engines.MixingEngine`."""

    @property
    def requests(self) -> int:
        """Requests of a step; its tables have one more, which is nobody."""
        return self.program.batch - 1

    @property
    def tokens(self) -> int:
        """Tokens of all requests that a step reads at the most."""
        return self.program.tokens

    def read(self, request: int, rows: Array, position: int, layers: range) -> Array:
        """See :meth:`PagedModel.read`; all layers are passed."""
        self.mix({request: (rows[:, 0].tolist(), position)}, ())
        return rows

    def verify(self, tokens: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, Array]:
        """See :meth:`PagedModel.verify`; any number of tokens, in as many steps as they need."""
        found: dict[int, list[Array]] = {request: [] for request in tokens}
        for parts in self._steps(tokens, self._step):
            logits = self.machine.read("logits")
            for part in parts:
                found[part.request].append(logits[part.first : part.end + 1].copy())
        return {request: np.concatenate(rows) for request, rows in found.items()}

    def mix(
        self, tokens: Mapping[int, tuple[Sequence[int], int]], asked: Collection[int]
    ) -> dict[int, Array]:
        """Read some tokens of each request, by its place, of which the first stands at a position,
        in as many steps as they need; the logits ``[vocab]`` behind the last one of those that are
        ``asked`` for."""
        found: dict[int, Array] = {}
        for parts in self._steps(tokens, self._step):
            ends = {part.request: part.end for part in parts if part.last and part.request in asked}
            if ends:
                logits = self.machine.read("logits")
                found |= {request: logits[row].copy() for request, row in ends.items()}
        return found

    def mix_chosen(
        self,
        tokens: Mapping[int, tuple[Sequence[int], int]],
        draws: Mapping[int, tuple[Array, Array]],
    ) -> dict[int, int | None]:
        """Read the same; the next token of each place of ``draws``, as :meth:`choose` has it."""
        found: dict[int, int | None] = {}
        for parts in self._steps(tokens, self._choosing, draws):
            chosen = self.machine.read("chosen")[0].tolist()
            for part in parts:
                if part.last and part.request in draws:
                    token = chosen[part.end]
                    found[part.request] = None if token == NO_LARGEST else token
        return found

    def choose(
        self, tokens: Mapping[int, tuple[int, int]], draws: Mapping[int, tuple[Array, Array]]
    ) -> dict[int, int | None]:
        """See :meth:`PagedModel.choose`."""
        return self.mix_chosen({place: ([own], at) for place, (own, at) in tokens.items()}, draws)

    def _steps(
        self,
        tokens: Mapping[int, tuple[Sequence[int], int]],
        launches: Sequence[tuple[Launch, int]],
        draws: Mapping[int, tuple[Array, Array]] | None = None,
    ) -> Iterator[list[Part]]:
        """Launch as many steps as ``tokens`` need, one for each round, which has what it read;
        each is told behind which tokens something is drawn."""
        self._use()
        self._write("pages", self._tables)
        left = {request: (list(own), at) for request, (own, at) in tokens.items() if own}
        while left:
            parts: list[Part] = []
            batch = _Batch(self.tokens)
            for request, (own, at) in tuple(left.items()):
                count = min(len(own), self.tokens - batch.read)
                if count:
                    last = count == len(own)
                    parts.append(Part(request, batch.read, count, last))
                    batch.add(request, own[:count], at)
                    left[request] = own[count:], at + count
                    if last:
                        del left[request]
            batch.add(self.requests, [NOBODY] * (self.tokens - batch.read), 0)
            for name, array in batch.given.items():
                self.machine.write(name, array)
            if draws is not None:
                self._write_draws(parts, draws)
            self.machine.run(launches)
            yield parts

    def _write_draws(self, parts: Sequence[Part], draws: Mapping[int, tuple[Array, Array]]) -> None:
        """Tell a step behind which of its rows a token is drawn, and how."""
        left = np.zeros(self.tokens, np.int32)
        settings = np.zeros((self.tokens, 4), np.float32)
        stream = np.zeros((self.tokens, 4), np.uint32)
        for part in parts:
            if part.last and part.request in draws:
                left[part.end] = 1
                settings[part.end], stream[part.end] = draws[part.request]
        self.machine.write("left", left)
        self.machine.write("stream", stream.view(np.int32))
        self._write("settings", settings)


class _Batch:
    """What a step of ``tokens`` tokens is told, of which some are ``read``."""

    def __init__(self, tokens: int) -> None:
        names = "tokens", "cached", OWNERS, AHEAD_OF
        self.given = {name: np.zeros(tokens, np.int32) for name in names}
        self.read = 0

    def add(self, request: int, tokens: Sequence[int], position: int) -> None:
        """Let the next rows have ``tokens`` of a request, the first of them at ``position``."""
        rows, ahead = slice(self.read, self.read + len(tokens)), np.arange(len(tokens))
        self.given["tokens"][rows] = tokens
        self.given["cached"][rows] = position + ahead
        self.given[OWNERS][rows] = request
        self.given[AHEAD_OF][rows] = ahead
        self.read += len(tokens)

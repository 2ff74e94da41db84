"""A language model whose steps verify drafts: tokens that a text may go on with, guessed before.

A step reads the next token of each request and drafts behind it, and gives logits behind each. By
these tokens are chosen one after the other, until one is another than its draft; what the caches
have behind that is written over by the next step. Columns of a step know nothing of what stands
behind them, so tokens are those that come without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.host import LanguageModel, Machine
from meshc.backends.cuda.packing import Keeping
from meshc.backends.cuda.program import StepProgram

Array = NDArray[Any]
_NOBODY = -1


class Drafter(Protocol):
    """Guesses how texts go on."""

    def draft(self, texts: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, list[int]]:
        """For each request, by number, at most so many tokens that may come behind its text."""


class DraftedModel(LanguageModel):
    """A compiled language model on a machine whose steps read up to :attr:`drafts` drafts of each
    request. Behind its tokens its caches have places for these, so requests may have so many tokens
    fewer than the program's capacity."""

    VERIFIES = True

    def __init__(
        self,
        program: StepProgram,
        machine: Machine,
        tensors: Mapping[str, Array],
        keeping: Keeping | None = None,
    ) -> None:
        """Raises what :class:`LanguageModel` does."""
        super().__init__(program, machine, tensors, keeping)
        self.columns = program.columns
        self.program = replace(program, capacity=program.capacity - self.drafts)

    @property
    def drafts(self) -> int:
        """Drafts of a request that a step verifies at the most."""
        return self.columns - 1

    def step(self, tokens: Sequence[int], cached: Sequence[int]) -> Array:
        """See :meth:`LanguageModel.step`: a step without drafts."""
        return super().step(tokens, cached)[:: self.columns]

    def generate_drafted(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: Callable[[int, int, Array], object],
        stop: Collection[int],
        choose: Callable[[int, Array], int],
        drafter: Drafter,
    ) -> list[list[int]]:
        """The tokens that :meth:`LanguageModel.generate_all` gives; steps verify what ``drafter``
        guesses of the requests that go on. Raises what that does."""
        self._check_all(prompts, count)
        found: list[list[int]] = [[] for _ in prompts]
        running = set(range(len(prompts)))

        def take(request: int, row: Array) -> int:
            """The next token of ``request``, by the logits in front of it."""
            token = choose(request, row)
            found[request].append(token)
            ended = on_token(request, token, row)
            if ended or token in stop or len(found[request]) == count:
                running.remove(request)
            return token

        cached = [0] * self.program.batch
        rows = []
        for request, prompt in enumerate(prompts):
            rows.append(self.prefill(prompt, request, cached))
            cached[request] = len(prompt)
        for request, row in enumerate(rows):
            take(request, row)
        read = [[prompt[-1]] for prompt in prompts]
        while running:
            read, logits = self._verified(prompts, found, read, cached, count, running, drafter)
            for request in sorted(running):
                for place, row in enumerate(logits[request, : len(read[request])]):
                    cached[request] += 1
                    token = take(request, row)
                    if request not in running or [token] != read[request][place + 1 : place + 2]:
                        break
        return found

    def _verified(
        self,
        prompts: Sequence[Sequence[int]],
        found: Sequence[Sequence[int]],
        before: Sequence[list[int]],
        cached: Sequence[int],
        count: int,
        running: Collection[int],
        drafter: Drafter,
    ) -> tuple[list[list[int]], Array]:
        """What a step reads of each request, its last token and drafts where it goes on, else what
        it has read ``before``, and the logits ``[request, token, vocabulary]`` behind these."""
        texts = {
            request: ([*prompts[request], *found[request]], most)
            for request in running
            if (most := min(self.drafts, count - len(found[request]) - 1)) > 0
        }
        guessed = drafter.draft(texts) if texts else {}
        read = [
            [found[request][-1], *self._sound(guessed.get(request, ()))]
            if request in running
            else own[:1]
            for request, own in enumerate(before)
        ]
        batch = self.program.batch
        places = [min(place, self.program.capacity - 1) for place in cached]
        self._give_columns([*read, *[[0]] * (batch - len(read))], places)
        self.machine.run(self._step)
        return read, self.machine.read("logits").reshape(batch, self.columns, -1)

    def _sound(self, drafts: Sequence[int]) -> Sequence[int]:
        """``drafts`` up to the first that is no token, as many as a step reads."""
        known = takewhile(lambda token: 0 <= token < self.program.vocabulary, drafts)
        return [*known][: self.drafts]

    def _give_all(self, tokens: Sequence[int], cached: Sequence[int]) -> None:
        self._check_step(tokens, cached)
        self._give_columns([[token] for token in tokens], cached)

    def _give_columns(self, tokens: Sequence[Sequence[int]], cached: Sequence[int]) -> None:
        """Write what a step reads of each request; columns without a token have none, behind it."""
        ids = np.full((len(tokens), self.columns), _NOBODY, np.int32)
        for request, own in enumerate(tokens):
            ids[request, : len(own)] = own
        positions = np.array(cached, np.int32)[:, None] + np.arange(self.columns, dtype=np.int32)
        self.machine.write("tokens", ids.ravel())
        self.machine.write("cached", positions.ravel())

    def _one(
        self, token: int, cached: int, request: int = 0, others: Sequence[int] | None = None
    ) -> Array:
        self._run_one(token, cached, request, others)
        found: Array = self.machine.read("logits")[request * self.columns]
        return found

"""The host of a decode step: packs weights, owns the token loop, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.packing import packed
from meshc.backends.cuda.program import Launch, StepProgram
from meshc.support.diagnostics import fail

Array = NDArray[Any]
_DTYPES = {"f32": np.float32, "i32": np.int32, "f16": np.uint16, "bf16": np.uint16}


class Machine(Protocol):
    """What runs kernels: memory by name, and launches in order."""

    def store(self, name: str, array: Array) -> None:
        """Memory called ``name`` that holds ``array``."""

    def write(self, name: str, array: Array) -> None:
        """Replace what ``name`` holds by an array of its shape."""

    def read(self, name: str) -> Array:
        """What ``name`` holds."""

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """The launches of a step, one after the other."""


class LanguageModel:
    """A compiled language model on a machine, with one request."""

    def __init__(
        self, program: StepProgram, machine: Machine, tensors: Mapping[str, Array]
    ) -> None:
        """Packs and stores everything. Raises what :func:`packed` does."""
        self.program = program
        self.machine = machine
        for name, weight in program.weights.items():
            machine.store(name, packed(weight, tensors))
        for name, buffer in program.buffers.items():
            machine.store(name, np.zeros(buffer.shape, _DTYPES[buffer.dtype]))
        angles = np.arange(program.capacity)[:, None] * np.array(program.frequencies)
        machine.write("cosines", np.cos(angles).astype(np.float32))
        machine.write("sines", np.sin(angles).astype(np.float32))
        pages = np.arange(np.prod(program.buffers["pages"].shape), dtype=np.int32)
        table = pages.reshape(program.buffers["pages"].shape)
        machine.write("pages", table)
        if program.prefill is not None:
            machine.write("chunk_pages", table[:1])

    def step(self, tokens: Sequence[int], cached: Sequence[int]) -> Array:
        """Logits [batch, vocabulary] behind one token of each request, which has ``cached``
        before it."""
        self.machine.write("tokens", np.array(tokens, np.int32))
        self.machine.write("cached", np.array(cached, np.int32))
        self.machine.run(self.program.launches())
        return self.machine.read("logits")

    def prefill(self, prompt: Sequence[int]) -> Array:
        """Logits [vocabulary] behind ``prompt``, which the first request then has cached.

        In chunks where the program reads prompts so; a single token by a decode step.
        """
        size = self.program.prefill.tokens if self.program.prefill is not None else 1
        logits = np.zeros(0)
        for first in range(0, len(prompt), size):
            tokens = prompt[first : first + size]
            if len(tokens) == 1:
                logits = self._one(tokens[0], first)
            else:
                logits = self._chunk(tokens, first, size, first + size >= len(prompt))
        return logits

    def _chunk(self, tokens: Sequence[int], cached: int, size: int, last: bool) -> Array:
        """Logits behind ``tokens``, if they are the ``last`` of a prompt, else nothing."""
        columns = np.full(size, -1, np.int32)
        columns[: len(tokens)] = tokens
        self.machine.write("chunk_tokens", columns)
        self.machine.write("chunk_cached", np.arange(cached, cached + size, dtype=np.int32))
        self.machine.run(self.program.prefill_launches(len(tokens), last))
        return self.machine.read("chunk_logits")[0] if last else np.zeros(0)

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        on_token: Callable[[int, Array], None],
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Greedy tokens behind ``prompt``, at most ``count``, up to one in ``stop``.

        Raises ``run-refused`` for a prompt that is empty, too long or holds unknown ids.
        """
        _check(self.program, prompt, count)
        logits = self.prefill(prompt)
        for position in range(len(prompt), len(prompt) + count):
            token = int(logits.argmax())
            on_token(token, logits)
            yield token
            if token in stop or position + 1 == len(prompt) + count:
                return
            logits = self._one(token, position)

    def _one(self, token: int, cached: int) -> Array:
        others = self.program.batch - 1
        found: Array = self.step([token, *[0] * others], [cached, *[0] * others])[0]
        return found


def _check(program: StepProgram, prompt: Sequence[int], count: int) -> None:
    if not prompt:
        fail("run-refused", "the prompt holds no token")
    wrong = [t for t in prompt if not 0 <= t < program.vocabulary]
    if wrong:
        fail("run-refused", f"{wrong[0]} is no token id below {program.vocabulary}")
    if len(prompt) + count > program.capacity:
        fail(
            "run-refused",
            f"{len(prompt)} prompt tokens and {count} new ones are more than the "
            f"{program.capacity} the program keeps",
            help="compile it with a larger --seq",
        )

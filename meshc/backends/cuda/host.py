"""The host of a decode step: packs weights, owns the token loop, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.nodes import Nodes, NodeTensors, bounds_of, on_each
from meshc.backends.cuda.packing import Keeping, all_packed
from meshc.backends.cuda.program import REACHED, SECOND, Prefill, StepProgram, numbered
from meshc.backends.cuda.queues import Queue
from meshc.backends.cuda.ranks import RankTensors
from meshc.support.diagnostics import fail

Array = NDArray[Any]
ENDED, NO_LARGEST = -1, -2
"""What a program chooses for a request that goes on no more, and by logits without a largest number
that is finite."""
_DTYPES: dict[str, type[np.generic]] = {
    "f32": np.float32, "i32": np.int32, "f16": np.uint16, "bf16": np.uint16, "e4m3": np.uint8,
}  # fmt: skip


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


@runtime_checkable
class RankedMachine(Machine, Protocol):
    """What runs the programs of ranks: the GPUs of those that are ``here``, all of a program's or
    one of them, and what GPUs reach of each other."""

    @property
    def here(self) -> Sequence[int]:
        """Ranks whose GPUs this machine has."""

    def store_of(self, rank: int, name: str, array: Array) -> None:
        """Memory called ``name`` of the GPU of ``rank``, one of those here."""

    def store_symmetric(self, name: str, array: Array, role: str) -> None:
        """Memory called ``name`` that all ranks reach, zeros of the shape of ``array``, for a
        buffer of one of :data:`REACHED`; all ranks ask for theirs in the same order."""

    def run_queue(self, queue: Queue) -> None:
        """The launches of ``queue`` on its two streams, each behind the event that it waits for;
        what runs next is behind all of them."""


@dataclass(frozen=True)
class Draw:
    """How a program draws tokens: the ``settings`` of :class:`meshc.ir.ops.graph.Draw`, and for
    each text the two ``keys`` of its numbers, a seed of 64 bits and one of 32. ``choose`` gives the
    token of a text where the host has its logits, for its number and these."""

    settings: Sequence[float]
    keys: Sequence[tuple[int, int]]
    choose: Callable[[int, Array], int]


def _likeliest(request: int, logits: Array) -> int:
    token = int(logits.argmax())
    return token if np.isfinite(logits[token]) else NO_LARGEST


class LanguageModel:
    """A compiled language model on a machine, for as many requests as its steps have."""

    VERIFIES = False
    """Whether its steps may read drafts."""

    def __init__(
        self,
        program: StepProgram,
        machine: Machine,
        tensors: Mapping[str, Array],
        keeping: Keeping | None = None,
    ) -> None:
        """Packs and stores everything, what was packed before as ``keeping`` has it. Raises what
        :func:`packed` does, and ``run-refused`` for a program of one rank or of nodes on a machine
        that meets no others, and for one whose steps verify drafts."""
        if program.columns > 1 and not self.VERIFIES:
            fail("run-refused", "steps of the program verify drafts, and nobody makes any")
        self.program = program
        self.machine = machine
        self._step = program.launches()
        self._chosen: dict[int, list[tuple[Launch, int]]] = {}
        prepare(program, machine, tensors, keeping)
        pages = np.arange(np.prod(program.buffers["pages"].shape), dtype=np.int32)
        table = pages.reshape(program.buffers["pages"].shape)
        machine.write("pages", table)

    def step(self, tokens: Sequence[int], cached: Sequence[int]) -> Array:
        """Logits [batch, vocabulary] behind one token of each request, which has ``cached``
        before it.

        Raises ``run-refused`` for another number of requests, for an unknown token, and for a
        position that the caches have no place for: kernels look that up in tables, unchecked.
        """
        self._give_all(tokens, cached)
        self.machine.run(self._step)
        return self.machine.read("logits")

    def _give_all(self, tokens: Sequence[int], cached: Sequence[int]) -> None:
        """Write what a step reads. Raises what :meth:`step` does."""
        self._check_step(tokens, cached)
        self.machine.write("tokens", np.array(tokens, np.int32))
        self.machine.write("cached", np.array(cached, np.int32))

    def _check_step(self, tokens: Sequence[int], cached: Sequence[int]) -> None:
        """Raise what :meth:`step` does."""
        _check_requests(self.program, "tokens", tokens)
        _check_requests(self.program, "positions", cached)
        _check_tokens(self.program, tokens)
        _check_positions(self.program, cached)

    def prefill(
        self,
        prompt: Sequence[int],
        request: int = 0,
        cached: Sequence[int] | None = None,
        behind: int = 0,
    ) -> Array:
        """Logits [vocabulary] behind ``prompt``, which ``request`` then has cached, ``behind`` so
        many tokens that it had before; the others have ``cached`` tokens each, by default none.

        In chunks where the program reads prompts so; a single token by a decode step, in which the
        other requests leave something behind their last token that their next one replaces, and
        also the last token where chunks give no logits.

        Raises ``run-refused`` for a prompt that is empty, too long or holds unknown ids, for a
        request that the program does not have, and as :meth:`step` does.
        """
        _check(self.program, prompt, 1, behind)
        if not 0 <= request < self.program.batch:
            fail("run-refused", f"there is no request {request} of {self.program.batch}")
        if cached is not None:
            _check_requests(self.program, "positions", cached)
            _check_positions(self.program, cached, full=True)
        return self._read(prompt, request, cached, True, behind)

    def _read(
        self,
        tokens: Sequence[int],
        request: int,
        cached: Sequence[int] | None,
        wanted: bool,
        behind: int = 0,
    ) -> Array:
        """Let ``request`` have ``tokens`` cached ``behind`` so many, the others ``cached`` ones
        each; the logits behind them where these are ``wanted``, else nothing."""
        pages = self.machine.read("pages")[[request]]
        for reader in self.program.prefills:
            self.machine.write(f"{reader.inputs}_pages", pages)
        logits, first = np.zeros(0), 0
        while first < len(tokens):
            left = len(tokens) - first
            chosen, count, at = self.program.reader(left, wanted), 1, 0
            if chosen is not None:
                count, at = chosen.piece(left - (wanted and not chosen.gives_logits))
            piece, last = tokens[first : first + count], wanted and count == left
            if count > 1 and chosen is not None:
                logits = self._chunk(chosen, piece, behind + first, at, last)
            elif last:
                logits = self._one(piece[0], behind + first, request, cached)
            else:
                self._run_one(piece[0], behind + first, request, cached)
            first += count
        return logits

    def _chunk(
        self, reader: Prefill, tokens: Sequence[int], cached: int, at: int, last: bool
    ) -> Array:
        """Let ``reader`` have ``tokens`` cached, behind ``cached`` ones, with ``at`` of them in the
        first of two halves, in one piece for 0; the logits behind them if they are the ``last`` of
        a prompt, else nothing."""
        if at:
            assert isinstance(self.machine, RankedMachine) and reader.overlap is not None
            self._give(reader, reader.inputs, tokens[:at], cached)
            self._give(reader, SECOND, tokens[at:], cached + at)
            self.machine.run_queue(reader.overlap.queue(last))
        else:
            self._give(reader, reader.inputs, tokens, cached)
            self.machine.run(reader.launches(last))
        return self.machine.read(f"{reader.inputs}_logits")[0] if last else np.zeros(0)

    def _give(self, reader: Prefill, part: str, tokens: Sequence[int], cached: int) -> None:
        """Write ``tokens``, behind ``cached`` ones, where the launches of a ``part`` of ``reader``
        read them. What is computed in columns of no token has weight 0 in kernels that give no
        logits, so it must be finite: that of the last token."""
        (size,) = self.program.buffers[f"{part}_tokens"].shape
        columns = np.full(size, -1 if reader.gives_logits else tokens[-1], np.int32)
        columns[: len(tokens)] = tokens
        self.machine.write(f"{part}_tokens", columns)
        self.machine.write(f"{part}_count", np.array([len(tokens)], np.int32))
        self.machine.write(f"{part}_cached", np.arange(cached, cached + size, dtype=np.int32))

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

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: Callable[[int, int, Array], object],
        stop: Collection[int] = (),
        choose: Callable[[int, Array], int] | None = None,
    ) -> list[list[int]]:
        """Like :meth:`generate`, for up to as many prompts as a step has requests; ``on_token`` is
        called with the number of a prompt, a token behind it and its logits; if it returns true,
        the token is the last. ``choose`` gives the next token for the number of a prompt and the
        logits behind it; without it that is the most likely one.

        A request that has ended computes its last token again, and nobody looks.
        """
        self._check_all(prompts, count)
        batch = self.program.batch
        tokens, cached = [0] * batch, [0] * batch
        logits = []
        for request, prompt in enumerate(prompts):
            logits.append(self.prefill(prompt, request, cached))
            cached[request] = len(prompt)
        found: list[list[int]] = [[] for _ in prompts]
        running = list(range(len(prompts)))
        while running:
            for request in tuple(running):
                row = logits[request]
                token = int(row.argmax()) if choose is None else choose(request, row)
                tokens[request] = token
                found[request].append(token)
                ended = on_token(request, token, row)
                if ended or token in stop or len(found[request]) == count:
                    running.remove(request)
            if running:
                rows = self.step(tokens, cached)
            for request in running:
                logits[request] = rows[request]
                cached[request] += 1
        return found

    @property
    def most_steps(self) -> int:
        """Steps of a launch in which the program chooses tokens at the most; 0 for one that leaves
        this to the host."""
        return self.program.most_steps

    def generate_chosen(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: Callable[[int, int], object],
        stop: Collection[int] = (),
        steps: int = 1,
        draw: Draw | None = None,
    ) -> list[list[int]]:
        """The tokens that :meth:`generate_all` gives, chosen by the program: a launch has so many
        ``steps``, each of which reads the tokens of the one before, and no logits leave the
        machine. They are the most likely ones, or those that ``draw`` says. ``on_token`` is called
        with the number of a prompt and a token.

        Raises ``run-refused`` as that does, for logits that have no largest number that is finite,
        and for other than 1 to :attr:`most_steps` steps.
        """
        self._check_all(prompts, count)
        if not 1 <= steps <= self.most_steps:
            words = f"a launch has 1 to {self.most_steps} of this program"
            fail("run-refused", f"{steps} steps were asked for, and {words}")
        found: list[list[int]] = [[] for _ in prompts]
        running = set(range(len(prompts)))

        def take(request: int, token: int) -> None:
            if token == NO_LARGEST:
                fail("run-refused", "the logits have no largest number that is finite")
            found[request].append(token)
            ended = on_token(request, token)
            if ended or token in stop or len(found[request]) == count:
                running.remove(request)

        self._begin(prompts, count, stop, take, draw or Draw((0.0, 0.0, 1.0, 0.0), (), _likeliest))
        while running:
            least = min(len(found[request]) for request in running)
            number = min(steps, count - least) if least else 1  # nobody waits for more at first
            if number not in self._chosen:
                self._chosen[number] = self.program.chosen_launches(number)
            self.machine.run(self._chosen[number])
            for row in self.machine.read("chosen")[:number].tolist():
                for request in sorted(running):
                    take(request, row[request])
        return found

    def _begin(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        stop: Collection[int],
        take: Callable[[int, int], None],
        draw: Draw,
    ) -> None:
        """Read ``prompts``, and write what the first step that chooses reads: their last tokens, or
        those that are chosen here, by logits that chunks give, and which ``take`` is called with.
        """
        batch, readers = self.program.batch, self.program.prefills
        with_logits = bool(readers) and all(reader.gives_logits for reader in readers)
        stream = np.zeros(self.program.buffers["stream"].shape, np.uint32)
        for words, (seed, number) in zip(stream, draw.keys, strict=False):
            words[:3] = seed % (1 << 32), seed >> 32, number
        tokens, cached, left = [0] * batch, [0] * batch, [0] * batch
        for request, prompt in enumerate(prompts):
            if not with_logits:
                self._read(prompt[:-1], request, cached, False)
                tokens[request], cached[request], left[request] = prompt[-1], len(prompt) - 1, count
                continue
            logits = self.prefill(prompt, request, cached)
            token = draw.choose(request, logits)
            tokens[request], cached[request], left[request] = token, len(prompt), count - 1
            stream[request, -1] = 1
            take(request, token)
            if token in stop:
                left[request] = 0
        most = self.program.capacity - 1  # of one that has ended with its prompt
        self._give_all(tokens, [min(position, most) for position in cached])
        self.machine.write("left", np.array(left, np.int32))
        self.machine.write("stream", stream.view(np.int32))
        settings, shape = np.array(draw.settings), self.program.buffers["settings"].shape
        self.machine.write("settings", np.broadcast_to(settings, shape))
        ends = np.full(self.program.buffers["ends"].shape, ENDED, np.int32)
        known = [token for token in stop if _is_below(token, self.program.vocabulary)]
        ends[: len(known)] = known[: len(ends)]  # of others take() is told
        self.machine.write("ends", ends)

    def _check_all(self, prompts: Sequence[Sequence[int]], count: int) -> None:
        """Raise ``run-refused`` for prompts that cannot be continued by ``count`` tokens."""
        batch = self.program.batch
        if not 1 <= len(prompts) <= batch:
            fail("run-refused", f"{len(prompts)} prompts, but the program takes 1 to {batch}")
        if count < 1:
            fail("run-refused", f"{count} new tokens were asked for, not 1 or more")
        for prompt in prompts:
            _check(self.program, prompt, count)

    def _one(
        self, token: int, cached: int, request: int = 0, others: Sequence[int] | None = None
    ) -> Array:
        """Logits behind ``token`` of ``request``, which has ``cached`` before it."""
        self._run_one(token, cached, request, others)
        found: Array = self.machine.read("logits")[request]
        return found

    def _run_one(self, token: int, cached: int, request: int, others: Sequence[int] | None) -> None:
        """Let ``request`` read ``token``, behind ``cached`` ones. What others have leaves no room
        for more only where it is a prompt of which one token alone is asked, and that is known: its
        last row is written over."""
        batch, last = self.program.batch, self.program.capacity - 1
        tokens, before = [0] * batch, [min(count, last) for count in others or [0] * batch]
        tokens[request], before[request] = token, cached
        self._give_all(tokens, before)
        self.machine.run(self._step)


def prepare(
    program: StepProgram,
    machine: Machine,
    tensors: Mapping[str, Array],
    keeping: Keeping | None,
) -> None:
    """Give ``machine`` the memory of ``program``: packed weights, tables of angles by position, and
    zeros for all else. Raises what :class:`LanguageModel` does."""
    _store(program, machine, tensors, keeping)
    for place, frequencies in enumerate(program.frequencies):
        angles = np.arange(program.capacity)[:, None] * np.array(frequencies)
        machine.write(numbered("cosines", place), np.cos(angles).astype(np.float32))
        machine.write(numbered("sines", place), np.sin(angles).astype(np.float32))


def _store(
    program: StepProgram,
    machine: Machine,
    tensors: Mapping[str, Array],
    keeping: Keeping | None,
) -> None:
    """Pack the weights, those of each rank or node here in turn, and make the buffers."""
    if program.nodes is not None:
        _store_nodes(program, machine, tensors, keeping)
        return
    buffers = {name: np.zeros(b.shape, _DTYPES[b.dtype]) for name, b in program.buffers.items()}
    if program.ranks is None:
        for name, words in all_packed(program, tensors, keeping):
            machine.store(name, words)
        for name, zeros in buffers.items():
            machine.store(name, zeros)
        return
    if not isinstance(machine, RankedMachine):
        fail("run-refused", "a program of one rank among several was given to a single machine")
    for rank in machine.here:
        parts = RankTensors(program.ranks, tensors, rank)
        for name, words in all_packed(program, parts, keeping):
            machine.store_of(rank, name, words)
    for name, zeros in buffers.items():
        role = program.buffers[name].role
        if role in REACHED:
            machine.store_symmetric(name, zeros, role)
        else:
            machine.store(name, zeros)


def _store_nodes(
    program: StepProgram,
    machine: Machine,
    tensors: Mapping[str, Array],
    keeping: Keeping | None,
) -> None:
    """The same of a program of several nodes."""
    if not isinstance(machine, Nodes):
        fail("run-refused", "a program of several nodes was given to a single machine")
    own = on_each(program)
    for node in machine.here:
        for name, words in all_packed(own, NodeTensors(program, tensors, node), keeping):
            machine.store_of(node, name, words)
    for name, buffer in own.buffers.items():
        machine.store(name, np.zeros(buffer.shape, _DTYPES[buffer.dtype]))
    for node in machine.here:
        for name, bounds in bounds_of(program, node).items():
            machine.store_of(node, name, bounds)


def _check(program: StepProgram, prompt: Sequence[int], count: int, behind: int = 0) -> None:
    if not prompt:
        fail("run-refused", "the prompt holds no token")
    _check_tokens(program, prompt)
    held = behind + len(prompt)
    if held + count - 1 > program.capacity:  # nothing is cached of the last token
        fail(
            "run-refused",
            f"{held} prompt tokens and {count} new ones do not fit a cache of "
            f"{program.capacity} tokens",
            help="compile it with a larger --seq",
        )


def _check_requests(program: StepProgram, what: str, given: Sequence[int]) -> None:
    if len(given) != program.batch:
        fail("run-refused", f"{len(given)} {what}, and a step has {program.batch} requests")


def _check_tokens(program: StepProgram, tokens: Sequence[int]) -> None:
    wrong = [t for t in tokens if not _is_below(t, program.vocabulary)]
    if wrong:
        fail("run-refused", f"{wrong[0]} is no token id below {program.vocabulary}")


def _check_positions(program: StepProgram, cached: Sequence[int], full: bool = False) -> None:
    """Refuse positions that caches have no place for: of tokens to come, or with ``full`` of
    requests that may have no room for one."""
    wrong = [n for n in cached if not _is_below(n, program.capacity + full)]
    if wrong:
        fail(
            "run-refused",
            f"no token has {wrong[0]} before it: the program keeps {program.capacity}",
            help="compile it with a larger --seq",
        )


def _is_below(value: object, end: int) -> bool:
    """Whether ``value`` is a whole number from 0 to before ``end``."""
    return isinstance(value, (int, np.integer)) and bool(0 <= value < end)

"""A language model that serves: requests come and go, and a table says where each has its tokens.

A step has places for so many requests, whose tables the host writes between launches. A place
without a request has token -1, a vector of zeros that goes to no experts, at position 0 of the last
page of all, which is no request's: what it leaves there is never read, and columns of a step know
nothing of each other. So have columns for drafts that a request lacks, behind its tokens. A prompt
is read in pieces that begin at multiples of what a launch reads, so what is cached of a whole piece
depends on the tokens up to its end alone, to the bit.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.host import NO_LARGEST, Machine, prepare
from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.packing import Keeping
from meshc.backends.cuda.program import TASKS, StepProgram
from meshc.backends.cuda.tasks.groups import HANDED_ON

Array = NDArray[Any]
_LAYERS = f"{TASKS}_layers"
NOBODY = -1
"""The token of a row of a step that has none."""


@runtime_checkable
class BoundMachine(Protocol):
    """A machine that is used by one thread at a time, which says so."""

    def use_here(self) -> None:
        """The calling thread is the one that uses it from now on."""


class PagedModel:
    """The caches of ``program`` as pages that anybody hands out, and what reads and continues
    requests by them: a :class:`~meshc.serving.engines.PagedEngine`."""

    def __init__(
        self,
        program: StepProgram,
        machine: Machine,
        tensors: Mapping[str, Array],
        keeping: Keeping | None = None,
    ) -> None:
        """Packs and stores everything, what was packed before as ``keeping`` has it. Raises what
        :func:`~meshc.backends.cuda.host.prepare` does."""
        prepare(program, machine, tensors, keeping)
        self.program, self.machine = program, machine
        self._step = program.launches()
        self._choosing = program.chosen_launches(1) if self.chooses else []
        self._reader = next((one for one in program.prefills if one.inputs == TASKS), None)
        self._thread = threading.get_ident()
        self._tables = np.full((program.batch, program.capacity_pages), self.pages, np.int32)
        self._written: dict[str, Array] = {}
        self._handed = [n for n, b in program.buffers.items() if b.role == HANDED_ON]

    @property
    def requests(self) -> int:
        """Requests of a step."""
        return self.program.batch

    @property
    def capacity(self) -> int:
        """Tokens that a request may have: behind them its caches have places for drafts."""
        return min(self.program.capacity - self.drafts, self.pages * self.page)

    @property
    def drafts(self) -> int:
        """Drafts of a request that :meth:`verify` takes at the most."""
        return self.program.columns - 1

    @property
    def most(self) -> int:
        """Tokens of a prompt that :meth:`read` takes, in as many launches as they need."""
        return self.capacity

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.program.vocabulary

    @property
    def pages(self) -> int:
        """Pages that requests may have; the one behind these is that of nobody."""
        return self.program.pages - 1

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self.program.page

    @property
    def multiple(self) -> int:
        """Tokens of a prompt that a launch reads, one where steps read it."""
        return 1 if self._reader is None else self._reader.tokens

    @property
    def grouped(self) -> bool:
        """Whether :meth:`read` may pass some of the layers."""
        return _LAYERS in self.program.buffers

    @property
    def cuts_prompts(self) -> bool:
        """Whether prompts may be read piece by piece."""
        return True

    def lay(self, request: int, pages: Sequence[int]) -> None:
        """The tokens of ``request`` lie in these pages from now on, in their order."""
        self._tables[request] = self.pages
        self._tables[request, : len(pages)] = pages

    def embedded(self, ids: Sequence[int], position: int) -> Array:
        """What the first layer takes: the tokens themselves, which kernels look up."""
        return np.array(ids, np.int32)[:, None]

    def read(self, request: int, rows: Array, position: int, layers: range) -> Array:
        """Let ``rows`` pass ``layers`` behind ``position`` tokens of ``request``, a multiple of
        :attr:`multiple`; of a program that is not :attr:`grouped` these are all. Gives what the
        layer behind them takes, ``[tokens, lanes]``, which of all layers is of no use."""
        self._use()
        step, found = self.multiple, []
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            if self._reader is None:
                self._run({request: ([int(part[0, 0])], position + first)}, self._step)
            else:
                self._write(f"{TASKS}_pages", self._tables[[request]])
                found.append(self._read_piece(part, position + first, layers))
        return np.concatenate(found) if found else rows

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
        """The logits ``[vocab]`` behind a token of each request, by its place, at a position."""
        found = self.verify({request: ([token], at) for request, (token, at) in tokens.items()})
        return {request: logits[0] for request, logits in found.items()}

    def verify(self, tokens: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, Array]:
        """The logits ``[tokens, vocab]`` behind each of some tokens of each request, by its place,
        of which the first stands at a position: one, and up to :attr:`drafts` drafts behind it.
        What a token has depends on no token behind it, nor on whether it is a draft, to the bit."""
        self._use()
        self._run(tokens, self._step)
        logits = self.machine.read("logits").reshape(self.requests, self.program.columns, -1)
        return {request: logits[request, : len(ids)] for request, (ids, _) in tokens.items()}

    @property
    def chooses(self) -> bool:
        """Whether the program chooses tokens: one that verifies drafts does not."""
        return self.program.choice is not None

    def choose(
        self, tokens: Mapping[int, tuple[int, int]], draws: Mapping[int, tuple[Array, Array]]
    ) -> dict[int, int | None]:
        """What :meth:`step` does of ``tokens``, and the next token of each place of ``draws``, by
        the ``settings`` and the ``stream`` there; None where its logits have no largest number that
        is finite. No logits leave the machine."""
        self._use()
        left = np.zeros(self.requests, np.int32)
        settings = np.zeros((self.requests, 4), np.float32)
        stream = np.zeros((self.requests, 4), np.uint32)
        for place, draw in draws.items():
            left[place], (settings[place], stream[place]) = 1, draw
        self.machine.write("left", left)
        self.machine.write("stream", stream.view(np.int32))
        self._write("settings", settings)
        self._run({place: ([token], at) for place, (token, at) in tokens.items()}, self._choosing)
        chosen = self.machine.read("chosen")[0].tolist()
        return {place: None if chosen[place] == NO_LARGEST else chosen[place] for place in draws}

    def _run(
        self,
        tokens: Mapping[int, tuple[Sequence[int], int]],
        launches: Sequence[tuple[Launch, int]],
    ) -> None:
        columns = self.program.columns
        ids = np.full((self.requests, columns), NOBODY, np.int32)
        cached = np.zeros(self.requests, np.int32)
        tables = np.full_like(self._tables, self.pages)
        for request, (own, position) in tokens.items():
            ids[request, : len(own)], cached[request] = own, position
            tables[request] = self._tables[request]
        self._write("pages", tables)
        self.machine.write("tokens", ids.ravel())
        positions = cached[:, None] + np.arange(columns, dtype=np.int32)
        self.machine.write("cached", positions.ravel())
        self.machine.run(launches)

    def _read_piece(self, rows: Array, position: int, layers: range) -> Array:
        """What ``layers`` make of the ``rows`` of one launch."""
        if not self.grouped:
            self._launch(rows[:, 0], position)
            return rows
        self._write(_LAYERS, np.array([layers.start, layers.stop], np.int32))
        if layers.start == 0:
            self._launch(rows[:, 0], position)
        else:
            self._hand_over(rows)
            self._launch(np.zeros(len(rows), np.int32), position)  # which nobody looks up
        return self._handed_on(len(rows))

    def _launch(self, ids: Array, position: int) -> None:
        """Read a piece of a prompt; columns of no token have the last one."""
        columns = np.full(self.multiple, ids[-1], np.int32)
        columns[: len(ids)] = ids
        self.machine.write(f"{TASKS}_tokens", columns)
        self.machine.write(f"{TASKS}_count", np.array([len(ids)], np.int32))
        cached = np.arange(position, position + self.multiple, dtype=np.int32)
        self.machine.write(f"{TASKS}_cached", cached)
        assert self._reader is not None
        self.machine.run(self._reader.launches(False))

    def _hand_over(self, rows: Array) -> None:
        """Put ``rows`` where layers look for them; columns of no token have the last one."""
        at = 0
        for name in self._handed:
            *versions, tokens, lanes = self.program.buffers[name].shape
            width = int(np.prod(versions)) * lanes
            own = np.concatenate([rows, np.repeat(rows[-1:], tokens - len(rows), 0)])
            own = own[:, at : at + width].reshape(tokens, *versions, lanes)
            self.machine.write(name, np.moveaxis(own, 0, -2))
            at += width

    def _handed_on(self, count: int) -> Array:
        """The rows of ``count`` tokens that the last layer of a run has left."""
        found = [np.moveaxis(self.machine.read(name), -2, 0) for name in self._handed]
        return np.concatenate([one.reshape(len(one), -1) for one in found], 1)[:count]

    def _write(self, name: str, array: Array) -> None:
        """Write what the machine does not have already."""
        if not np.array_equal(self._written.get(name, ()), array):
            self._written[name] = array.copy()
            self.machine.write(name, array)

    def _use(self) -> None:
        """Let the calling thread be the one that uses the machine."""
        if self._thread != threading.get_ident() and isinstance(self.machine, BoundMachine):
            self.machine.use_here()
        self._thread = threading.get_ident()

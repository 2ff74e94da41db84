"""Running a schedule: the same scheduler that simulations drive, on a program that computes tokens.

The engine is one program with room for so many requests at once. An iteration of the scheduler is
carried out as it stands: prompt tokens pass the layers of their group, then one decode step
continues all who decode, and with them those whose prompts have just passed the last layer.
Prefill reads all tokens of a prompt but the last; the decode step takes that one and gives the
first token of the answer, in the same iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from meshc.serving.requests import Request
from meshc.serving.sampling import Sampler
from meshc.serving.scheduler import Iteration, Prefill, Progress, Scheduler
from meshc.support.diagnostics import MeshcError, fail

Array = NDArray[Any]

Choose = Callable[[Array], int]
"""The next token behind logits ``[vocab]``. Raises ``MeshcError`` where they give none."""


class Engine(Protocol):
    """A program that serves: ``requests`` at once, each with ``capacity`` tokens in its caches. It
    reads at most ``most`` tokens of a prompt at once; tokens are numbered from 0 to ``vocab`` - 1.
    """

    @property
    def requests(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def most(self) -> int: ...

    @property
    def vocab(self) -> int: ...

    def begin(self, request: int, known: int) -> None:
        """Another request comes to the caches of ``request``: forget what they hold but for the
        first ``known`` tokens. Behind these they hold numbers that do not matter."""

    def embedded(self, ids: Sequence[int], position: int) -> Array:
        """The rows ``[tokens, lanes]`` that ``ids`` begin with, the first one at ``position``."""

    def read(self, request: int, rows: Array, position: int, layers: range) -> Array:
        """Let ``rows`` pass ``layers``, behind ``position`` tokens that are cached of ``request``;
        what these layers give."""

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
        """The logits behind a token of each request, by its number, at a position."""


@dataclass
class Job:
    """A request being served, whose first ``given`` tokens end nothing. ``place`` is its number in
    the engine, whose caches hold the first ``known`` tokens of its prompt when it has ``begun``;
    ``rows`` are what the last group of layers gave for the part of its prompt that is being read.
    """

    name: int
    prompt: tuple[int, ...]
    most: int
    stop: Collection[int] = ()
    choose: Choose = field(default_factory=Sampler)
    given: int = 0
    tokens: list[int] = field(default_factory=list)
    place: int | None = None
    known: int = 0
    begun: bool = False
    rows: Array | None = None


@dataclass(frozen=True)
class Record:
    """What an iteration did: ``segments`` are (request, first token, token behind the last) of
    prompts that passed ``layers`` (first, one behind the last; None where no prompt was read).
    ``tokens`` has what requests got, ``first`` and ``ended`` who got their first and last one,
    ``stopped`` for whom that is a token to stop at, and ``failed`` why others, whose logits give no
    token, were given up."""

    number: int
    layers: tuple[int, int] | None
    segments: tuple[tuple[int, int, int], ...]
    decode: tuple[int, ...]
    tokens: dict[int, int]
    first: tuple[int, ...]
    ended: tuple[int, ...]
    stopped: frozenset[int]
    failed: dict[int, str]


class Server:
    """Continuous batching: requests enter, are read and continued, and leave.

    ``scheduler`` decides; its ``most_requests`` are at most those of the engine. Not to be called
    from several threads at once. With ``prefixes`` a request takes the caches of the one that has
    left and shares the longest beginning with it, of which nothing is read again.

    Errors: ``bad-argument`` for a policy of longer chunks than the engine reads.
    """

    def __init__(self, engine: Engine, scheduler: Scheduler, prefixes: bool = False) -> None:
        longest = min(scheduler.policy.chunk or engine.capacity, engine.capacity)
        if longest > engine.most:
            fail(
                "bad-argument",
                f"the program reads at most {engine.most} tokens of a prompt at once, and the "
                f"policy '{scheduler.policy.name}' up to {longest}",
                help="compile the program for chunks of that many tokens",
            )
        self.engine = engine
        self.scheduler = scheduler
        self.jobs: dict[int, Job] = {}
        self._free = list(range(engine.requests))
        self._left: dict[int, tuple[int, ...]] = {}  # tokens in caches of those that have left
        if prefixes:
            scheduler.known = self._known

    def submit(
        self,
        name: int,
        prompt: Sequence[int],
        most: int,
        stop: Collection[int] = (),
        choose: Choose | None = None,
        given: int = 0,
    ) -> None:
        """Queue request ``name``: ``prompt`` is continued by at most ``most`` tokens as ``choose``
        takes them, by default the most likely ones; one in ``stop`` behind the first ``given`` is
        the last.

        Errors: those of :meth:`check` and of :meth:`Scheduler.arrive`.
        """
        self.check(prompt, most)
        self.scheduler.arrive(Request(name, len(prompt), most))
        self.jobs[name] = Job(name, tuple(prompt), most, stop, choose or Sampler(), given)

    def check(self, prompt: Sequence[int], most: int) -> None:
        """Fail with ``request-too-large`` where the caches of a request have no room for ``prompt``
        and ``most`` tokens behind it, and with ``bad-argument`` where one of both is empty or a
        token is none. Nothing changes, so any thread may ask."""
        if not prompt or most < 1:
            fail("bad-argument", "a request has at least one token, and asks for at least one")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self.engine.vocab:
                words = f"token {token} is not in the vocabulary 0 .. {self.engine.vocab - 1}"
                fail("bad-argument", words)
        if len(prompt) + most - 1 > self.engine.capacity:
            fail(
                "request-too-large",
                f"{len(prompt)} prompt tokens and {most} new ones do not fit caches of "
                f"{self.engine.capacity} tokens",
                help="shorten the request, or compile with a larger --seq",
            )

    def cancel(self, name: int) -> None:
        """Forget request ``name`` and free its memory; nothing happens if it is not there."""
        self.scheduler.cancel(name)
        self._leave(name)

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return self.scheduler.idle

    @property
    def free(self) -> int:
        """How many more requests the engine has caches for."""
        return len(self._free)

    def step(self) -> Record | None:
        """Carry out the next iteration; None when there is nothing to do. A request whose logits
        give no token is given up by itself. Where the engine fails, all requests are given up
        before its error goes on."""
        iteration = self.scheduler.next()
        if iteration is None:
            return None
        try:
            decoding = list(iteration.decode)
            if iteration.prefill is not None:
                decoding += self._read(iteration.prefill)
            found, failed = self._continue(decoding)
        except Exception:
            for name in list(self.jobs):
                self.cancel(name)
            self._left.clear()
            self.scheduler.finish(iteration)
            raise
        stopped = {
            name
            for name, token in found.items()
            if token in self.jobs[name].stop and len(self.jobs[name].tokens) > self.jobs[name].given
        }
        progress = self.scheduler.finish(iteration, stopped | failed.keys())
        for name in progress.ended:
            self._leave(name, name in failed)
        return _record(iteration, found, progress, frozenset(stopped), failed)

    def _read(self, prefill: Prefill) -> list[int]:
        """Let prompts pass the layers of their group; who has now been read whole."""
        done = []
        for segment in prefill.segments:
            job = self.jobs[segment.request.name]
            if job.place is None:
                job.place = self._free.pop(0)
            if not job.begun:
                job.begun = True
                self._left.pop(job.place, None)
                self.engine.begin(job.place, job.known)
            stop = min(segment.stop, len(job.prompt) - 1)
            if stop > segment.start:
                rows = job.rows
                if rows is None:
                    rows = self.engine.embedded(job.prompt[segment.start : stop], segment.start)
                job.rows = self.engine.read(job.place, rows, segment.start, prefill.layers)
            if prefill.last:
                job.rows = None
                done += [job.name] if segment.stop == len(job.prompt) else []
        return done

    def _continue(self, names: Sequence[int]) -> tuple[dict[int, int], dict[int, str]]:
        """The next token of each request, or why there is none."""
        tokens: dict[int, tuple[int, int]] = {}
        places: dict[int, int] = {}
        for name in names:
            job = self.jobs[name]
            assert job.place is not None
            places[name] = job.place
            last = (job.tokens or job.prompt)[-1]
            tokens[job.place] = (last, len(job.prompt) - 1 + len(job.tokens))
        logits = self.engine.step(tokens) if tokens else {}
        found: dict[int, int] = {}
        failed: dict[int, str] = {}
        for name, place in places.items():
            job = self.jobs[name]
            try:
                found[name] = job.choose(logits[place])
            except MeshcError as error:
                failed[name] = error.diagnostics[0].message
            else:
                job.tokens.append(found[name])
        return found, failed

    def _known(self, name: int) -> int:
        """How many tokens of the prompt of request ``name`` are in the free caches that hold most
        of them, which are its own from now on: none where no caches are free. At least the last two
        tokens of a prompt are read, of which the step behind it takes one."""
        job = self.jobs[name]
        if job.place is None and self._free:
            shared = {place: _shared(self._left.get(place, ()), job.prompt) for place in self._free}
            job.place = max(self._free, key=lambda place: shared[place])
            self._free.remove(job.place)
            most = min(shared[job.place], len(job.prompt) - 2)
            job.known = max(0, most) // self.scheduler.multiple * self.scheduler.multiple
        return job.known

    def _leave(self, name: int, failed: bool = False) -> None:
        """Forget request ``name``. One that has got tokens and has not ``failed`` leaves all of
        them but the last in its caches."""
        job = self.jobs.pop(name, None)
        if job is None or job.place is None:
            return
        self._free.append(job.place)
        if job.tokens and not failed:
            self._left[job.place] = (*job.prompt, *job.tokens[:-1])


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _record(
    iteration: Iteration,
    tokens: dict[int, int],
    progress: Progress,
    stopped: frozenset[int],
    failed: dict[int, str],
) -> Record:
    prefill = iteration.prefill
    segments = prefill.segments if prefill else ()
    return Record(
        iteration.number,
        (prefill.layers.start, prefill.layers.stop) if prefill else None,
        tuple((s.request.name, s.start, s.stop) for s in segments),
        iteration.decode,
        tokens,
        tuple(name for name in progress.first if name in tokens),
        tuple(name for name in progress.ended if name in tokens),
        stopped,
        failed,
    )

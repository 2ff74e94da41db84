"""Running a schedule: the same scheduler that simulations drive, on a program that computes tokens.

The engine is one program with room for so many requests at once. An iteration of the scheduler is
carried out as it stands: prompt tokens pass the layers of their group, then one decode step
continues all who decode, and with them those whose prompts have just passed the last layer.
Prefill reads all tokens of a prompt but the last; the decode step takes that one and gives the
first token of the answer, in the same iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshc.serving.caches import Caches, Job, PagedCaches, WholeCaches
from meshc.serving.engines import PagedEngine, WholeEngine
from meshc.serving.requests import Request
from meshc.serving.sampling import Choose, Sampler
from meshc.serving.scheduler import Iteration, Prefill, Progress, Scheduler
from meshc.support.diagnostics import MeshcError, fail


@dataclass(frozen=True)
class Record:
    """What an iteration did: ``segments`` are (request, first token, token behind the last) of
    prompts that passed ``layers`` (first, one behind the last; None where no prompt was read).
    ``tokens`` has what requests got, ``first`` and ``ended`` who got their first and last one,
    ``stopped`` for whom that is a token to stop at, and ``failed`` why others, whose logits give no
    token, were given up. Those that were ``put_back`` begin again once there is memory for them,
    and get nothing that they have got before."""

    number: int
    layers: tuple[int, int] | None
    segments: tuple[tuple[int, int, int], ...]
    decode: tuple[int, ...]
    tokens: dict[int, int]
    first: tuple[int, ...]
    ended: tuple[int, ...]
    stopped: frozenset[int]
    failed: dict[int, str]
    put_back: tuple[int, ...] = ()


class Server:
    """Continuous batching: requests enter, are read and continued, and leave.

    ``scheduler`` decides; its ``most_requests`` are at most those of the engine. Not to be called
    from several threads at once. With ``prefixes`` nothing is read again that caches hold of what
    a prompt begins with.

    Errors: ``bad-argument`` for a policy of longer chunks than the engine reads.
    """

    def __init__(
        self, engine: WholeEngine | PagedEngine, scheduler: Scheduler, prefixes: bool = False
    ) -> None:
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
        self._caches: Caches
        if isinstance(engine, PagedEngine):
            self._caches = PagedCaches(engine, prefixes)
        else:
            self._caches = WholeCaches(engine, prefixes)
        if self._caches.room is not None:
            scheduler.room = self._caches.room
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
    def cache_tokens(self) -> int:
        """Tokens that caches have room for."""
        room = self._caches.room
        return self.engine.requests * self.engine.capacity if room is None else room.capacity

    @property
    def free(self) -> int:
        """How many more requests the engine has caches for."""
        return self._caches.free

    def step(self) -> Record | None:
        """Carry out the next iteration; None when there is nothing to do. A request whose logits
        give no token is given up by itself. Where the engine fails, all requests are given up
        before its error goes on."""
        iteration = self.scheduler.next()
        if iteration is None:
            return None
        for name in iteration.put_back:
            self._put_back(self.jobs[name])
        try:
            decoding = list(iteration.decode)
            if iteration.prefill is not None:
                decoding += self._read(iteration.prefill)
            found, failed = self._continue(decoding)
        except Exception:
            for name in list(self.jobs):
                self.cancel(name)
            self.scheduler.finish(iteration)
            self._caches.forget()
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
            if not job.begun:
                job.begun = True
                self._caches.begin(job)
            assert job.place is not None
            self._caches.ready(job)
            stop = min(segment.stop, len(job.prompt) - 1)
            if stop > segment.start:
                rows = job.rows
                if rows is None:
                    rows = self.engine.embedded(job.prompt[segment.start : stop], segment.start)
                job.rows = self.engine.read(job.place, rows, segment.start, prefill.layers)
            if prefill.last:
                job.rows = None
                self._caches.read(job, stop)
                done += [job.name] if segment.stop == len(job.prompt) else []
        return done

    def _continue(self, names: Sequence[int]) -> tuple[dict[int, int], dict[int, str]]:
        """The next token of each request, or why there is none. One that was put back goes on with
        the tokens that it has, whatever it would choose now."""
        tokens: dict[int, tuple[int, int]] = {}
        for name in names:
            job = self.jobs[name]
            assert job.place is not None
            self._caches.ready(job)
            last = job.tokens[job.steps - 1] if job.steps else job.prompt[-1]
            tokens[job.place] = (last, len(job.prompt) - 1 + job.steps)
        logits = self.engine.step(tokens) if tokens else {}
        found: dict[int, int] = {}
        failed: dict[int, str] = {}
        for name in names:
            job = self.jobs[name]
            assert job.place is not None
            job.steps += 1
            if job.steps <= len(job.tokens):
                continue
            try:
                found[name] = job.choose(logits[job.place])
            except MeshcError as error:
                failed[name] = error.diagnostics[0].message
            else:
                job.tokens.append(found[name])
        return found, failed

    def _known(self, name: int) -> int:
        """How many tokens of the prompt of request ``name`` need not be read."""
        return self._caches.known(self.jobs[name], self.scheduler.multiple)

    def _put_back(self, job: Job) -> None:
        """Let ``job`` begin again: its place is another one's."""
        self._caches.leave(job, False)
        job.place, job.begun, job.known, job.rows, job.steps = None, False, 0, None, 0

    def _leave(self, name: int, failed: bool = False) -> None:
        """Forget request ``name``, which may have ``failed``."""
        job = self.jobs.pop(name, None)
        if job is not None:
            self._caches.leave(job, not failed)


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
        iteration.put_back,
    )

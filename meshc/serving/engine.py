"""Running a schedule: the same scheduler that simulations drive, on a program that computes tokens.

The engine is one program with room for so many requests at once. An iteration of the scheduler is
carried out as it stands: prompt tokens pass the layers of their group, then one decode step
continues all who decode, and with them those whose prompts have just passed the last layer.
Prefill reads all tokens of a prompt but the last; the decode step takes that one and gives the
first token of the answer, in the same iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from meshc.serving.caches import Caches, Job, PagedCaches, WholeCaches
from meshc.serving.drafting import Drafter
from meshc.serving.engines import (
    Array,
    ChoosingEngine,
    MixingEngine,
    PagedEngine,
    VerifyingEngine,
    WholeEngine,
)
from meshc.serving.requests import Request
from meshc.serving.sampling import Choose, Sampler, refuse_logits
from meshc.serving.scheduler import Iteration, Prefill, Progress, Scheduler
from meshc.support.diagnostics import MeshcError, fail


@dataclass(frozen=True)
class Record:
    """What an iteration did: ``segments`` are (request, first token, token behind the last) of
    prompts that passed ``layers`` (first, one behind the last; None where no prompt was read).
    ``tokens`` has what requests got, one each or with drafts several, ``first`` and ``ended`` who
    got their first and last one, ``stopped`` for whom that is a token to stop at, and ``failed``
    why others, whose logits give no token, were given up. Those that were ``put_back`` begin again
    once there is memory for them, and get nothing that they have got before."""

    number: int
    layers: tuple[int, int] | None
    segments: tuple[tuple[int, int, int], ...]
    decode: tuple[int, ...]
    tokens: dict[int, tuple[int, ...]]
    first: tuple[int, ...]
    ended: tuple[int, ...]
    stopped: frozenset[int]
    failed: dict[int, str]
    put_back: tuple[int, ...] = ()


@dataclass
class Guesses:
    """How many tokens were ``drafted``, and how many of them ``accepted``: chosen as drafted."""

    drafted: int = 0
    accepted: int = 0


class Server:
    """Continuous batching: requests enter, are read and continued, and leave.

    ``scheduler`` decides; its ``most_requests`` are at most those of the engine. Not to be called
    from several threads at once. With ``prefixes`` nothing is read again that caches hold of what
    a prompt begins with. What the ``drafter`` guesses is verified by an engine that can.

    Errors: ``bad-argument`` for a policy of longer chunks than the engine reads.
    """

    def __init__(
        self,
        engine: WholeEngine | PagedEngine,
        scheduler: Scheduler,
        prefixes: bool = False,
        drafter: Drafter | None = None,
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
        self._drafter = drafter if isinstance(engine, VerifyingEngine) else None
        self.guesses = Guesses()
        self._beside: dict[int, tuple[int, int]] = {}

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
            read = [] if iteration.prefill is None else self._read(iteration.prefill)
            ahead = self._ahead(iteration.decode)
            found, failed, steps = self._continue([*iteration.decode, *read], ahead)
            if isinstance(self.engine, MixingEngine):
                self._share(found)
        except Exception:
            self._beside.clear()
            for name in list(self.jobs):
                self.cancel(name)
            self.scheduler.finish(iteration)
            self._caches.forget()
            raise
        stopped = {name for name in found if self._stopped(self.jobs[name])}
        more = {name: count - 1 for name, count in steps.items() if count > 1}
        progress = self.scheduler.finish(iteration, stopped | failed.keys(), more)
        for name in progress.ended:
            self._leave(name, name in failed)
        tokens = {name: tuple(own) for name, own in found.items()}
        return _record(iteration, tokens, progress, frozenset(stopped), failed)

    @staticmethod
    def _stopped(job: Job) -> bool:
        """Whether the last token of ``job`` is one to stop at."""
        return job.tokens[-1] in job.stop and len(job.tokens) > job.given

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
            if isinstance(self.engine, MixingEngine):
                if stop > segment.start:
                    self._beside[job.name] = segment.start, stop
            elif stop > segment.start:
                rows = job.rows
                if rows is None:
                    rows = self.engine.embedded(job.prompt[segment.start : stop], segment.start)
                job.rows = self.engine.read(job.place, rows, segment.start, prefill.layers)
            if prefill.last:
                job.rows = None
                if job.name not in self._beside:
                    self._caches.read(job, stop)
                done += [job.name] if segment.stop == len(job.prompt) else []
        return done

    def _share(self, continued: Collection[int]) -> None:
        """What was read of prompts beside requests that go on is in their caches, and so is what
        these got, of which an engine that mixes tokens leaves the same."""
        for name, (_, stop) in self._beside.items():
            self._caches.read(self.jobs[name], stop)
        self._beside.clear()
        for job in (self.jobs[name] for name in continued):
            self._caches.read(job, len(job.prompt) - 1 + job.steps)

    def _continue(
        self, names: Sequence[int], ahead: Mapping[int, Sequence[int]]
    ) -> tuple[dict[int, list[int]], dict[int, str], dict[int, int]]:
        """The next tokens of each request, of which some are read ``ahead``, or why there are none,
        and how many steps it has taken. One that was put back goes on with the tokens that it has,
        whatever it would choose now."""
        tokens: dict[int, tuple[list[int], int]] = {}
        for name in names:
            job = self.jobs[name]
            assert job.place is not None
            self._caches.ready(job)
            last = job.tokens[job.steps - 1] if job.steps else job.prompt[-1]
            tokens[job.place] = ([last, *ahead.get(name, ())], len(job.prompt) - 1 + job.steps)
        draws = self._draws(names)
        logits: Mapping[int, Array] = {}
        chosen: Mapping[int, int | None] = {}
        if isinstance(self.engine, MixingEngine):
            mixed = self._with_prompts(tokens)
            if mixed and draws is None:
                rows = self.engine.mix(mixed, [*tokens])
                logits = {place: row[None] for place, row in rows.items()}
            elif mixed and draws is not None:
                chosen = self.engine.mix_chosen(mixed, draws)
        elif tokens and draws is None:
            logits = self._logits(tokens)
        elif tokens and draws is not None:
            assert isinstance(self.engine, ChoosingEngine)
            chosen = self.engine.choose(_single(tokens), draws)
        found: dict[int, list[int]] = {}
        failed: dict[int, str] = {}
        steps: dict[int, int] = {}
        for name in names:
            job = self.jobs[name]
            assert job.place is not None
            before, new = job.steps, len(job.tokens)
            try:
                if draws is None:
                    self._take(job, tokens[job.place][0][1:], logits[job.place])
                else:
                    _take_chosen(job, chosen.get(job.place))
            except MeshcError as error:
                failed[name] = error.diagnostics[0].message
            if len(job.tokens) > new:
                found[name] = job.tokens[new:]
            steps[name] = job.steps - before
        return found, failed, steps

    def _with_prompts(
        self, tokens: Mapping[int, tuple[list[int], int]]
    ) -> dict[int, tuple[list[int], int]]:
        """The ``tokens`` of places that go on, and those of prompts that are read beside them."""
        found = dict(tokens)
        for name, (start, stop) in self._beside.items():
            job = self.jobs[name]
            assert job.place is not None
            own, _ = tokens.get(job.place, ([], stop))
            found[job.place] = [*job.prompt[start:stop], *own], start
        return found

    def _logits(self, tokens: Mapping[int, tuple[Sequence[int], int]]) -> Mapping[int, Array]:
        """The logits behind some tokens of each place, ``[tokens, vocab]``."""
        if self._drafter is not None:
            assert isinstance(self.engine, VerifyingEngine)
            return self.engine.verify(tokens)
        return {place: row[None] for place, row in self.engine.step(_single(tokens)).items()}

    def _draws(self, names: Sequence[int]) -> dict[int, tuple[Array, Array]] | None:
        """How the program chooses the next token, by places, of all who do not have it already;
        None where the host does, since the program does not or since somebody asks for logits."""
        if not (isinstance(self.engine, ChoosingEngine) and self.engine.chooses):
            return None
        found = {}
        for job in (self.jobs[name] for name in names):
            if job.steps < len(job.tokens):
                continue
            if not isinstance(job.choose, Sampler):
                return None
            assert job.place is not None
            found[job.place] = job.choose.draw
        return found

    def _ahead(self, names: Sequence[int]) -> dict[int, list[int]]:
        """What is read of each request behind its next token: tokens that it has had before it was
        put back, and drafts."""
        if self._drafter is None or not isinstance(self.engine, VerifyingEngine):
            return {}
        known: dict[int, list[int]] = {}
        wanted: dict[int, tuple[list[int], int]] = {}
        for name in names:
            job = self.jobs[name]
            held = len(job.prompt) + job.steps
            room = self._caches.stretch(job, held + self.engine.drafts) - held
            most = min(room, self.engine.drafts, job.most - job.steps - 1)
            known[name] = job.tokens[job.steps :][:most]
            if len(known[name]) < most:
                wanted[name] = [*job.prompt, *job.tokens], most - len(known[name])
        drafts = self._drafter.draft(wanted) if wanted else {}
        return {name: [*own, *self._sound(drafts.get(name, ()))] for name, own in known.items()}

    def _sound(self, drafts: Sequence[int]) -> list[int]:
        """``drafts`` up to the first that is no token."""
        return list(takewhile(lambda token: 0 <= token < self.engine.vocab, drafts))

    def _take(self, job: Job, ahead: Sequence[int], logits: Array) -> None:
        """Let ``job`` go on by the ``logits`` behind its next token and behind each of those that
        were read ``ahead``, as far as these are the ones that it gets. Raises what choosing does.
        """
        drafted = len(ahead) - max(len(job.tokens) - job.steps, 0)
        self.guesses.drafted += max(drafted, 0)
        for row, guess in zip(logits, [*ahead, None], strict=True):
            job.steps += 1
            known = job.steps <= len(job.tokens)
            if not known:
                job.tokens.append(job.choose(row))
            if guess != job.tokens[job.steps - 1]:
                return
            self.guesses.accepted += not known
            if not known and self._stopped(job):
                return

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
            if self._drafter is not None:
                self._drafter.leave(name)


def _single(tokens: Mapping[int, tuple[Sequence[int], int]]) -> dict[int, tuple[int, int]]:
    """The first token of each place, with its position."""
    return {place: (own[0], at) for place, (own, at) in tokens.items()}


def _take_chosen(job: Job, token: int | None) -> None:
    """Let ``job`` go on by a step whose ``token`` the program chose, None where it found none, or
    by one whose token ``job`` has already. Raises ``run-refused``."""
    job.steps += 1
    if job.steps <= len(job.tokens):
        return
    if token is None:
        refuse_logits()
    job.tokens.append(token)
    assert isinstance(job.choose, Sampler)
    job.choose.pass_over()


def _record(
    iteration: Iteration,
    tokens: dict[int, tuple[int, ...]],
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

"""Discrete events: requests arrive, and pools of GPUs carry out the scheduler's iterations.

The scheduler is the object that also drives real programs; the simulator only keeps the clocks. An
iteration starts when its pool is free and has something to do; a request that arrives meanwhile is
seen by the next one. Everything is determined by the requests and the costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from meshc.cost.serving_costs import ServingCosts
from meshc.serving.requests import Request
from meshc.serving.scheduler import Iteration, Pool, Scheduler


@dataclass(frozen=True)
class Arrival:
    """``request`` comes at ``seconds`` after the start."""

    seconds: float
    request: Request


@dataclass
class Trip:
    """A request's way: seconds of its arrival, first and last token; ``first_step`` is the first
    decode iteration that it took part in, of ``steps`` in all; ``first_gap`` the seconds between
    its first two tokens where these came from different pools, to the second of which its keys and
    values had come at ``moved``; ``known_tokens`` those of its prompt that were in caches and were
    not read."""

    arrived: float
    prompt_tokens: int
    output_tokens: int
    first: float = inf
    last: float = inf
    first_step: int = 0
    steps: int = 0
    first_gap: float | None = None
    known_tokens: int = 0
    moved: float | None = None


@dataclass
class Run:
    """What happened. ``step_seconds`` and ``step_requests``: duration of each decode iteration and
    the requests that got a token; ``prefill_tokens``: prompt tokens of each iteration that read
    some. ``evicted_tokens``: those that were kept for later requests and gave way to others;
    ``moved_bytes``: keys and values that went from pool to pool."""

    trips: list[Trip]
    step_seconds: list[float] = field(default_factory=list)
    step_requests: list[int] = field(default_factory=list)
    step_ends: list[float] = field(default_factory=list)
    prefill_tokens: list[int] = field(default_factory=list)
    expert_bytes: float = 0.0
    joules: float = 0.0
    seconds: float = 0.0
    evicted_tokens: int = 0
    moved_bytes: float = 0.0


@dataclass
class _Clock:
    """A pool of GPUs: what its iterations cost, and the one under way with its end."""

    cost: ServingCosts
    iteration: Iteration | None = None
    ends: float = inf
    began: float = 0.0
    busy: float = 0.0


class Simulator:
    """Runs ``arrivals`` (by time) through ``scheduler``; ``costs`` are those of its pools.

    Keys and values go from pool to pool one behind the other: those of a whole prompt when it has
    been read or, ``streamed``, those of each iteration that reads some when it ends.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        costs: dict[Pool, ServingCosts],
        arrivals: Sequence[Arrival],
        streamed: bool = False,
    ) -> None:
        self.streamed, self._link_free = streamed, 0.0
        self.scheduler = scheduler
        self.clocks = {pool: _Clock(cost) for pool, cost in costs.items()}
        self.arrivals = sorted(arrivals, key=lambda a: (a.seconds, a.request.name))
        self.found = Run(
            [Trip(a.seconds, a.request.prompt_tokens, a.request.output_tokens) for a in arrivals]
        )
        self.trips = {
            arrival.request.name: trip
            for arrival, trip in zip(arrivals, self.found.trips, strict=True)
        }
        self.moving: list[tuple[float, int]] = []
        self._begun: dict[int, int] = {}
        self.context = 0
        self.now = 0.0

    def run(self) -> Run:
        """From the first arrival to the last token."""
        coming = 0
        while True:
            next_arrival = self.arrivals[coming].seconds if coming < len(self.arrivals) else inf
            next_move = self.moving[0][0] if self.moving else inf
            pool = min(self.clocks, key=lambda p: self.clocks[p].ends)
            next_end = self.clocks[pool].ends
            self.now = min(next_arrival, next_move, next_end)
            if self.now == inf:
                break
            if next_arrival <= self.now:
                self.scheduler.arrive(self.arrivals[coming].request)
                coming += 1
            elif next_move <= self.now:
                _, name = heapq.heappop(self.moving)
                self._join(name)
            else:
                self._finish(pool)
            if coming == len(self.arrivals) or self.arrivals[coming].seconds > self.now:
                for each in self.clocks:
                    self._start(each)
        self._settle()
        return self.found

    def _start(self, pool: Pool) -> None:
        clock = self.clocks[pool]
        if clock.iteration is not None:
            return
        iteration = self.scheduler.next(pool)
        if iteration is None:
            return
        prefill, decodes = iteration.prefill, len(iteration.decode)
        if prefill is None:
            load = clock.cost.iteration(decodes, self.context)
        else:
            chunks = [(s.start, s.stop) for s in prefill.segments]
            for segment in prefill.segments:
                self._begun.setdefault(segment.request.name, segment.start)
            done = [s for s in prefill.segments if s.stop == s.request.prompt_tokens]
            heads = len(done) if prefill.last else 0
            context = self.context if decodes else 0
            load = clock.cost.iteration(decodes, context, chunks, prefill.layers, heads)
            self.found.prefill_tokens.append(prefill.tokens)
        clock.iteration, clock.began, clock.ends = iteration, self.now, self.now + load.seconds
        clock.busy += load.seconds
        self.found.expert_bytes += load.expert_bytes
        self.found.joules += load.joules

    def _finish(self, pool: Pool) -> None:
        clock = self.clocks[pool]
        iteration = clock.iteration
        assert iteration is not None
        clock.iteration, clock.ends = None, inf
        if iteration.decode:
            self.found.step_seconds.append(self.now - clock.began)
            self.found.step_requests.append(len(iteration.decode))
            self.found.step_ends.append(self.now)
            self.context += len(iteration.decode)
        if pool == "prefill" and self.streamed:
            self._send_read(iteration)
        progress = self.scheduler.finish(iteration)
        for name in progress.first:
            self.trips[name].first = self.trips[name].last = self.now
            if name not in progress.ended and not self.scheduler.policy.disaggregated:
                self._decodes(name)
            elif name not in progress.ended:
                if not self.streamed:
                    self._send(self.trips[name].prompt_tokens, len(clock.cost.model.layers))
                heapq.heappush(self.moving, (self._link_free, name))
        for name in progress.ended:
            trip = self.trips[name]
            trip.last = self.now
            if trip.output_tokens > 1:
                trip.steps = len(self.found.step_seconds) - trip.first_step
                self.context -= trip.prompt_tokens + trip.output_tokens - 1

    def _send_read(self, iteration: Iteration) -> None:
        """Keys and values that ``iteration`` made, and with the first ones of a request those that
        were known."""
        assert iteration.prefill is not None
        for segment in iteration.prefill.segments:
            if segment.request.output_tokens > 1:
                first = segment.start == self._begun[segment.request.name]
                tokens = segment.stop if first else segment.tokens
                self._send(tokens, len(iteration.prefill.layers))

    def _send(self, tokens: int, layers: int) -> None:
        """Keys and values of ``tokens`` in ``layers`` go to the pool that continues requests, at
        the pace of the slower pool, when what goes before them has come."""
        one, other = self.clocks["prefill"].cost, self.clocks["decode"].cost
        size = other.cache_bytes(tokens, layers)
        seconds = max(one.transfer_seconds(size), other.transfer_seconds(size))
        self._link_free = max(self._link_free, self.now) + seconds
        self.found.moved_bytes += size
        self.found.joules += one.transfer_joules(size)

    def _join(self, name: int) -> None:
        self.scheduler.join(name)
        self._decodes(name)
        trip = self.trips[name]
        trip.moved = self.now
        under_way = self.clocks["decode"].iteration is not None
        trip.first_step += under_way  # it has missed the iteration under way

    def _decodes(self, name: int) -> None:
        trip = self.trips[name]
        trip.first_step = len(self.found.step_seconds)
        self.context += trip.prompt_tokens

    def _settle(self) -> None:
        """Energy of GPUs while they waited, and the gaps between pools."""
        run = self.found
        run.seconds = self._last_token()
        run.evicted_tokens = self.scheduler.evicted_tokens
        for name, start in self._begun.items():
            self.trips[name].known_tokens = start
        for clock in self.clocks.values():
            run.joules += clock.cost.idle_joules(max(0.0, run.seconds - clock.busy))
        if self.scheduler.policy.disaggregated:
            for trip in run.trips:
                if trip.steps:
                    trip.first_gap = run.step_ends[trip.first_step] - trip.first

    def _last_token(self) -> float:
        """Seconds from the start to the last token of all."""
        return max((trip.last for trip in self.found.trips), default=0.0)

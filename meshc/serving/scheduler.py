"""The scheduler: which prompt tokens pass which layers, and who decodes, iteration by iteration.

It knows nothing of time. Whoever drives it (a simulator, or an executor of real programs) tells it
of requests that arrive or are cancelled, asks for the next iteration, carries it out, and says that
it is done::

    scheduler.arrive(request)
    iteration = scheduler.next()
    ...                                # carry it out
    progress = scheduler.finish(iteration)

Decoding never stalls: every iteration of a pool that decodes has all of its running requests. A
request gets a token in each, or more where a program verifies drafts.
Requests are admitted in the order of their arrival, but for long prompts where a policy limits how
many of them are read at once. An admitted request holds room for all tokens that it may come to
have, so none is ever put back and none starves; or, where memory has pages, room for those that it
has. Where these run out, the one that was admitted last is put back in front of those that wait and
begins again, so the first one always goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from meshc.cost.layer_groups import balanced_groups
from meshc.serving.policies import Policy
from meshc.serving.prefixes import PrefixMemory
from meshc.serving.requests import Memory, Request, Room
from meshc.support.diagnostics import fail

Pool = Literal["all", "prefill", "decode"]
"""GPUs that work together: all of them, or those that only read prompts or only continue them."""


@dataclass(frozen=True)
class Segment:
    """Tokens ``start`` to ``stop`` (exclusive) of the prompt of ``request``."""

    request: Request
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """How many they are."""
        return self.stop - self.start


@dataclass(frozen=True)
class Prefill:
    """``segments`` pass ``layers``; ``last`` says that these are the last of the model's."""

    segments: tuple[Segment, ...]
    layers: range
    last: bool

    @property
    def tokens(self) -> int:
        """Prompt tokens that pass the layers."""
        return sum(segment.tokens for segment in self.segments)

    @property
    def work(self) -> int:
        """Prompt tokens times layers."""
        return self.tokens * len(self.layers)


@dataclass(frozen=True)
class Iteration:
    """One pass over all layers of a pool: every request of ``decode`` (names, in the order in which
    their prompts were finished) gets a token, and ``prefill`` moves on, if there is any. Those in
    ``put_back`` have lost their memory before it and wait again.

    ``number`` counts the iterations of its pool.
    """

    pool: Pool
    number: int
    prefill: Prefill | None
    decode: tuple[int, ...]
    put_back: tuple[int, ...] = ()


@dataclass(frozen=True)
class Progress:
    """What an iteration brought about, by name: ``first`` have got their first token, ``ended``
    their last one and left."""

    first: tuple[int, ...]
    ended: tuple[int, ...]


@dataclass
class _Wave:
    """Tokens that pass the layers together, and the groups that are left."""

    segments: tuple[Segment, ...]
    groups: deque[range]


@dataclass
class _Running:
    """The requests that decode, by the number of the decode step that is their last."""

    last_step: dict[int, int] = field(default_factory=dict)
    ending: dict[int, list[int]] = field(default_factory=dict)
    step: int = 0

    def join(self, name: int, tokens: int) -> None:
        last = self.step + tokens
        self.last_step[name] = last
        self.ending.setdefault(last, []).append(name)

    def left(self, name: int) -> int | None:
        """How many steps are left of request ``name``; None where it does not decode."""
        last = self.last_step.get(name)
        return None if last is None else last - self.step

    def hasten(self, name: int, tokens: int) -> None:
        """The next step gives request ``name`` so many tokens more than one."""
        last = self.last_step.get(name)
        if last is not None:
            self.ending[last].remove(name)
            self.last_step[name] = last - tokens
            self.ending.setdefault(last - tokens, []).append(name)

    def leave(self, name: int) -> None:
        last = self.last_step.pop(name, None)
        if last is not None and last in self.ending:
            self.ending[last].remove(name)

    def advance(self) -> list[int]:
        """One token for all; those whose last one it was, who leave."""
        self.step += 1
        ended = self.ending.pop(self.step, [])
        for name in ended:
            del self.last_step[name]
        return ended


class Scheduler:
    """Schedules requests for a model whose layers cost ``layer_costs`` (any positive unit).

    ``kv_tokens``: tokens whose keys and values a pool has room for, ``reading_tokens`` another
    number of the pool that only reads prompts, where they stay until they have been sent. ``room``
    may be set to memory of another kind before anything arrives. ``most_requests``: requests
    that are read or continued at once. Prompts are cut at multiples of ``multiple`` tokens, which
    programs of a mesh ask for. ``known`` says how many tokens of a request that is about to be
    admitted are in the caches that it gets; they are not read. With ``prefixes`` the pool that
    reads prompts keeps what requests begin with, for those that come after them.

    Errors: ``bad-argument`` for chunks of fewer tokens than that.
    """

    def __init__(
        self,
        policy: Policy,
        layer_costs: Sequence[float],
        kv_tokens: int,
        most_requests: int = 1024,
        multiple: int = 1,
        known: Callable[[int], int] = lambda name: 0,
        prefixes: bool = False,
        reading_tokens: int | None = None,
    ) -> None:
        for chunk in (policy.chunk, policy.long_chunk):
            if chunk is not None and chunk < multiple:
                words = f"prompts are cut at multiples of {multiple} tokens"
                fail("bad-argument", f"a chunk of {chunk} tokens is too short: {words}")
        self.policy = policy
        self.multiple = multiple
        self.known = known
        self.layer_costs = tuple(layer_costs)
        self.most_requests = most_requests
        room = kv_tokens if reading_tokens is None else reading_tokens
        reading = PrefixMemory(room) if prefixes else Memory(room)
        self._reading_memory = reading
        self.room: Room = Memory(kv_tokens) if policy.disaggregated else reading
        self._waiting: dict[int, Request] = {}
        self._unread: dict[int, tuple[Request, int]] = {}
        self._wave: _Wave | None = None
        self._moving: dict[int, Request] = {}
        self._running = _Running()
        self._requests: dict[int, Request] = {}
        self._in_flight: dict[Pool, Iteration] = {}
        self._cancelled: set[int] = set()
        self._numbers: dict[Pool, int] = {}
        self._decode: tuple[int, ...] | None = ()
        self._divisions: dict[int, tuple[range, ...]] = {}
        self._had: dict[int, int] = {}  # tokens of those that were put back

    # --- what comes and goes

    def arrive(self, request: Request) -> None:
        """Queue ``request``. Errors: ``request-too-large`` when it can never fit; ``bad-argument``
        for a name that is in use or a count of tokens below one."""
        if min(request.prompt_tokens, request.output_tokens) < 1:
            fail("bad-argument", f"request {request.name} needs at least one token of each kind")
        if request.name in self._requests or request.name in self._waiting:
            fail("bad-argument", f"there is a request {request.name} already")
        most, sound = self.room.capacity, self.room.suffices(request)
        if self.policy.disaggregated:
            most = min(most, self._reading_memory.capacity)
            sound = sound and request.tokens <= most
        if not sound:
            fail(
                "request-too-large",
                f"request {request.name} may come to hold {request.tokens} tokens, but the device "
                f"has room for the keys and values of {most}",
                help="shorten it, or take more GPUs",
            )
        self._waiting[request.name] = request

    def cancel(self, name: int) -> None:
        """Forget request ``name`` and free its memory: at once, or when the iterations that it is
        part of are done. Nothing happens to a request that is not there."""
        if self._waiting.pop(name, None) is not None:
            self._had.pop(name, None)
            return
        if name not in self._requests:
            return
        if any(_takes_part(name, iteration) for iteration in self._in_flight.values()):
            self._cancelled.add(name)
        else:
            self._forget(name)

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._requests and not self._waiting

    def knows(self, name: int) -> bool:
        """Whether request ``name`` waits, is read or is continued."""
        return name in self._requests or name in self._waiting

    @property
    def waiting(self) -> int:
        """Requests that have arrived and are not admitted yet."""
        return len(self._waiting)

    @property
    def decoding(self) -> int:
        """Requests that are continued."""
        return len(self._running.last_step)

    @property
    def held_tokens(self) -> int:
        """Tokens of keys and values that are reserved, in all pools."""
        pools = {id(pool): pool.used for pool in (self.room, self._reading_memory)}
        return sum(pools.values())

    @property
    def evicted_tokens(self) -> int:
        """Tokens whose keys and values were kept for later requests and gave way to others."""
        return self._reading_memory.evicted

    # --- iterations

    def next(self, pool: Pool = "all") -> Iteration | None:
        """The next iteration of ``pool``; None when it has nothing to do. The one before must be
        finished."""
        split = self.policy.disaggregated
        if split == (pool == "all") or pool in self._in_flight:
            words = "is under way" if pool in self._in_flight else "does not exist"
            fail("bad-argument", f"an iteration of the pool '{pool}' {words}")
        put_back = tuple(self._make_room()) if pool != "prefill" else ()
        decode = self._decoding_names() if pool != "prefill" else ()
        prefill = self._next_prefill(len(decode)) if pool != "decode" else None
        if prefill is None and not decode:
            return None
        number = self._numbers.get(pool, 0)
        self._numbers[pool] = number + 1
        found = Iteration(pool, number, prefill, decode, put_back)
        self._in_flight[pool] = found
        return found

    def finish(
        self,
        iteration: Iteration,
        stopped: Collection[int] = (),
        more: Mapping[int, int] | None = None,
    ) -> Progress:
        """``iteration`` has been carried out. Requests in ``stopped`` have got a token that ends
        them before their last one. Of those that decode some have got ``more`` tokens than one, by
        so many, never more than they asked for."""
        if self._in_flight.get(iteration.pool) is not iteration:
            fail("bad-argument", f"iteration {iteration.number} is not the one under way")
        del self._in_flight[iteration.pool]
        for name, tokens in (more or {}).items():
            self._running.hasten(name, tokens)
        ended = self._running.advance() if iteration.decode else []
        ended += [n for n in iteration.decode if n in stopped and n in self._running.last_step]
        first = self._finish_prefill(iteration.prefill) if iteration.prefill else []
        done = set(stopped)
        ended += [n for n in first if self._requests[n].output_tokens == 1 or n in done]
        for name in ended:
            self._forget(name)
        for name in [n for n in self._cancelled if not self._is_in_flight(n)]:
            self._cancelled.discard(name)
            self._forget(name)
        for name in first:
            if name in self._requests:
                self._moving[name] = self._requests[name]
                if not self.policy.disaggregated:
                    self.join(name)
        return Progress(tuple(first), tuple(ended))

    def join(self, name: int) -> None:
        """The keys and values of request ``name`` have reached the pool that continues it. Only for
        policies with two pools; a request that has been cancelled is left alone."""
        request = self._moving.pop(name, None)
        if request is not None:
            if self.policy.disaggregated:
                self._reading_memory.free(name)
            missed = "decode" in self._in_flight  # an iteration that it is no part of
            self._running.join(name, request.output_tokens - 1 + missed)
            self._decode = None

    # --- how it is done

    def _make_room(self) -> Iterable[int]:
        """Give all that decode room for their next token, those first that were admitted first; who
        was put back for that, the last ones of all."""
        if not self.room.grows:
            return
        for name in [name for name in self._requests if name in self._running.last_step]:
            while name in self._requests and not self.room.grow(name, self._tokens(name) + 1):
                last = next(reversed(self._requests))
                self._put_back(last)
                yield last

    def _tokens(self, name: int) -> int:
        """The tokens whose keys and values request ``name`` has."""
        left = self._running.left(name)
        request = self._requests[name]
        return request.prompt_tokens if left is None else request.tokens - left - 1

    def _put_back(self, name: int) -> None:
        request, self._had[name] = self._requests[name], self._tokens(name)
        self._forget(name)
        self._waiting = {name: request, **self._waiting}

    def _is_in_flight(self, name: int) -> bool:
        return any(_takes_part(name, iteration) for iteration in self._in_flight.values())

    def _decoding_names(self) -> tuple[int, ...]:
        if self._decode is None:
            self._decode = tuple(self._running.last_step)
        return self._decode

    def _next_prefill(self, decoding: int) -> Prefill | None:
        if self._wave is None:
            segments = tuple(self._take(self.policy.wave_tokens(decoding)))
            if not segments:
                return None
            self._wave = _Wave(segments, deque(self._groups(sum(s.tokens for s in segments))))
        wave = self._wave
        return Prefill(wave.segments, wave.groups[0], len(wave.groups) == 1)

    def _groups(self, tokens: int) -> tuple[range, ...]:
        count = min(self.policy.groups(tokens), len(self.layer_costs))
        if count not in self._divisions:
            self._divisions[count] = balanced_groups(self.layer_costs, count)
        return self._divisions[count]

    def _take(self, limit: int) -> Iterable[Segment]:
        """Segments of at most ``limit`` tokens in the order of arrival; a policy without chunks
        takes prompts whole, the first however long it is. Long prompts get no more than theirs, and
        those that are too many are passed over."""
        policy, left, long = self.policy, limit, 0
        coming = [*self._unread.values(), *((request, 0) for request in self._waiting.values())]
        for request, read in coming:
            if left < 1:
                return
            waits = request.name in self._waiting
            if waits:
                read = self.known(request.name) or self._reading_memory.known(request)
            tokens, most = request.prompt_tokens - read, left
            if policy.long_chunk is not None and tokens > policy.long_chunk:
                if long == policy.long_prompts:
                    continue
                long, most = long + 1, min(left, policy.long_chunk)
            if policy.chunk is not None:
                tokens = self._cut(tokens, most)
            elif tokens > left and left < limit:
                return
            if tokens < 1 or (waits and not self._admitted(request)):
                return
            yield self._segment(request, read, tokens)
            left -= min(left, tokens)

    def _cut(self, tokens: int, left: int) -> int:
        """How many of the last ``tokens`` of a prompt are read where ``left`` may be."""
        return tokens if tokens <= left else max(0, left) // self.multiple * self.multiple

    def _admitted(self, request: Request) -> bool:
        """Whether there is room for ``request``, which then holds it."""
        split = self.policy.disaggregated
        if len(self._requests) >= self.most_requests:
            return False
        reading, tokens = self._reading_memory, request.prompt_tokens
        if split and not reading.fits(request, tokens):
            return False
        if not self.room.admit(request, self._had.get(request.name, tokens)):
            return False
        if split:
            reading.hold(request, tokens)
        self._had.pop(request.name, None)
        self._requests[request.name] = self._waiting.pop(request.name)
        return True

    def _segment(self, request: Request, read: int, limit: int) -> Segment:
        stop = min(request.prompt_tokens, read + limit)
        self._unread.pop(request.name, None)
        if stop < request.prompt_tokens:
            self._unread[request.name] = (request, stop)
        return Segment(request, read, stop)

    def _finish_prefill(self, prefill: Prefill) -> list[int]:
        """Names of requests whose whole prompt has now passed the last layer."""
        wave = self._wave
        assert wave is not None
        wave.groups.popleft()
        if wave.groups:
            return []
        self._wave = None
        found = [s.request.name for s in wave.segments if s.stop == s.request.prompt_tokens]
        found = [name for name in found if name in self._requests]
        for name in found:
            self._reading_memory.read(name)
        return [name for name in found if name not in self._cancelled]

    def _forget(self, name: int) -> None:
        self._requests.pop(name, None)
        self._unread.pop(name, None)
        self._moving.pop(name, None)
        self._running.leave(name)
        self.room.free(name)
        self._reading_memory.free(name)
        self._decode = None
        if self._wave is not None:
            kept = tuple(s for s in self._wave.segments if s.request.name != name)
            self._wave = _Wave(kept, self._wave.groups) if kept else None


def _takes_part(name: int, iteration: Iteration) -> bool:
    prefill = iteration.prefill
    read = prefill is not None and any(s.request.name == name for s in prefill.segments)
    return read or name in iteration.decode

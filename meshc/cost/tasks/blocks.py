"""Blocks that stay on a GPU for all phases of a step, as discrete events.

All blocks share one memory, which answers in the order in which it is asked, at its rate and no
sooner than its latency. Each block has a ring of tiles. Its tiles are asked for in order, of all
phases one after another, as long as the ring has room and no more are on their way than a limit. It
computes them in order. Phases are apart: when the last block has computed its tiles of one, all
blocks are told; each then reads what the next phase's tasks need from L2 and gets it ready. Both
take no time of memory, but wait where many tiles are on their way. Meanwhile rings fill. Between
other phases only the blocks of each cluster meet, in their shared memory.

An event is a tile that is asked for, a meeting or what is read behind it, in the order of time;
what a block computes follows from when its tiles come and needs none. Where memory has been busy
for a while many tiles are followed at once (:mod:`meshc.cost.tasks.streaming`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from meshc.cost.tasks.streaming import Numbers, Streaming, streamed

SIGNAL_WAYS = 6
"""Ways to L2 and back, one after another, until all blocks know of the last one: what it gave is
written, it is counted, the count is read."""
FOR_NOTHING = 4
"""Where hardly any tiles could be followed at once, so many times as many as there are blocks are
followed one by one before it is tried again."""


class Tile(NamedTuple):
    """Bytes of a tile, the seconds that the warp which brings tiles is busy with asking for it, and
    those that the block computes at it."""

    bytes: float
    asking: float
    computing: float


Tiles = Sequence[Tile]


@dataclass(frozen=True)
class Shared:
    """How a block reads what lies in L2: at ``rate`` and behind ``latency``."""

    rate: float
    latency: float
    waits: float


@dataclass(frozen=True)
class Memory:
    """What blocks share: bytes per second from memory, and seconds from asking to the answer; those
    until all blocks know that the last one has ended a phase, by a ``signal`` or by the ``word``
    that they need, or until those of the next ``kernel`` begin; ``shared``, how they read L2.

    What goes to L2 goes the way of what has been asked of memory and waits where that waits. Every
    second that this would have to wait, behind its latency, costs a meeting ``signal_waits`` or
    ``word_waits`` and a read ``shared.waits``."""

    rate: float
    latency: float
    signal: float
    signal_waits: float
    shared: Shared
    word: float = 0.0
    word_waits: float = 0.0
    kernel: float = 0.0


@dataclass(frozen=True)
class Ring:
    """Tiles that a block has room for, and how many are on their way at once; only ``early`` of
    them, if that is not 0, until the block has what it needs of the others behind the meeting in
    front of their phase. ``ahead`` more are asked for into L2 before the ring has room for them; of
    these L2 keeps a share until then."""

    tiles: int
    flying: int
    ahead: int = 0
    kept: float = 1.0
    early: int = 0


@dataclass(frozen=True)
class Run:
    """What each block does in a phase: its tiles, the bytes that it reads first, so many at once
    and then the next ones, and the seconds until these are ready for its tasks, the last ``first``
    of which tiles are asked for as usual. A block without
    either only takes part in the meeting, which is by a counter or by ``tags`` in words. Where only
    the blocks of each ``cluster`` meet in front of it, they have what they need of each other
    ``told`` seconds behind the last of them. A meeting of the GPUs of all ranks, which are alike,
    takes ``linked`` seconds more over their links. Where experts are ``chosen`` behind
    the meeting, a block knows what comes next once it has prepared what it needs; ``late`` tiles,
    with vectors beside them, are asked for when it is ready for them. Others are as early as there
    is room, but those of a run that begins a ``kernel``: they are asked for once that has begun,
    behind the last block of the kernel in front of it."""

    tiles: Sequence[Tiles]
    read: Sequence[float]
    ready: float
    at_once: float = inf
    cluster: int = 0
    told: float = 0.0
    tags: bool = False
    linked: float = 0.0
    chosen: bool = False
    late: bool = False
    kernel: bool = False
    first: float = 0.0


@dataclass
class Spent:
    """Seconds of a phase, from the end of the one before to its own: ``computing``, waiting for
    ``memory``, ``meeting`` (being told, reading and preparing what is needed) and ``idle`` behind
    the last tile are means over the blocks, and together ``seconds``. ``unasked`` are those in
    which memory had nothing to do."""

    seconds: float = 0.0
    computing: float = 0.0
    memory: float = 0.0
    meeting: float = 0.0
    idle: float = 0.0
    unasked: float = 0.0


class Stay(NamedTuple):
    """What a block does in a phase: it has waited since ``begun`` to be told and to have what its
    tasks need, which is there at ``ready``; it computes its last tile until ``ended``, and of that
    time has ``waited`` so many seconds for memory."""

    phase: int
    block: int
    begun: float
    ready: float
    waited: float
    ended: float


@dataclass
class _Block:
    """One block: its tiles of all phases, when they came and were computed."""

    number: int
    tiles: list[Tile]
    numbers: Numbers  # seconds of memory, of asking and of computing of each tile
    ends: list[int]  # of the tiles of each phase
    came: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    asked: float = 0.0  # when the warp that asks is free
    stored: list[float] = field(default_factory=list)  # when what was asked for ahead is in L2
    phase: int = 0
    now: float = 0.0  # when it has computed what has come
    begun: float = 0.0  # when the meeting in front of the phase began
    since: float = 0.0  # when it last had what a phase's tasks need
    known: float = 0.0  # since when it may ask for its next tiles, as far as these are late
    usual: float = 0.0  # since when as many of the phase's tiles may be on their way as usual
    waited: float = 0.0  # for memory in the phase
    may: bool = False  # whether it has what the phase's tasks need
    parked: bool = False  # whether its next tile waits for a place in the ring, or is late


def simulate(
    runs: Sequence[Run], memory: Memory, ring: Ring, stays: list[Stay] | None = None
) -> list[Spent]:
    """What the blocks of ``runs``, phases in order, spend their time on. What each block does in
    each phase is added to ``stays``, in the order in which they end."""
    return _Machine(runs, memory, ring, [] if stays is None else stays).run() if runs else []


class _Machine:
    """The state of all blocks, and the events that are to come: a time, and a block whose next tile
    is asked for then, or as many as there are blocks for a meeting and one more for reading."""

    def __init__(self, runs: Sequence[Run], memory: Memory, ring: Ring, stays: list[Stay]) -> None:
        self.runs, self.memory, self.ring, self.stays = runs, memory, ring, stays
        different = {id(tiles): tiles for run in runs for tiles in run.tiles}
        alike = {key: self.numbers(tiles) for key, tiles in different.items()}
        self.blocks = []
        for number, parts in enumerate(zip(*(run.tiles for run in runs), strict=True)):
            tiles = [*chain.from_iterable(parts)]
            numbers = np.concatenate([alike[id(part)] for part in parts])
            self.blocks.append(_Block(number, tiles, numbers, [*accumulate(map(len, parts))]))
        self.spent = [Spent() for _ in runs]
        # Phases whose tiles nobody asks for before their meeting.
        self.gates = [
            n for n, run in enumerate(runs) if run.chosen or run.late or (run.kernel and n)
        ]
        # Phases in front of which all meet: their tiles are asked for early, fewer at a time.
        self.meets = [n for n, run in enumerate(runs) if n and not (run.cluster or run.kernel)]
        self.phase, self.ended, self.last, self.begun = 0, 0, 0.0, 0.0
        self.kernel = 0  # the phase that the last kernel began with
        self.free = 0.0  # when memory has answered all that it was asked for
        self.apart = ring.ahead > 0 or ring.tiles <= ring.flying or any(run.cluster for run in runs)
        self.steady = 0  # tiles in a row for which memory was busy
        self.ways = 0  # that the last block's word has to go until all others know
        self.left: list[list[tuple[int, float]]] = []  # what blocks still read: see _in_turns
        self.together: dict[tuple[int, int], list[_Block]] = {}  # by phase and cluster
        self.events: list[tuple[float, int]] = []

    def run(self) -> list[Spent]:
        """Until all phases have ended."""
        count = len(self.blocks)
        first = ((self.next(block), block.number) for block in self.blocks)
        self.events = [(now, number) for now, number in first if now is not None]
        self.events.append((self.runs[0].linked, count + 1))
        heapq.heapify(self.events)
        while self.events:
            if self.steady >= count:
                self.stream()
                continue
            now, number = self.events[0]
            if number < count:
                self.ask(self.blocks[number], now)
                continue
            heapq.heappop(self.events)
            if number == count:
                self.tell(now)
            else:
                self.read(now)
        return self.spent

    def answered(self, now: float, seconds: float) -> float:
        """When memory has answered what is asked for now and takes it so long."""
        if now > self.free:
            self.spent[self.phase].unasked += now - self.free
            self.free = now
        self.free += seconds
        return self.free

    def ask(self, block: _Block, now: float) -> None:
        """Ask for the next tile of ``block``, whose event is the first."""
        memory, tile = self.memory, block.tiles[len(block.came)]
        if self.ring.ahead:
            answer = self.ask_ahead(block, now, tile.bytes)
        else:
            answer = self.answered(now, tile.bytes / memory.rate)
        soonest = now + memory.latency
        steady = answer >= soonest and now >= block.usual and block.may and not self.apart
        self.steady = self.steady + 1 if steady else min(self.steady, 0)
        block.came.append(answer if answer > soonest else soonest)
        block.asked = now + tile.asking
        if block.may:
            self.compute(block)
        after = self.next(block)
        if after is None:
            heapq.heappop(self.events)
        else:
            heapq.heapreplace(self.events, (after, block.number))

    def numbers(self, tiles: Tiles) -> Numbers:
        """Seconds of memory, of asking and of computing, a row for each of ``tiles``."""
        return np.array(tiles, np.float64).reshape(-1, 3) / (self.memory.rate, 1, 1)

    def stream(self) -> None:
        """Follow many tiles at once, those of all blocks that ask for some: up to the next event of
        another kind, and before the last block ends the phase."""
        count, flying = len(self.blocks), self.ring.flying
        asking = [
            (now, number)
            for now, number in self.events
            if number < count
            and len(self.blocks[number].came) >= flying
            and self.as_usual(self.blocks[number], now)
        ]
        others = [event for event in self.events if event not in asking]
        until = min(others, default=(inf, count))[0]
        blocks = [self.blocks[number] for _, number in asking]
        given = [self.streaming(self.blocks[number], now) for now, number in asking]
        most = count - self.ended - 1
        found, self.free = streamed(given, self.free, self.memory.latency, until, most)
        for block, one in zip(blocks, found, strict=True):
            block.came += one.came
            block.asked = max(block.asked, one.asked)
            if one.done:
                begun = len(block.done)
                block.done += one.done
                block.now = one.done[-1]
                spent = self.spent[block.phase]
                spent.memory += one.waited
                block.waited += one.waited
                spent.computing += float(block.numbers[begun : len(block.done), 2].sum())
                if len(block.done) == block.ends[block.phase]:
                    self.end_phase(block)
            after = self.next(block)
            if after is not None:
                others.append((after, block.number))
        self.events = others
        heapq.heapify(self.events)
        few = sum(len(one.came) for one in found) < count
        self.steady = -FOR_NOTHING * count if few else 0

    def streaming(self, block: _Block, now: float) -> Streaming:
        """What is known of the next tiles of ``block``, the first one of which it asks for now: up
        to the last one for which its ring has room when all of the phase is computed."""
        at, ring = len(block.came), self.ring.tiles
        end = block.ends[block.phase] if block.may else len(block.done)
        last, usual = min(end + ring, self.known_before(block)), self.met_before(block)
        known = [-inf] * max(ring - at, 0) + block.done[max(at - ring, 0) :]
        return Streaming(
            block.number,
            block.numbers[at : min(last, usual)],
            now,
            max(end - at, 0),
            block.now,
            block.came[-self.ring.flying :],
            known + [inf] * (ring - len(known)),
            usual < last,
        )

    def ask_ahead(self, block: _Block, now: float, size: float) -> float:
        """The same where tiles are asked for into L2 before: when the queue has answered. What is
        there comes again from L2; what is still on its way is not asked for twice."""
        memory, at = self.memory, len(block.came)
        for ahead in block.tiles[len(block.stored) : at + 1 + self.ring.ahead]:
            block.stored.append(self.answered(now, ahead.bytes / memory.rate))
        if block.stored[at] > now:
            return block.stored[at]
        kept = size * self.ring.kept
        again = kept / (memory.shared.rate * len(self.blocks)) + (size - kept) / memory.rate
        return self.answered(now, again)

    def next(self, block: _Block) -> float | None:
        """When the next tile is asked for; None where that is not known yet, or there is none."""
        at, now = len(block.came), block.asked
        if at == len(block.tiles):
            return None
        if self.gates:
            if at >= self.known_before(block):
                block.parked = True
                return None
            now = max(now, block.known)
        now = max(now, self.allowed(block, at))
        behind = at - self.ring.tiles
        if behind >= 0:
            if behind >= len(block.done):
                block.parked = True
                return None
            now = max(now, block.done[behind])
        return now

    def allowed(self, block: _Block, at: int) -> float:
        """When no more tiles are on their way to ``block`` than may be with the one ``at`` this
        place."""
        flying, early = self.ring.flying, self.ring.early
        few = block.came[at - early] if at >= early > 0 else 0.0
        usual = block.came[at - flying] if at >= flying else 0.0
        if not early:
            return usual
        usual = max(usual, block.usual)
        return few if at >= self.met_before(block) else min(few, usual)

    def as_usual(self, block: _Block, now: float) -> bool:
        """Whether as many of the next tiles as usual are on their way to ``block``."""
        if not self.ring.early:
            return True
        return block.usual <= now and len(block.came) < self.met_before(block)

    def met_before(self, block: _Block) -> int:
        """How many tiles of ``block`` are those of phases behind no meeting to come."""
        if not self.ring.early:
            return len(block.tiles)
        to_come = bisect_left(self.meets, block.phase + (1 if block.may else 0))
        return block.ends[self.meets[to_come] - 1] if self.meets[to_come:] else len(block.tiles)

    def known_before(self, block: _Block) -> int:
        """How many tiles of ``block`` are known: those in front of the next choice, of the next
        late ones that it has, or of the next kernel."""
        for phase in self.gates[bisect_left(self.gates, block.phase + (1 if block.may else 0)) :]:
            run, first = self.runs[phase], block.ends[phase - 1] if phase else 0
            begins = run.kernel and phase > self.kernel
            if begins or run.chosen or (run.late and block.ends[phase] > first):
                return first
        return len(block.tiles)

    def compute(self, block: _Block) -> None:
        """What follows from the tiles that have come, up to the end of the phase."""
        spent, now, at = self.spent[block.phase], block.now, len(block.done)
        end = block.ends[block.phase]
        come = min(end, len(block.came))
        for came, tile in zip(block.came[at:come], block.tiles[at:come], strict=True):
            if came > now:
                spent.memory += came - now
                block.waited += came - now
                now = came
            spent.computing += tile.computing
            now += tile.computing
            block.done.append(now)
        block.now = now
        if len(block.done) == end:
            self.end_phase(block)
        if block.parked:
            block.parked = False
            after = self.next(block)
            if after is not None:
                heapq.heappush(self.events, (after, block.number))

    def end_phase(self, block: _Block) -> None:
        """The block has ended the phase; the last one of all, or of its cluster, calls a
        meeting."""
        self.stays.append(
            Stay(block.phase, block.number, block.begun, block.since, block.waited, block.now)
        )
        block.may, block.waited = False, 0.0
        block.phase += 1
        if block.phase < len(self.runs) and self.runs[block.phase].cluster:
            self.meet_in_cluster(block, self.runs[block.phase])
            return
        self.ended += 1
        self.last = max(self.last, block.now)
        self.spent[block.phase - 1].idle -= block.now
        if self.ended == len(self.blocks):
            heapq.heappush(self.events, (self.last, len(self.blocks)))

    def meet_in_cluster(self, block: _Block, run: Run) -> None:
        """The block waits for the others of its cluster; the last one lets all go on with
        ``run``."""
        key = block.phase, block.number // run.cluster
        members = self.together.setdefault(key, [])
        members.append(block)
        if len(members) < run.cluster:
            return
        last = max(one.now for one in members)
        for one in members:
            self.spent[one.phase - 1].idle += last - one.now
            has_tiles = one.ends[one.phase] > len(one.done)
            ready = run.ready if has_tiles else 0.0
            self.spent[one.phase].meeting += run.told + ready
            one.now = last + run.told + ready
            one.may, one.begun, one.since = True, last, one.now
            if run.chosen or (run.late and has_tiles):
                one.known = one.now - (run.first if has_tiles and not run.late else 0.0)
        for one in self.together.pop(key):
            self.compute(one)

    def tell(self, now: float) -> None:
        """The last block has ended its phase, or what it does to tell the others has gone one of
        its ways."""
        if not self.ways:
            self.close(now)
            self.ways = SIGNAL_WAYS
        self.ways -= 1
        memory, count = self.memory, len(self.blocks)
        told, waits = memory.signal, memory.signal_waits
        if self.phase < len(self.runs):
            run = self.runs[self.phase]
            if run.kernel:
                told, waits = memory.kernel, 0.0
            elif run.tags:
                told, waits = memory.word, memory.word_waits
            told += run.linked
        taken = (told + waits * self.waiting(now)) / SIGNAL_WAYS
        heapq.heappush(self.events, (now + taken, count if self.ways else count + 1))

    def close(self, now: float) -> None:
        """The last block has ended its phase, and those between which only clusters have met."""
        first, count = self.phase, len(self.blocks)
        self.phase += 1
        while self.phase < len(self.runs) and self.runs[self.phase].cluster:
            self.phase += 1
        self.spent[self.phase - 1].idle += count * now
        parts = ("computing", "memory", "meeting", "idle")
        for spent in self.spent[first : self.phase]:
            for name in parts:
                setattr(spent, name, getattr(spent, name) / count)
            spent.seconds = sum(getattr(spent, name) for name in parts)
        if self.phase == first + 1:
            self.spent[first].seconds = now - self.begun
        self.begun, self.ended = now, 0

    def waiting(self, now: float) -> float:
        """Seconds that what is asked of memory now waits, beside its latency."""
        return max(self.free - now - self.memory.latency, 0.0)

    def read(self, now: float) -> None:
        """Blocks read what the tasks of the phase need, as soon as they know that it is there, or
        have what they asked for before; those that have all of it go on."""
        if self.phase == len(self.runs):
            return
        run, shared = self.runs[self.phase], self.memory.shared
        if not self.left:
            self.left = _in_turns(run.read, run.at_once)
            if run.kernel:
                self.launch(now)
        behind = now + shared.latency + shared.waits * self.waiting(now)
        for number, size in self.left.pop():
            block = self.blocks[number]
            has_tiles = block.ends[self.phase] > len(block.done)
            ready = run.ready if size or has_tiles else 0.0
            block.now = (behind + size / shared.rate if size else now) + ready
            block.may, block.begun, block.since = True, self.begun, block.now
            if run.chosen or (run.late and has_tiles):
                block.known = block.now - (run.first if ready and not run.late else 0.0)
            if self.ring.early and self.phase in self.meets:
                block.usual = block.now - (run.first if ready else 0.0)
            self.spent[self.phase].meeting += block.now - self.begun
            self.compute(block)
        if self.left:
            heapq.heappush(self.events, (behind + run.at_once / shared.rate, len(self.blocks) + 1))
        if self.ring.early:
            self.ask_as_usual()

    def ask_as_usual(self) -> None:
        """Blocks that have waited until few tiles were on their way ask for the next ones."""
        count = len(self.blocks)
        asking = [number for _, number in self.events if number < count]
        self.events = [event for event in self.events if event[1] >= count]
        for block in map(self.blocks.__getitem__, asking):
            after = self.next(block)
            if after is not None:
                self.events.append((after, block.number))
        heapq.heapify(self.events)

    def launch(self, now: float) -> None:
        """The kernel of the phase begins: its tiles may be asked for."""
        self.kernel = self.phase
        for block in self.blocks:
            block.known = max(block.known, now)
            if block.parked and (after := self.next(block)) is not None:
                block.parked = False
                heapq.heappush(self.events, (after, block.number))


def _in_turns(sizes: Sequence[float], at_once: float) -> list[list[tuple[int, float]]]:
    """Which blocks, of which each reads so many bytes, read the rest of them in a turn in which
    all read ``at_once`` or what is left, and how much that is; the last turn first."""
    turns = [max(ceil(size / at_once) - 1, 0) for size in sizes]
    found: list[list[tuple[int, float]]] = [[] for _ in range(max(turns) + 1)]
    for number, (size, turn) in enumerate(zip(sizes, turns, strict=True)):
        found[-1 - turn].append((number, size - turn * at_once if turn else size))
    return found

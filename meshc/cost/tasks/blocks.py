"""Blocks that stay on a GPU for all phases of a step, as discrete events.

All blocks share one memory, which answers in the order in which it is asked: at its rate what comes
from it, at another one what the blocks read again from L2, and no sooner than its latency. Each
block has a ring of tiles. Its tiles are asked for in order, of all phases one after another, as
long as the ring has room and no more are on their way than a limit. It computes them in order.
Phases are apart: when the last block has computed its tiles of one, all blocks are told; each then
reads what the next phase's tasks need, which waits in the memory's queue behind what has been asked
for, and gets it ready. Meanwhile rings fill.

An event is a tile that is asked for, a meeting or what is read behind it, in the order of time;
what a block computes follows from when its tiles come and needs none.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

Tiles = Sequence[tuple[float, float]]
"""Bytes of each tile of a block, and the seconds that it computes at it."""


@dataclass(frozen=True)
class Memory:
    """What blocks share: bytes per second from memory and, of what is there already, from L2;
    seconds from asking to the answer, and until all blocks know that the last one has ended a
    phase."""

    rate: float
    shared_rate: float
    latency: float
    signal: float


@dataclass(frozen=True)
class Ring:
    """Tiles that a block has room for, and how many are on their way at once. ``ahead`` more are
    asked for into L2 before the ring has room for them."""

    tiles: int
    flying: int
    ahead: int = 0


@dataclass(frozen=True)
class Run:
    """What each block does in a phase: its tiles, the bytes that it reads first, and the seconds
    until these are ready for its tasks. A block without either only takes part in the meeting."""

    tiles: Sequence[Tiles]
    read: Sequence[float]
    ready: float


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


@dataclass
class _Block:
    """One block: its tiles of all phases, when they came and were computed."""

    number: int
    sizes: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # of the tiles of each phase
    came: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    stored: list[float] = field(default_factory=list)  # when what was asked for ahead is in L2
    phase: int = 0
    now: float = 0.0  # when it has computed what has come
    may: bool = False  # whether it has what the phase's tasks need
    parked: bool = False  # whether its next tile waits for a place in the ring


def simulate(runs: Sequence[Run], memory: Memory, ring: Ring) -> list[Spent]:
    """What the blocks of ``runs``, phases in order, spend their time on."""
    return _Machine(runs, memory, ring).run() if runs else []


class _Machine:
    """The state of all blocks, and the events that are to come: a time, and a block whose next tile
    is asked for then, or as many as there are blocks for a meeting and one more for reading."""

    def __init__(self, runs: Sequence[Run], memory: Memory, ring: Ring) -> None:
        self.runs, self.memory, self.ring = runs, memory, ring
        self.blocks = [_Block(b) for b in range(len(runs[0].tiles))]
        for run in runs:
            for block, tiles in zip(self.blocks, run.tiles, strict=True):
                block.sizes += [size for size, _ in tiles]
                block.costs += [cost for _, cost in tiles]
                block.ends.append(len(block.sizes))
        self.spent = [Spent() for _ in runs]
        self.phase, self.ended, self.last, self.begun = 0, 0, 0.0, 0.0
        self.free = 0.0  # when memory has answered all that it was asked for
        self.events: list[tuple[float, int]] = []

    def run(self) -> list[Spent]:
        """Until all phases have ended."""
        count = len(self.blocks)
        self.events = [(0.0, number) for number in range(count) if self.blocks[number].sizes]
        self.events.append((0.0, count + 1))
        heapq.heapify(self.events)
        while self.events:
            now, number = self.events[0]
            if number < count:
                self.ask(self.blocks[number], now)
                continue
            heapq.heappop(self.events)
            if number == count:
                heapq.heappush(self.events, (self.told(now), count + 1))
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
        memory, size = self.memory, block.sizes[len(block.came)]
        if self.ring.ahead:
            answer = self.ask_ahead(block, now, size)
        else:
            answer = self.answered(now, size / memory.rate)
        soonest = now + memory.latency
        block.came.append(answer if answer > soonest else soonest)
        if block.may:
            self.compute(block)
        after = self.next(block, now)
        if after is None:
            heapq.heappop(self.events)
        else:
            heapq.heapreplace(self.events, (after, block.number))

    def ask_ahead(self, block: _Block, now: float, size: float) -> float:
        """The same where tiles are asked for into L2 before: when the queue has answered. What is
        there comes again from L2; what is still on its way is not asked for twice."""
        memory, at = self.memory, len(block.came)
        for ahead in block.sizes[len(block.stored) : at + 1 + self.ring.ahead]:
            block.stored.append(self.answered(now, ahead / memory.rate))
        if block.stored[at] > now:
            return block.stored[at]
        return self.answered(now, size / memory.shared_rate)

    def next(self, block: _Block, now: float) -> float | None:
        """When the next tile is asked for; None where that is not known yet, or there is none."""
        at = len(block.came)
        if at == len(block.sizes):
            return None
        if at >= self.ring.flying:
            now = max(now, block.came[at - self.ring.flying])
        behind = at - self.ring.tiles
        if behind >= 0:
            if behind >= len(block.done):
                block.parked = True
                return None
            now = max(now, block.done[behind])
        return now

    def compute(self, block: _Block) -> None:
        """What follows from the tiles that have come, up to the end of the phase."""
        spent, now, at = self.spent[block.phase], block.now, len(block.done)
        end = block.ends[block.phase]
        for came, cost in zip(block.came[at:end], block.costs[at:end], strict=False):
            if came > now:
                spent.memory += came - now
                now = came
            spent.computing += cost
            now += cost
            block.done.append(now)
        block.now = now
        if len(block.done) == end:
            self.end_phase(block)
        if block.parked and len(block.came) - self.ring.tiles < len(block.done):
            block.parked = False
            after = self.next(block, 0.0)
            assert after is not None
            heapq.heappush(self.events, (after, block.number))

    def end_phase(self, block: _Block) -> None:
        """The block has ended the phase; the last one of all calls a meeting."""
        block.may = False
        block.phase += 1
        self.ended += 1
        self.last = max(self.last, block.now)
        self.spent[self.phase].idle -= block.now
        if self.ended == len(self.blocks):
            heapq.heappush(self.events, (self.last, len(self.blocks)))

    def told(self, now: float) -> float:
        """The last block has ended its phase: when all of them know."""
        spent, count = self.spent[self.phase], len(self.blocks)
        spent.idle += count * now
        spent.seconds = now - self.begun
        for name in ("computing", "memory", "meeting", "idle"):
            setattr(spent, name, getattr(spent, name) / count)
        self.begun, self.ended = now, 0
        self.phase += 1
        return now + self.memory.signal

    def read(self, now: float) -> None:
        """All blocks read what the tasks of the phase need, as soon as they know that it is
        there."""
        if self.phase == len(self.runs):
            return
        run, memory = self.runs[self.phase], self.memory
        for block, size in zip(self.blocks, run.read, strict=True):
            block.now = now
            if size:
                answer = self.answered(now, size / memory.shared_rate)
                block.now = max(answer, now + memory.latency) + run.ready
            elif block.ends[self.phase] > len(block.done):
                block.now += run.ready
            self.spent[self.phase].meeting += block.now - self.begun
            block.may = True
        for block in self.blocks:
            self.compute(block)

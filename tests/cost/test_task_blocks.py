"""Blocks with rings over one memory: by hand, and drawn ones against a clock of single ticks."""

import random
from dataclasses import dataclass, field, replace

import pytest

from meshc.cost.tasks.blocks import SIGNAL_WAYS, Memory, Ring, Run, Shared, Tile, simulate

SHARED = Shared(rate=1.0, latency=0.0, waits=0.0)


def memory_of(latency=0.0, signal=0.0, signal_waits=0.0, shared=SHARED):
    """One that gives a byte a second."""
    return Memory(1.0, latency, signal, signal_waits, shared)


EASY = memory_of()


def tile(size, computing):
    """A tile that is asked for in no time."""
    return Tile(size, 0, computing)


def seconds(runs, memory=EASY, ring=None):
    return [spent.seconds for spent in simulate(runs, memory, ring or Ring(8, 4))]


def test_one_tile():
    """Asked for at 0, 10 bytes arrive at 10 or after the latency; then it is computed."""
    runs = [Run([[tile(10, 3)]], [0], 0)]
    assert seconds(runs) == [13]
    assert seconds(runs, memory_of(latency=12)) == [15]


def test_memory_answers_in_the_order_in_which_it_is_asked():
    runs = [Run([[tile(10, 0)], [tile(10, 0)], [tile(10, 0)]], [0, 0, 0], 0)]
    (spent,) = simulate(runs, EASY, Ring(8, 4))
    assert spent.seconds == 30 and spent.idle == (20 + 10 + 0) / 3 and spent.unasked == 0


def test_a_ring_without_room_does_not_ask():
    """Two places: the third tile is asked for when the first one is computed, at 1 + 50."""
    runs = [Run([[tile(1, 50)] * 3], [0], 0)]
    (spent,) = simulate(runs, EASY, Ring(2, 2))
    assert spent.seconds == 151 and spent.unasked == 49


def test_only_so_many_are_on_their_way():
    """One at a time: each tile waits for the latency of the one before."""
    runs = [Run([[tile(1, 0)] * 3], [0], 0)]
    assert seconds(runs, memory_of(latency=10), Ring(8, 1)) == [30]
    assert seconds(runs, memory_of(latency=10), Ring(8, 3)) == [10]


def test_asking_takes_time():
    """The third tile is asked for at 14, comes at 15 and is computed in 2."""
    runs = [Run([[Tile(1, 7, 2)] * 3], [0], 0)]
    assert seconds(runs) == [17]


def test_a_meeting_waits_for_the_last_block_and_for_what_has_been_asked_for():
    """The first phase ends at 20, as one block has asked for both tiles before the other; all know
    at 22. What they need waits for half of what memory waits for, 30 - 22, and is ready 5 later."""
    runs = [
        Run([[tile(5, 0)], [tile(5, 0)]], [0, 0], 0),
        Run([[tile(10, 1)], [tile(10, 1)]], [1, 1], 5),
    ]
    first, second = simulate(runs, memory_of(signal=2, shared=Shared(1, 0, 0.5)), Ring(8, 4))
    assert first.seconds == 20 and first.meeting == 0
    assert second.meeting == pytest.approx(2 + 4 + 1 + 5)
    assert second.seconds == pytest.approx(12 + 1) and second.memory == 0


def test_a_signal_waits_on_each_of_its_ways():
    """The first phase ends at 4; the other block's three tiles keep memory busy to 34. Each way
    takes 1, and half of what is left to wait for."""
    runs = [
        Run([[tile(4, 0)], []], [0, 0], 0),
        Run([[], [tile(10, 0)] * 3], [0, 0], 0),
    ]
    now = 4
    for _ in range(SIGNAL_WAYS):
        now += 1 + max(34 - now, 0) / 2
    memory = memory_of(signal=SIGNAL_WAYS, signal_waits=SIGNAL_WAYS / 2)
    _, second = simulate(runs, memory, Ring(8, 4))
    assert second.meeting == pytest.approx(now - 4)


def test_what_does_not_fit_at_once_is_read_in_turn():
    """Ten bytes in fours: three ways of 3 seconds, and the bytes at two a second."""
    runs = [Run([[tile(1, 0)]], [10], 2, at_once=4)]
    (spent,) = simulate(runs, memory_of(shared=Shared(2, 3, 0)), Ring(8, 4))
    assert spent.meeting == 3 * 3 + 10 / 2 + 2


def test_nothing_is_asked_for_ahead_of_a_kernel():
    """The first phase ends at 13, the next kernel begins at 19: its tile comes at 29."""
    runs = [Run([[tile(10, 3)]], [0], 0), Run([[tile(10, 3)]], [0], 0, kernel=True)]
    found = simulate(runs, replace(memory_of(signal=2), kernel=6), Ring(8, 4))
    assert [spent.seconds for spent in found] == [13, 19]
    assert (found[1].meeting, found[1].memory) == (6, 10)


def test_a_block_without_tasks_only_meets():
    runs = [
        Run([[tile(5, 1)], []], [0, 0], 7),
        Run([[tile(1, 0)], [tile(1, 0)]], [0, 0], 0),
    ]
    first, second = simulate(runs, EASY, Ring(8, 4))
    assert first.seconds == 8 and first.idle == 4 and first.meeting == 3.5
    assert second.seconds == 0


def test_what_is_asked_for_ahead_is_served_twice_unless_it_is_on_its_way():
    """Nothing is computed, so each tile is asked for while it is on its way to L2; with a ring that
    waits, tiles are in L2 long before and take its time again."""
    free = [Run([[tile(10, 0)] * 6], [0], 0)]
    assert seconds(free, EASY, Ring(4, 4, ahead=2)) == [60]
    slow = [Run([[tile(10, 100)] * 3], [0], 0)]
    (spent,) = simulate(slow, memory_of(shared=Shared(2, 0, 0)), Ring(1, 1, ahead=2))
    assert spent.seconds == 10 + 100 + 5 + 100 + 5 + 100
    (spent,) = simulate(slow, memory_of(shared=Shared(2, 0, 0)), Ring(1, 1, ahead=2, kept=0.2))
    assert spent.seconds == pytest.approx(10 + 100 + 2 * (1 + 8 + 100))


# -- a clock that ticks ----------------------------------------------------------------------------
@dataclass
class Ticking:
    """A block of the reference: what it has asked for, when tiles come, what it computes."""

    tiles: list
    asked: int = 0
    came: list = field(default_factory=list)
    done: list = field(default_factory=list)
    phase: int = 0
    ready: float = -1  # since when its tasks have what they need; -1: not yet
    until: float = 0
    asker: float = 0  # when it can ask again


class Clock:
    """The reference, which looks at every block at every tick. Nothing is asked for ahead of the
    kernel that it belongs to."""

    def __init__(self, runs, memory, ring):
        self.runs, self.memory, self.ring = runs, memory, ring
        count = len(runs[0].tiles)
        self.blocks = [Ticking([t for run in runs for t in run.tiles[b]]) for b in range(count)]
        self.ends = [
            [sum(len(run.tiles[b]) for run in runs[: p + 1]) for p in range(len(runs))]
            for b in range(count)
        ]
        self.free = 0
        self.phase, self.launched = 0, True

    def known(self, number, now):
        """How many tiles of a block belong to the kernel that runs, and to phases of which it has
        what late tiles wait for, or has prepared what a choice needs."""
        before = self.phase if self.launched else self.phase - 1
        run = self.runs[self.phase]
        has = self.phase - (not self.has(number, now, prepared=not run.late))
        others = [
            p
            for p, run in enumerate(self.runs)
            if (run.kernel and p > before)
            or (p > has and (run.chosen or (run.late and run.tiles[number])))
        ]
        found = [0, *self.ends[number]]
        return found[others[0]] if others else len(self.blocks[number].tiles)

    def early(self, number, now):
        """Whether the next tile of a block is needed behind a meeting of all, no kernel's end, at
        which the block does not have what it needs."""
        block = self.blocks[number]
        of = next(p for p, end in enumerate(self.ends[number]) if end > block.asked)
        to_come = range(self.phase + self.has(number, now, prepared=True), of + 1)
        return self.ring.early and any(p and not self.runs[p].kernel for p in to_come)

    def has(self, number, now, prepared):
        """Whether a block is ready for the phase's tasks, or has ``prepared`` what they need."""
        run, ready = self.runs[self.phase], self.blocks[number].ready
        needs = prepared and (run.read[number] or len(run.tiles[number]) > 0)
        return 0 <= ready <= now + (run.first if needs else 0)

    def ask(self, now):
        """Whether anybody could ask for a tile."""
        asked = False
        for number, block in enumerate(self.blocks):
            while block.asked < self.known(number, now) and block.asker <= now:
                flying = sum(came > now for came in block.came)
                if self.early(number, now) and flying >= self.ring.early:
                    break
                inside = block.asked - sum(done <= now for done in block.done)
                if flying >= self.ring.flying or inside >= self.ring.tiles:
                    break
                size, asking, _ = block.tiles[block.asked]
                self.free = max(self.free, now) + size
                block.came.append(max(self.free, now + self.memory.latency))
                block.asker = now + asking
                block.asked += 1
                asked = True
        return asked

    def compute(self, phase):
        for number, block in enumerate(self.blocks):
            while block.ready >= 0 and len(block.done) < min(block.asked, self.ends[number][phase]):
                begin = max(block.until, block.came[len(block.done)])
                block.until = begin + block.tiles[len(block.done)].computing
                block.done.append(block.until)

    def told(self, phase, now):
        """How long a way takes of what tells blocks that the phase may begin."""
        taken = self.memory.signal + self.memory.signal_waits * self.waiting(now)
        return (self.memory.kernel if self.runs[phase].kernel else taken) // SIGNAL_WAYS

    def waiting(self, now):
        return max(self.free - now - self.memory.latency, 0)

    def read(self, now, phase, left):
        """What blocks still read after this turn, and when the next one is."""
        run, shared = self.runs[phase], self.memory.shared
        come = now + shared.latency + shared.waits * self.waiting(now)
        for number, size in list(left.items()):
            block = self.blocks[number]
            if size > run.at_once:
                left[number] -= run.at_once
                continue
            del left[number]
            tasks = self.ends[number][phase] > len(block.done)
            block.ready = come + size / shared.rate + run.ready if size else now
            if not size and tasks:
                block.ready += run.ready
            block.until = block.ready
        return come + run.at_once / shared.rate

    def seconds(self):
        """Those of each phase."""
        phase, begun, found = 0, 0, []
        reads, tells, ways = 0, 0, 0  # when the next ones are, and how many are left
        left = dict(enumerate(self.runs[0].read))
        for now in range(100_000):
            while self.ask(now):
                pass
            if ways and now == tells:
                ways -= 1
                tells = now + self.told(phase, now)
                if not ways:
                    reads, left = tells, dict(enumerate(self.runs[phase].read))
            if left and not ways and now == reads:
                self.launched = True
                reads = self.read(now, phase, left)
            self.compute(phase)
            while self.ask(now):
                self.compute(phase)
            ended = all(
                b.ready >= 0 and len(b.done) == ends[phase] and b.until <= now
                for b, ends in zip(self.blocks, self.ends, strict=True)
            )
            if ended:
                found.append(now - begun)
                begun, phase = now, phase + 1
                self.phase, self.launched = phase, False
                if phase == len(self.runs):
                    return found
                for block in self.blocks:
                    block.ready = -1
                ways = SIGNAL_WAYS - 1
                tells = now + self.told(phase, now)
        raise AssertionError("the clock ran out")


FAST = Memory(1e12, 0.0, 0.0, 0.0, SHARED)


def test_clusters_meet_by_themselves():
    """Blocks end at 10, 20, 5 and 5; what the clusters are told takes 3, the second phase 2 and 1:
    the first cluster ends at 26, the other one at 11 and waits for the end of all."""
    first = Run([[tile(0, n)] for n in (10, 20, 5, 5)], [0] * 4, 0)
    second = Run([[tile(0, 1)]] * 4, [0] * 4, 2, cluster=2, told=3)
    one, two = simulate([first, second], FAST, Ring(8, 4))
    assert (one.computing, one.idle, one.meeting, one.seconds) == (10, 2.5, 0, 12.5)
    assert (two.computing, two.idle, two.meeting, two.seconds) == (1, 7.5, 5, 13.5)
    assert one.seconds + two.seconds == 26


def test_a_block_without_tiles_meets_its_cluster_too():
    """Another phase of all blocks follows: it begins when the last cluster has ended."""
    first = Run([[tile(0, 4)], [], [tile(0, 1)], []], [0] * 4, 0)
    second = Run([[], [tile(0, 7)], [], []], [0] * 4, 2, cluster=2, told=3)
    third = Run([[tile(0, 1)]] * 4, [0] * 4, 0)
    found = simulate([first, second, third], FAST, Ring(8, 4))
    assert sum(spent.seconds for spent in found[:2]) == 4 + 3 + 2 + 7
    assert found[2].seconds == 1


def test_one_cluster_of_all_blocks_is_a_meeting_of_all():
    """That takes as long, however tiles come."""
    rng = random.Random(5)
    for _ in range(20):
        runs = [
            Run([[Tile(rng.randint(1, 9), 0, rng.randint(0, 12))] * rng.randint(1, 5)
                 for _ in range(3)], [0] * 3, 2)
            for _ in range(3)
        ]  # fmt: skip
        all_meet = simulate(runs, memory_of(latency=4, signal=6), Ring(3, 2))
        own = [runs[0], *(Run(r.tiles, r.read, 2, cluster=3, told=6) for r in runs[1:])]
        clusters = simulate(own, memory_of(latency=4, signal=6), Ring(3, 2))
        assert sum(s.seconds for s in clusters) == pytest.approx(sum(s.seconds for s in all_meet))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_programs_against_a_clock(seed):
    """All times are whole."""
    rng = random.Random(seed)
    blocks, phases = rng.randint(1, 5), rng.randint(1, 4)
    runs = []
    for _ in range(phases):
        tiles = [
            [
                Tile(rng.randint(1, 9), rng.choice([0, 0, 3, 12]), rng.randint(0, 12))
                for _ in range(rng.randint(0, 6))
            ]
            for _ in range(blocks)
        ]
        read = [rng.randint(0, 9) for _ in range(blocks)]
        gates = {
            name: seed % n == n - 1 and rng.random() < 0.5
            for name, n in (("kernel", 2), ("late", 3), ("chosen", 5))
        }
        ready = rng.randint(0, 9)
        first = rng.randint(0, ready)
        runs.append(Run(tiles, read, ready, rng.choice([2, 3, 100]), **gates, first=first))
    memory = memory_of(
        rng.randint(0, 15),
        SIGNAL_WAYS * rng.randint(1, 3),
        SIGNAL_WAYS * rng.randint(0, 1),
        Shared(1.0, rng.randint(0, 5), rng.randint(0, 2)),
    )
    memory = replace(memory, kernel=SIGNAL_WAYS * rng.randint(1, 3))
    places = rng.randint(1, 5)
    flying = rng.randint(1, places)
    ring = Ring(places, flying, early=rng.choice([0, rng.randint(1, flying)]))
    found = simulate(runs, memory, ring)
    assert [spent.seconds for spent in found] == Clock(runs, memory, ring).seconds()
    busy = sum(tile.bytes for run in runs for own in run.tiles for tile in own)
    assert busy + sum(spent.unasked for spent in found) <= sum(spent.seconds for spent in found)
    for spent in found:
        parts = spent.computing + spent.memory + spent.meeting + spent.idle
        assert parts == pytest.approx(spent.seconds)
        assert min(spent.computing, spent.memory, spent.meeting, spent.idle, spent.unasked) >= 0

"""Blocks with rings over one memory: by hand, and drawn ones against a clock of single ticks."""

import random
from dataclasses import dataclass, field

import pytest

from meshc.cost.tasks.blocks import Memory, Ring, Run, simulate

EASY = Memory(rate=1.0, shared_rate=1.0, latency=0.0, signal=0.0)


def seconds(runs, memory=EASY, ring=None):
    return [spent.seconds for spent in simulate(runs, memory, ring or Ring(8, 4))]


def test_one_tile():
    """Asked for at 0, 10 bytes arrive at 10 or after the latency; then it is computed."""
    runs = [Run([[(10, 3)]], [0], 0)]
    assert seconds(runs) == [13]
    assert seconds(runs, Memory(1, 1, 12, 0)) == [15]


def test_memory_answers_in_the_order_in_which_it_is_asked():
    runs = [Run([[(10, 0)], [(10, 0)], [(10, 0)]], [0, 0, 0], 0)]
    (spent,) = simulate(runs, EASY, Ring(8, 4))
    assert spent.seconds == 30 and spent.idle == (20 + 10 + 0) / 3 and spent.unasked == 0


def test_a_ring_without_room_does_not_ask():
    """Two places: the third tile is asked for when the first one is computed, at 1 + 50."""
    runs = [Run([[(1, 50)] * 3], [0], 0)]
    (spent,) = simulate(runs, EASY, Ring(2, 2))
    assert spent.seconds == 151 and spent.unasked == 49


def test_only_so_many_are_on_their_way():
    """One at a time: each tile waits for the latency of the one before."""
    runs = [Run([[(1, 0)] * 3], [0], 0)]
    assert seconds(runs, Memory(1, 1, 10, 0), Ring(8, 1)) == [30]
    assert seconds(runs, Memory(1, 1, 10, 0), Ring(8, 3)) == [10]


def test_a_meeting_waits_for_the_last_block_and_behind_what_has_been_asked_for():
    """The first phase ends at 20, as one block has asked for both tiles before the other; all know
    at 22. What they need comes behind all tiles, at 31 and 32, and is ready 5 later."""
    runs = [
        Run([[(5, 0)], [(5, 0)]], [0, 0], 0),
        Run([[(10, 1)], [(10, 1)]], [1, 1], 5),
    ]
    first, second = simulate(runs, Memory(1, 1, 0, 2), Ring(8, 4))
    assert first.seconds == 20 and first.meeting == 0
    assert second.meeting == (36 + 37) / 2 - 20
    assert second.seconds == 38 - 20 and second.memory == 0


def test_a_block_without_tasks_only_meets():
    runs = [Run([[(5, 1)], []], [0, 0], 7), Run([[(1, 0)], [(1, 0)]], [0, 0], 0)]
    first, second = simulate(runs, EASY, Ring(8, 4))
    assert first.seconds == 8 and first.idle == 4 and first.meeting == 3.5
    assert second.seconds == 0


def test_what_is_asked_for_ahead_is_served_twice_unless_it_is_on_its_way():
    """Nothing is computed, so each tile is asked for while it is on its way to L2; with a ring that
    waits, tiles are in L2 long before and take its time again."""
    free = [Run([[(10, 0)] * 6], [0], 0)]
    assert seconds(free, EASY, Ring(4, 4, ahead=2)) == [60]
    slow = [Run([[(10, 100)] * 3], [0], 0)]
    fast = Memory(1.0, 2.0, 0.0, 0.0)
    (spent,) = simulate(slow, fast, Ring(1, 1, ahead=2))
    assert spent.seconds == 10 + 100 + 5 + 100 + 5 + 100


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


def by_ticks(runs, memory, ring):
    """Seconds of each phase, by a clock that looks at every block at every tick."""
    blocks = [Ticking([t for run in runs for t in run.tiles[b]]) for b in range(len(runs[0].tiles))]
    ends = [
        [sum(len(run.tiles[b]) for run in runs[: p + 1]) for p in range(len(runs))]
        for b in range(len(blocks))
    ]
    free, phase, read_at, found, begun = 0, 0, 0, [], 0
    met = [False] * len(blocks)
    for now in range(100_000):
        for block in blocks:
            while block.asked < len(block.tiles):
                flying = sum(came > now for came in block.came)
                inside = block.asked - sum(done <= now for done in block.done)
                if flying >= ring.flying or inside >= ring.tiles:
                    break
                free = max(free, now) + block.tiles[block.asked][0] / memory.rate
                block.came.append(max(free, now + memory.latency))
                block.asked += 1
        if now == read_at and phase < len(runs):
            for number, block in enumerate(blocks):
                block.ready = now
                if runs[phase].read[number]:
                    free = max(free, now) + runs[phase].read[number] / memory.shared_rate
                    block.ready = max(free, now + memory.latency) + runs[phase].ready
                elif ends[number][phase] > len(block.done):
                    block.ready = now + runs[phase].ready
                block.until = block.ready
            met = [False] * len(blocks)
        for number, block in enumerate(blocks):
            while block.ready >= 0 and len(block.done) < min(block.asked, ends[number][phase]):
                begin = max(block.until, block.came[len(block.done)])
                block.until = begin + block.tiles[len(block.done)][1]
                block.done.append(block.until)
            if block.ready >= 0 and len(block.done) == ends[number][phase] and block.until <= now:
                met[number] = True
        if phase < len(runs) and all(met) and all(b.ready >= 0 for b in blocks):
            end = max(b.until for b in blocks)
            found.append(end - begun)
            begun, phase, read_at = end, phase + 1, end + memory.signal
            for block in blocks:
                block.ready = -1
            met = [False] * len(blocks)
            if phase == len(runs):
                return found
            assert read_at > now
    raise AssertionError("the clock ran out")


@pytest.mark.parametrize("seed", range(40))
def test_drawn_programs_against_a_clock(seed):
    rng = random.Random(seed)
    blocks, phases = rng.randint(1, 5), rng.randint(1, 4)
    runs = []
    for _ in range(phases):
        tiles = [
            [(rng.randint(1, 9), rng.randint(0, 12)) for _ in range(rng.randint(0, 6))]
            for _ in range(blocks)
        ]
        runs.append(Run(tiles, [rng.randint(0, 5) for _ in range(blocks)], rng.randint(0, 9)))
    memory = Memory(1.0, rng.choice([1.0, 0.5]), rng.randint(0, 15), rng.randint(1, 6))
    places = rng.randint(1, 5)
    ring = Ring(places, rng.randint(1, places))
    found = simulate(runs, memory, ring)
    assert [spent.seconds for spent in found] == by_ticks(runs, memory, ring)
    busy = sum(
        sum(r.read) / memory.shared_rate + sum(s for own in r.tiles for s, _ in own) for r in runs
    )
    assert busy + sum(spent.unasked for spent in found) <= sum(spent.seconds for spent in found)
    for spent in found:
        parts = spent.computing + spent.memory + spent.meeting + spent.idle
        assert parts == pytest.approx(spent.seconds)
        assert min(spent.computing, spent.memory, spent.meeting, spent.idle, spent.unasked) >= 0

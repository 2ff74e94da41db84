"""Tiles that are followed at once take what they take one by one."""

import random
from dataclasses import astuple

import pytest

from meshc.cost.tasks import blocks
from meshc.cost.tasks.blocks import Memory, Ring, Run, Shared, Tile, simulate

NS = 1e-9
MEMORY = Memory(4.65e12 / 16, 771 * NS, 1145 * NS, 3.55, Shared(1e11, 160 * NS, 0.55))


def drawn(seed):
    """Phases of 16 blocks: tasks of some full tiles and a rest, even shares of them or not, whose
    computing takes less than memory, about as long, or longer; some tiles are asked for slowly, and
    some phases have tiles that are chosen in front of them."""
    rng = random.Random(seed)
    runs = []
    for phase in range(rng.randint(1, 4)):
        slow, asking = rng.choice((0.2, 0.8, 1.0, 1.3)), rng.choice((0, 0, 0, 475 * NS))
        full, rest = rng.randint(1, 7), rng.choice((0, 0, 0.3, 0.6))
        sizes = [16384.0] * full + ([16384 * rest] if rest else [])
        task = [Tile(size, asking, slow * size / 16384 * 465 * NS) for size in sizes]
        task[-1] = task[-1]._replace(computing=task[-1].computing + rng.choice((0, 84, 300)) * NS)
        most = rng.choice((3, 20, 80))
        counts = [most - rng.choice((0, 0, 1)) for _ in range(16)]
        if rng.random() < 0.3:
            counts = [rng.randint(0, most) for _ in range(16)]
        read = [rng.choice((0, 4096)) for _ in range(16)]
        chosen = bool(phase) and rng.random() < 0.3
        first = rng.choice((0, 2000 * NS))
        runs.append(Run([task * n for n in counts], read, 2650 * NS, late=chosen, first=first))
    flying = rng.choice((1, 2, 4))
    early = rng.choice((0, 0, 1, flying // 2))
    return runs, MEMORY, Ring(flying + rng.randint(0, 8), flying, early=early)


def test_stays_of_blocks_are_what_phases_take():
    """Means over blocks of what each does in a phase, which follow each other in each block."""
    for seed in range(12):
        runs, memory, ring = drawn(seed)
        stays = []
        for phase, spent in enumerate(simulate(runs, memory, ring, stays)):
            mine = [stay for stay in stays if stay.phase == phase]
            assert sorted(stay.block for stay in mine) == [*range(16)]
            means = {
                "meeting": sum(stay.ready - stay.begun for stay in mine) / 16,
                "memory": sum(stay.waited for stay in mine) / 16,
                "computing": sum(stay.ended - stay.ready - stay.waited for stay in mine) / 16,
                "seconds": max(stay.ended for stay in mine) - min(stay.begun for stay in mine),
            }
            told = {name: getattr(spent, name) for name in means}
            assert means == pytest.approx(told, rel=1e-9, abs=1e-15), (seed, phase)


SEEDS = [range(n, n + 40) for n in range(0, 160, 40)]


@pytest.mark.parametrize(
    "seeds", [SEEDS[0], *(pytest.param(s, marks=pytest.mark.slow) for s in SEEDS[1:])], ids=str
)
def test_drawn_phases_at_once_and_one_by_one(seeds, monkeypatch):
    at_once = [simulate(*drawn(seed)) for seed in seeds]

    def one_by_one(machine):
        machine.apart, machine.steady = True, 0

    monkeypatch.setattr(blocks._Machine, "stream", one_by_one)
    for seed, found in zip(seeds, at_once, strict=True):
        each = simulate(*drawn(seed))
        total = sum(spent.seconds for spent in each)
        assert [spent.seconds for spent in found] == [spent.seconds for spent in each], seed
        for one, other in zip(found, each, strict=True):
            assert astuple(one) == pytest.approx(astuple(other), abs=1e-9 * total), seed


def test_hardly_any_tile_is_followed_alone(monkeypatch):
    """A phase of 16 blocks with 700 tiles each, of which as many as fill the rings and a turn are
    asked for alone."""
    alone = []
    ask = blocks._Machine.ask
    monkeypatch.setattr(
        blocks._Machine, "ask", lambda self, block, now: alone.append(now) or ask(self, block, now)
    )
    tiles = [Tile(16384, 0, 154 * NS)] * 700
    simulate([Run([tiles] * 16, [0] * 16, 0)], MEMORY, Ring(11, 4))
    assert len(alone) < 16 * 30

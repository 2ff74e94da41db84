"""What blocks do while memory always has something to do, many tiles at once.

When tiles come is then a running sum of the times that memory takes for them, in the order in which
they are asked for; from it follows when they are computed, and when others are asked for. Blocks
ask in the order in which tiles on their way come to them, again and again, until a computation
changes it. The numbers are those that come of following tile by tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

MOST_ROUNDS = 64
"""How often all that may be on its way to the blocks is looked at together."""


@dataclass(frozen=True)
class Streaming:
    """A block, and what is known of its next ``tiles``, a row for each: the seconds that memory
    takes for it, and those of asking for it and of computing at it. The first one is asked for at
    ``next``. Of the first ``computed`` tiles the block computes each one that has come; it is at
    one until ``now``. ``came`` are the times at which those on their way come, ``done`` those at
    which the tiles in the ring, which are more, are computed, infinite where that is not known.
    Behind the last one it may have ``more`` tiles, fewer of which are on their way at once."""

    number: int
    tiles: Numbers
    next: float
    computed: int
    now: float
    came: Sequence[float]
    done: Sequence[float]
    more: bool = False


@dataclass(frozen=True)
class Streamed:
    """What came of the next tiles of a block: when another one could be ``asked`` for by the warp
    that does, when each came and, of those that it computed, was done with, and how long it waited
    for these."""

    asked: float
    came: list[float]
    done: list[float]
    waited: float


def streamed(
    blocks: Sequence[Streaming], free: float, latency: float, until: float, most: int
) -> tuple[list[Streamed], float]:
    """What ``blocks`` do while memory, which has answered all so far when it is ``free``, is asked
    for the next tile before and answers later than its ``latency``; up to the time ``until``, and
    before more than ``most`` of them compute their last tile. And when memory is free then."""
    if not blocks:
        return [], free
    found = _Stream(blocks, free, latency, until, most)
    while found.go_on():
        pass
    return [*map(found.of, range(len(blocks)))], found.free


class _Stream:
    """All that is known of the blocks, a row for each: tiles, ``came`` with those on their way in
    front, ``done`` with those in the ring in front, and the place of the next tile."""

    def __init__(
        self, blocks: Sequence[Streaming], free: float, latency: float, until: float, most: int
    ) -> None:
        self.free, self.latency, self.until, self.most = free, latency, until, most
        self.flying, self.ring = len(blocks[0].came), len(blocks[0].done)
        self.number = np.array([block.number for block in blocks])
        self.count = np.array([len(block.tiles) for block in blocks])
        self.computed = np.array([block.computed for block in blocks])
        self.more = np.array([block.more for block in blocks])
        self.next = np.array([block.next for block in blocks])
        self.now = np.array([block.now for block in blocks])
        width = int(self.count.max()) + self.flying * MOST_ROUNDS
        self.tiles = np.zeros((len(blocks), width, 3))
        self.came = np.empty((len(blocks), self.flying + width))
        self.done = np.full((len(blocks), self.ring + width), inf)
        for row, block in enumerate(blocks):
            self.tiles[row, : len(block.tiles)] = block.tiles
            self.came[row, : self.flying] = block.came
            self.done[row, : self.ring] = block.done
        self.place = np.zeros(len(blocks), np.int64)
        self.asked = np.zeros(len(blocks))
        self.waited = np.zeros(len(blocks))
        self.rounds = MOST_ROUNDS // 8

    def of(self, row: int) -> Streamed:
        """What came of the tiles of a block."""
        tiles = int(self.place[row])
        computed = min(tiles, int(self.computed[row]))
        return Streamed(
            float(self.asked[row]),
            self.came[row, self.flying : self.flying + tiles].tolist(),
            self.done[row, self.ring : self.ring + computed].tolist(),
            float(self.waited[row]),
        )

    def go_on(self) -> bool:
        """Follow the tiles of some rounds, as long as blocks ask in one order; whether there were
        more than a few."""
        live = np.flatnonzero((self.place < self.count) & (self.next < inf))
        if not live.size:
            return False
        places = self.place[live, None] + np.arange(self.rounds * self.flying + 1)
        turns = self.turns(live, places[:, :-1])
        in_turn = np.argsort(turns, axis=None)
        rows, columns = np.divmod(in_turn, turns.shape[1])
        seconds = self.tiles[live[:, None], places[:, :-1]]
        answers = np.add.accumulate(np.append(self.free, seconds[rows, columns, 0]))
        waited = self.compute(live, places[:, :-1], answers[1:][turns], seconds[:, :, 2])
        asks = self.asks(live, places)
        behind = asks[:, 1:-1] < asks[:, :-2] + seconds[:, :-1, 1]
        asked = min(
            self.lasting(asks[rows, columns], float(asks[:, -1].min()), answers),
            int(turns[:, 1:][behind].min(initial=turns.size)),
            self.but_the_last(live, places[:, :-1], turns),
            end := self.up_to_more(live, places[:, :-1], turns),
        )
        taken = np.count_nonzero(turns < asked, axis=1)
        self.take(live, taken, asks[:, :-1] + seconds[:, :, 1], waited)
        self.free = float(answers[asked])
        self.rounds = min(2 * (1 + asked // (live.size * self.flying)), MOST_ROUNDS)
        return live.size < asked < end

    def turns(self, live: Places, places: Places) -> Places:
        """The order in which the tiles of these places are asked for: that of those that are first,
        as many as may be on their way, again and again."""
        asks = self.asks(live, places[:, : self.flying])
        numbers = np.broadcast_to(self.number[live, None], asks.shape)
        order = np.lexsort((numbers.reshape(-1), asks.reshape(-1)))
        first = np.argsort(order).reshape(asks.shape)
        return np.concatenate([first + order.size * n for n in range(self.rounds)], axis=1)

    def asks(self, live: Places, places: Places) -> Numbers:
        """When tiles are asked for: once another one has come, and the one is computed whose place
        in the ring they take; never where there is none."""
        rows = live[:, None]
        asks = np.maximum(self.came[rows, places], self.done[rows, places])
        asks[:, 0] = self.next[live]
        return np.where(places < self.count[rows], asks, inf)

    def compute(self, live: Places, places: Places, comes: Numbers, computing: Numbers) -> Numbers:
        """When blocks are done with the tiles that come so, those that they compute, and how long
        they wait for each."""
        now = self.now[live]
        done, waited = np.empty(comes.shape), np.empty(comes.shape)
        for tile in range(comes.shape[1]):
            begun = np.maximum(now, comes[:, tile])
            waited[:, tile] = begun - now
            now = begun + computing[:, tile]
            done[:, tile] = now
        computed = places < self.computed[live, None]
        self.came[live[:, None], places + self.flying] = comes
        self.done[live[:, None], places + self.ring] = np.where(computed, done, inf)
        return np.where(computed, waited, 0.0)

    def lasting(self, asks: Numbers, behind: float, answers: Numbers) -> int:
        """How many of the tiles that are asked for in turn are so indeed, before all further ones,
        one of which is ``behind`` them, while memory is busy."""
        first = len(asks) // self.rounds  # which are in order
        soonest = np.minimum.accumulate(np.append(asks[first:], behind)[::-1])[::-1]
        soonest = np.concatenate((np.full(first, soonest[0]), soonest[1:]))
        holds = (asks <= answers[:-1]) & (asks + self.latency <= answers[1:])
        holds &= (asks < self.until) & (asks < soonest)
        return int(np.flatnonzero(~holds).min(initial=holds.size))

    def but_the_last(self, live: Places, places: Places, turns: Places) -> int:
        """How many tiles are asked for before the last block that may computes its last one."""
        last: list[int] = sorted(turns[places == self.computed[live, None] - 1].tolist())
        ended = int(np.count_nonzero((self.computed > 0) & (self.place >= self.computed)))
        return min([turns.size, *last[max(self.most - ended, 0) :]])

    def up_to_more(self, live: Places, places: Places, turns: Places) -> int:
        """How many tiles are asked for up to the first one behind which a block has more."""
        last = turns[(places == self.count[live, None] - 1) & self.more[live, None]]
        return int(last.min(initial=turns.size)) + 1

    def take(self, live: Places, taken: Places, asked: Numbers, waited: Numbers) -> None:
        """So many tiles of each block are asked for and, if they are of those, computed."""
        rows = np.flatnonzero(taken)
        some, tiles = live[rows], taken[rows]
        self.asked[some] = asked[rows, tiles - 1]
        self.waited[live] += np.where(np.arange(waited.shape[1]) < taken[:, None], waited, 0).sum(1)
        self.place[some] += tiles
        ended = np.minimum(self.place[some], self.computed[some])
        now = np.where(ended > 0, self.done[some, self.ring + ended - 1], self.now[some])
        self.now[some] = np.where(self.computed[some] > 0, now, self.now[some])
        place = self.place[some]
        free = np.maximum(self.came[some, place], self.done[some, place])
        self.next[some] = np.maximum(free, self.asked[some])

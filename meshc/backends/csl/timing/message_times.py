"""Messages under way: when their wavelets come to the cores that receive them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.traffic.channels import crossed_axis, crossings, line_of
from meshc.backends.csl.timing.parts import Index, Mask, Part, Places, indexed, opened
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel

Clock = NDArray[np.float64]


@dataclass
class Message:
    """When the ``last`` wavelet of one statement's messages comes to the cores at the places ``at``
    of each axis, and how many cycles before it the first one; not a number where none comes, or has
    been taken. ``left`` of them are under way."""

    at: tuple[Places, ...]
    last: Clock
    lead: Clock | int
    left: int

    @staticmethod
    def of(at: tuple[Places, ...], last: Clock, lead: Clock | int, holds: Mask | None) -> Message:
        """Messages to the cores of ``at`` for which ``holds``, or to all."""
        if holds is None:
            return Message(at, last, lead, last.size)
        return Message(at, np.where(holds, last, np.nan), lead, int(np.count_nonzero(holds)))


class UnderWay:
    """Messages by channel, in the order in which they were sent."""

    def __init__(self) -> None:
        self._of: dict[str, list[Message]] = defaultdict(list)

    def send(self, name: str, message: Message) -> None:
        """One more on the channel ``name``."""
        if message.left:
            self._of[name].append(message)

    def any_on(self, names: Iterable[str]) -> bool:
        """Whether a message is under way on one of the channels."""
        return any(self._of[name] for name in names)

    def clear(self, names: Iterable[str]) -> None:
        """Forget those on the channels."""
        for name in names:
            self._of[name].clear()

    def take(self, name: str, part: Part) -> tuple[Clock, Clock | int]:
        """The last wavelet of the oldest message for each core of ``part``, 0 where there is none,
        and how many cycles before it the first one came."""
        under_way = self._of[name]
        if under_way and part.cores is None:
            oldest = under_way[0]
            if oldest.left == oldest.last.size and _alike(oldest.at, part.at):
                del under_way[0]
                return oldest.last, oldest.lead
        last, lead = np.zeros(part.shape), np.zeros(part.shape)
        left = np.ones(part.shape, bool) if part.cores is None else part.cores.copy()
        for message in under_way:
            mine, theirs = _common(part, message.at)
            there = message.last[theirs]
            got = left[mine] & ~np.isnan(there)
            count = int(np.count_nonzero(got))
            if not count:
                continue
            before = message.lead if isinstance(message.lead, int) else message.lead[theirs]
            last[mine] = np.where(got, there, last[mine])
            lead[mine] = np.where(got, before, lead[mine])
            message.last[theirs] = np.where(got, np.nan, there)
            message.left -= count
            left[mine] &= ~got
        self._of[name] = [message for message in under_way if message.left]
        return last, lead


class Route:
    """Who receives what cores send on a channel that keeps to lines, and how many hops away.

    ``axes`` are those on which sender and receiver differ; at all places of the others messages are
    alike.
    """

    def __init__(self, channel: Channel, mesh: Mesh) -> None:
        within = len(channel.route.inputs) == len(mesh.plane)
        if within:
            line = line_of(channel, mesh)
            sources, targets = np.array(line.pairs, np.intp).reshape(-1, 2).T[:, :, None]
            names = [line.axis]
        else:
            crossed = crossed_axis(channel, mesh)
            names = [mesh.outer, crossed] if crossed else [mesh.outer]
            columns = [mesh.names.index(name) for name in names]
            sources, targets = (points[:, columns] for points in crossings(channel, mesh))
        sizes = [mesh.size(name) for name in names]
        inside: Mask = np.all((targets >= 0) & (targets < np.array(sizes)), axis=1)
        order = np.lexsort(targets[inside].T[::-1])
        self.axes = tuple(mesh.names.index(name) for name in names)
        self.sources, self.targets = (ends[inside][order] for ends in (sources, targets))
        hops = np.abs(self.sources - self.targets).sum(axis=1)
        self.hops = hops if within else np.ones_like(hops)  # an edge is one hop

    def carry(
        self, part: Part, within: Part, last: Clock, lead: Clock | int, hop: int, ramps: int
    ) -> Message:
        """What the cores of ``part`` send to others ``within`` a part around it, of which the
        ``last`` wavelet leaves then and the first one ``lead`` cycles before, where it comes in: a
        hop takes ``hop`` cycles, and the ways into and out of the fabric ``ramps``."""
        way = self._way_of(part, within)
        last = last[way.taken] + (way.hops * hop + ramps)
        lead = lead if isinstance(lead, int) else lead[way.taken]
        holds = None if part.cores is None else part.cores[way.taken]
        if not way.direct:
            last, lead = way.spread(last), lead if isinstance(lead, int) else way.spread(lead)
            comes = np.zeros(last.shape, bool)
            comes[way.given] = True if holds is None else holds
            holds = comes
        return Message.of(way.at, last, lead, holds)

    def _way_of(self, part: Part, within: Part) -> _Way:
        """The way of what the cores of ``part`` send, worked out once."""
        key = self, within
        found = part.known.get(key)
        if not isinstance(found, _Way):
            found = part.known[key] = self._way(part, within)
        return found

    def _way(self, part: Part, within: Part) -> _Way:
        places = [part.at[axis] for axis in self.axes]
        sends = np.ones(len(self.sources), bool)
        for axis, sources, targets in zip(self.axes, self.sources.T, self.targets.T, strict=True):
            sends &= np.isin(sources, part.at[axis]) & np.isin(targets, within.at[axis])
        sources, targets = self.sources[sends].T, self.targets[sends].T
        taken = [np.searchsorted(mine, its) for mine, its in zip(places, sources, strict=True)]
        at, given = list(part.at), []
        for axis, its in zip(self.axes, targets, strict=True):
            at[axis], found = np.unique(its, return_inverse=True)
            given.append(found)
        hops, alone = self.hops[sends], len(self.axes) == 1
        if alone:
            hops = hops.reshape([-1 if axis in self.axes else 1 for axis in range(len(at))])
        return _Way(
            tuple(at),
            _along(self.axes, taken, part.shape),
            _along(self.axes, given, [len(its) for its in at]),
            hops if alone else hops[:1],
            alone and len(at[self.axes[0]]) == hops.size,
        )


@dataclass(frozen=True)
class _Way:
    """What comes to the places ``at`` is ``taken`` from the senders' arrays, ``hops`` away, and is
    ``given`` to cores there; where it is ``direct`` to each of them, in order."""

    at: tuple[Places, ...]
    taken: Index
    given: Index
    hops: NDArray[np.intp]
    direct: bool

    def spread(self, clock: Clock) -> Clock:
        """``clock`` of what was taken at the cores that it is given to; not a number at others."""
        found = np.full([len(places) for places in self.at], np.nan)
        found[self.given] = clock
        return found


def _along(axes: Sequence[int], found: Sequence[Places], shape: Sequence[int]) -> Index:
    """An index that goes through all of an array but for ``axes``, where it has the places
    ``found``, the first of each axis together."""
    whole: list[slice | Places] = [slice(None)] * len(shape)
    for axis, places in zip(axes, found, strict=True):
        whole[axis] = places if len(axes) > 1 else indexed(places, shape[axis])
    return tuple(whole)


def _alike(one: Sequence[Places], other: Sequence[Places]) -> bool:
    return all(a is b or np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _common(part: Part, at: Sequence[Places]) -> tuple[Index, Index]:
    """Where the cores that lie in both ``part`` and ``at`` are in the arrays of each."""
    mine: list[slice | Places] = []
    theirs: list[slice | Places] = []
    for ours, others in zip(part.at, at, strict=True):
        if ours is others:
            mine.append(slice(None))
            theirs.append(slice(None))
            continue
        _, here, there = np.intersect1d(ours, others, assume_unique=True, return_indices=True)
        mine.append(indexed(here, len(ours)))
        theirs.append(indexed(there, len(others)))
    return opened(mine, part.shape), opened(theirs, [len(places) for places in at])

"""Rows and columns of cores that are alike: a round of a loop moves their clocks alike.

Messages keep to lines of one axis and end with their round, so what a round does to a row depends
on its clocks, on the guards that hold there and on the rows that send to it; and clocks that begin
so many cycles later end so many cycles later. So a round walks one row of each kind, beside those
that send to it, and one column of each kind. Where a round moves senders and receivers alike, so
does the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.csl.timing.message_times import Clock, Route
from meshc.backends.csl.timing.parts import Coordinates, Part, Places, names_of, tests_of
from meshc.ir.affine import Cond, Constraint
from meshc.ir.core import Block
from meshc.ir.mesh import Mesh
from meshc.ir.ops.tile import For, Recv, Relay, Sweep, channel_in, channel_out


@dataclass(frozen=True)
class Along:
    """What a round does along ``axis``: messages over ``routes``, at most ``depth`` of them one
    after the other, and ``tests`` of its guards. A ``swept`` axis is run rank by rank."""

    axis: int
    routes: tuple[Route, ...]
    depth: int
    tests: tuple[Constraint | Cond, ...]
    swept: bool


@dataclass(frozen=True)
class Round:
    """What a round does ``down`` the columns of the plane and ``across`` its rows, over all these
    ``channels``."""

    down: Along
    across: Along
    channels: frozenset[str]


def round_of(body: Block, mesh: Mesh, routes: Mapping[str, Route]) -> Round | None:
    """None where nothing is sent, where a message, a test or a rank is about more than one axis of
    the plane, and where a sweep hands on what comes from other lines."""
    ops = [*body.walk()]
    ends = {channel(op) for op in ops for channel in (channel_in, channel_out)} - {None}
    names = sorted(name for name in ends if name is not None)
    if not names or not routes.keys() >= {*names} or any(isinstance(op, For) for op in ops):
        return None
    tests = {test for op in ops if op.when is not None for test in tests_of(op.when)}
    ranks = [op.rank.free_vars for op in ops if isinstance(op, Sweep)]
    taken = [routes[op.channel] for op in ops if isinstance(op, (Recv, Relay))]

    def along(name: str) -> Along:
        axis, mine = mesh.names.index(name), mesh.coordinates_of(name)
        return Along(
            axis,
            tuple(routes[one] for one in names if routes[one].axes == (axis,)),
            sum(route.axes == (axis,) for route in taken),
            tuple(test for test in tests if names_of(test) & mine),
            any(rank & mine for rank in ranks),
        )

    down, across = map(along, mesh.plane)
    apart = len(down.routes) + len(across.routes) == len(names)
    both = {*down.tests} & {*across.tests}
    handed = (down.swept and across.routes) or (across.swept and down.routes)
    if not apart or both or handed or (down.swept and across.swept):
        return None
    return Round(down, across, frozenset(names))


class Classes:
    """Those of the rows and of the columns of ``part``, which has no mask, from one round to the
    next; ``clock`` and vector ``steps`` are those of its cores at first.

    A core has the clock of the classes of its row and its column, and as many cycles more as these
    two are later than their classes.
    """

    def __init__(self, what: Round, part: Part, clock: Clock, steps: Clock) -> None:
        self.channels = what.channels
        self._part = part
        self._rows, self._columns = _Lines(what.down, part), _Lines(what.across, part)
        self._parts: dict[tuple[bytes, bytes], Part] = {}
        plane = self._rows.count, self._columns.count
        self._now = np.stack((clock.reshape(plane), steps.reshape(plane)))
        self._gained = self._now
        self._merge()

    @property
    def few(self) -> bool:
        """Whether walking one of each saves anything."""
        _, rows, columns = self._now.shape
        return bool(4 * rows * columns <= self._rows.count * self._columns.count)

    @property
    def closed(self) -> bool:
        """Whether messages of cores of the part come to cores of the part, one over each route."""
        return self._rows.closed and self._columns.closed

    def told(self, coordinates: Coordinates) -> None:
        """Take where guards hold from now on."""
        self._rows.told(coordinates)
        self._columns.told(coordinates)

    def chosen(self) -> Part:
        """The cores to walk in the next round: one of each class, and those that send to it."""
        self._merge()
        self._rows.choose()
        self._columns.choose()
        rows, columns = self._rows.walked, self._columns.walked
        key = rows.tobytes(), columns.tobytes()
        if key not in self._parts:
            at = self._rows.places[rows], self._columns.places[columns]
            self._parts[key] = Part((*self._part.at[:-2], *at))
        return self._parts[key]

    def walked(self) -> tuple[Clock, Clock]:
        """Clocks and vector steps of the cores to walk."""
        return self._of(self._rows.walked, self._columns.walked)

    def everywhere(self) -> tuple[Clock, Clock]:
        """Clocks and vector steps of all cores of the part."""
        return self._of(np.arange(self._rows.count), np.arange(self._columns.count))

    def moved(self, clock: Clock, steps: Clock) -> None:
        """Take those that the cores to walk have behind the round."""
        rows, columns = self._rows, self._columns
        mine = np.searchsorted(rows.walked, rows.stands)[:, None]
        its = np.searchsorted(columns.walked, columns.stands)
        before = np.stack(self._of(rows.stands, columns.stands))
        after = np.stack((clock, steps)).reshape(2, len(rows.walked), -1)
        self._now = after[:, mine, its]
        self._gained = self._now - before.reshape(self._now.shape)
        rows.divide()
        columns.divide()

    @property
    def steady(self) -> bool:
        """Whether the last round moved receivers like those that send to them: so does the next."""
        gained = self._gained[0]
        return self._rows.steady(gained) and self._columns.steady(gained.T)

    def skip(self, rounds: int) -> None:
        """Move clocks and steps on by so many rounds like the last one."""
        self._now = self._now + self._gained * rounds

    def _merge(self) -> None:
        """Make one class of those that are alike now."""
        self._now = self._now[:, self._rows.merge(self._now)]
        self._now = self._now[:, :, self._columns.merge(self._now.transpose(0, 2, 1))]

    def _of(self, rows: Places, columns: Places) -> tuple[Clock, Clock]:
        """Clocks and vector steps where ``rows`` and ``columns`` meet."""
        clock, steps = self._now[:, self._rows.of[rows, None], self._columns.of[columns]]
        clock = clock + self._rows.later[rows, None] + self._columns.later[columns]
        shape = [len(at) for at in self._part.at[:-2]]
        return clock.reshape(*shape, *clock.shape), steps.reshape(*shape, *steps.shape)


class _Lines:
    """The rows of a part, or its columns, at these ``places`` of the mesh: the class ``of`` each,
    and by how many cycles it is ``later``. ``stands`` are lines that stand for all that go alike in
    the next round, the latest of each; ``walked`` are those and the lines that send to them."""

    def __init__(self, along: Along, part: Part) -> None:
        self._along, self._part = along, part
        self.places = part.at[along.axis]
        self.count = len(self.places)
        self.of = self.stands = self.walked = np.arange(self.count)
        self.later: Clock = np.zeros(self.count)
        self.closed = True
        self._sources: list[Places] = []
        ways = []
        for route in along.routes:
            sources, targets = route.sources[:, 0], route.targets[:, 0]
            inside = np.isin(targets, self.places)
            stays = (inside == np.isin(sources, self.places)).all()
            self.closed &= bool(stays) and len(np.unique(targets)) == len(targets)
            here = np.searchsorted(self.places, targets[inside])
            source, way = np.arange(self.count), np.full(self.count, -1)
            source[here] = np.searchsorted(self.places, sources[inside])
            way[here] = route.hops.ravel()[inside]
            self._sources.append(source)
            ways.append(way)
        self._ways = self._kind = _numbered(np.zeros(self.count), *ways)
        self._round = self._kind

    def told(self, coordinates: Coordinates) -> None:
        """Take where guards hold from now on."""
        tests = self._along.tests
        held = [coordinates.holds(self._part, test).ravel() for test in tests]
        self._kind = _numbered(self._ways, *held)

    def merge(self, now: Clock) -> Places:
        """Make one class of those that have the same steps ``now``, and the same clocks but for one
        number; a class of before for each of them."""
        clock, steps = now
        if self._along.swept:
            return np.arange(len(clock))
        first = clock[:, 0]
        known: dict[bytes, int] = {}
        lines = np.concatenate((clock - first[:, None], steps), axis=1)
        of = np.array([known.setdefault(line.tobytes(), len(known)) for line in lines])
        kept = np.unique(of, return_index=True)[1]
        self.later = self.later + (first - first[kept[of]])[self.of]
        self.of = of[self.of]
        return kept

    def choose(self) -> None:
        """Find the lines to walk in the next round."""
        if self._along.swept:
            return
        kind = _numbered(self.of, self._kind)
        for _ in range(self._along.depth):
            sent = [(kind[source], self.later[source] - self.later) for source in self._sources]
            kind = _numbered(kind, *(key for one in sent for key in one))
        order = np.lexsort((-self.later, kind))
        self.stands = order[np.searchsorted(kind[order], np.arange(kind.max() + 1))]
        self._round = kind
        self.walked = np.unique(self.stands)
        for _ in range(self._along.depth):
            sending = [source[self.walked] for source in self._sources]
            self.walked = np.unique(np.concatenate((self.walked, *sending)))

    def divide(self) -> None:
        """Make a class of those that one line stood for in the round that has ended."""
        if not self._along.swept:
            self.later = self.later - self.later[self.stands][self._round]
            self.of = self._round

    def steady(self, gained: Clock) -> bool:
        """Whether lines that send ``gained`` what those that receive from them did."""
        sending = (self.of[source[self.stands]] for source in self._sources)
        return all(np.array_equal(gained[lines], gained) for lines in sending)


def _numbered(*keys: NDArray[Any]) -> Places:
    """A number for each line, the same for lines that have the same keys."""
    found = np.zeros(len(keys[0]), np.intp)
    for key in keys:
        each = np.unique(key, return_inverse=True)[1]
        found = np.unique(found * len(each) + each, return_inverse=True)[1]
    return found

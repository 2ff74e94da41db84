"""Lines of cores that are alike: their clocks differ by one number, all along them.

While messages keep to lines of one axis, what happens on a line depends on its own clocks and on
the guards that hold there, and clocks that begin so many cycles later end so many cycles later. So
one line stands for all of a class. Classes part where a guard holds on some of their lines alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshc.backends.csl.timing.message_times import Clock, Route
from meshc.backends.csl.timing.parts import Coordinates, Part, Places, names_of, tests_of
from meshc.ir.affine import Cond, Constraint
from meshc.ir.core import Block
from meshc.ir.mesh import Mesh
from meshc.ir.ops.tile import For, Sweep, channel_in, channel_out


@dataclass(frozen=True)
class Lines:
    """What a block does on lines: ``axis`` is that of its messages, ``across`` counts the lines;
    ``tests`` of its guards hold on some lines alone. No core of another line has a say."""

    axis: int
    across: int
    channels: frozenset[str]
    tests: tuple[Constraint | Cond, ...]


def lines_of(body: Block, mesh: Mesh, routes: Mapping[str, Route]) -> Lines | None:
    """None where lines of the plane have to do with each other, or a test is about both axes."""
    ops = [*body.walk()]
    ends = {channel(op) for op in ops for channel in (channel_in, channel_out)} - {None}
    names = frozenset(name for name in ends if name is not None)
    axes = {routes[name].axes for name in names} if names <= routes.keys() else set()
    if len(axes) != 1 or any(isinstance(op, For) for op in ops):
        return None
    axis = min(axes)[0]
    if mesh.names[axis] not in mesh.plane:
        return None
    other = mesh.other(mesh.names[axis])
    mine, others = mesh.coordinates_of(mesh.names[axis]), mesh.coordinates_of(other)
    tests = {test for op in ops if op.when is not None for test in tests_of(op.when)}
    apart = tuple(test for test in tests if names_of(test) & others)
    ranks = [op.rank.free_vars for op in ops if isinstance(op, Sweep)]
    if any(names_of(test) & mine for test in apart) or any(rank & others for rank in ranks):
        return None
    return Lines(axis, mesh.names.index(other), names, apart)


class Classes:
    """Those of the ``lines`` of ``outer``, a part without a mask.

    ``of_line`` is the class of each line, ``stands`` the line that stands for each class, and
    ``ahead`` how much later the clocks of a line are than those of its class.
    """

    def __init__(self, lines: Lines, outer: Part, clock: Clock) -> None:
        self.lines, self._outer, self._across = lines, outer, lines.across
        clocks = np.moveaxis(clock, lines.across, 0).reshape(clock.shape[lines.across], -1)
        first = clocks[:, 0]
        known: dict[bytes, int] = {}
        later = (line.tobytes() for line in clocks - first[:, None])
        self.of_line = np.array([known.setdefault(line, len(known)) for line in later])
        self.stands = np.unique(self.of_line, return_index=True)[1]
        self.ahead = first - first[self.stands[self.of_line]]

    @property
    def few(self) -> bool:
        """Whether walking a line of each saves anything."""
        return 2 * len(self.stands) <= len(self.of_line)

    @property
    def part(self) -> Part:
        """The lines that stand for their classes."""
        at = list(self._outer.at)
        at[self._across] = at[self._across][self.stands]
        return Part(tuple(at))

    def each(self, clock: Clock) -> Clock:
        """Those of the lines that stand for their classes."""
        return np.take(clock, self.stands, self._across)

    def spread(self, clock: Clock, ahead: bool = True) -> Clock:
        """The clock of each line, which is that of its class, later where it is ``ahead``."""
        found: Clock = np.take(clock, self.of_line, self._across)
        if ahead:
            shape = [1] * clock.ndim
            shape[self._across] = -1
            found += self.ahead.reshape(shape)
        return found

    def divide(self, coordinates: Coordinates) -> Places | None:
        """Part the classes that a test parts now; the class that each of the new ones was, or None
        where all are as they were."""
        key, places = self.of_line, self._outer.at[self._across]
        for test in self.lines.tests:
            held = np.asarray(test.evaluate(coordinates.values, coordinates.functions))
            key = np.unique(2 * key + held.ravel()[places], return_inverse=True)[1]
        _, stands = np.unique(key, return_index=True)
        if len(stands) == len(self.stands):
            return None
        was = self.of_line[np.sort(stands)]
        self.of_line = np.argsort(np.argsort(stands))[key]
        self.stands = np.sort(stands)
        return was

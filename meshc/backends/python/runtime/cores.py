"""The fabric and sets of its cores: who takes part in a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .percore import IsolationError, Mesh, PerCore, grid_of
from .recording import Recording

Lanes = NDArray[np.intp]
Key = slice | Lanes

# remembers what a function of loop variables and run-time scalars gave, such as a guard
memo = lru_cache(maxsize=1024)


class Cores:
    """A set of cores of one fabric. ``Fabric.of_lanes`` gives the same object for equal sets.

    ``lanes`` are their places in the hidden leading axis of every buffer, ascending; ``key``
    selects them there, as a slice where that is possible.
    """

    __slots__ = ("_both", "_minus", "_values", "count", "fabric", "key", "lanes")

    def __init__(self, fabric: Fabric, lanes: Lanes) -> None:
        self.fabric = fabric
        self.lanes = lanes
        self.count = len(lanes)
        self.key: Key = progression(lanes) or lanes
        self._both: dict[Cores, Cores] = {}
        self._minus: dict[Cores, Cores] = {}

    def both(self, other: Cores) -> Cores:
        """The cores in this set and in ``other``."""
        found = self._both.get(other)
        if found is None:
            found = self.fabric.of_lanes(np.intersect1d(self.lanes, other.lanes, True))
            self._both[other] = found
        return found

    def minus(self, other: Cores) -> Cores:
        """The cores in this set and not in ``other``."""
        found = self._minus.get(other)
        if found is None:
            found = self.fabric.of_lanes(np.setdiff1d(self.lanes, other.lanes, True))
            self._minus[other] = found
        return found

    def numbers(self, some: Cores) -> Lanes:
        """The numbers, counted in this set, of the cores in ``some``, a part of it."""
        return np.searchsorted(self.lanes, some.lanes)

    def __str__(self) -> str:
        shown = ", ".join(self.fabric.place(lane) for lane in self.lanes[:3])
        more = f" and {self.count - 3} more" if self.count > 3 else ""
        return ("cores " if self.count != 1 else "core ") + shown + more


class Fabric:
    """All cores, run in lockstep, and the memory they keep between phases.

    ``order`` numbers the cores: the core with linear index i is kept in lane ``order[i]``. No
    program can see the numbering, so the results are the same for every permutation.
    """

    def __init__(self, mesh: Mesh, order: Sequence[int] | None = None) -> None:
        self.mesh = mesh
        natural = np.arange(mesh.count)
        self.lane_of_core: Lanes = natural if order is None else np.asarray(order, np.intp)
        if not np.array_equal(np.sort(self.lane_of_core), natural):
            raise ValueError(f"order is no permutation of 0 .. {mesh.count - 1}")
        self.core_of_lane: Lanes = np.argsort(self.lane_of_core)
        self.natural = bool(np.array_equal(self.lane_of_core, natural))
        self._sets: dict[bytes, Cores] = {}
        self.everyone = self.of_lanes(natural)
        self.nobody = self.of_lanes(natural[:0])
        self.active = self.everyone
        self.kept: dict[str, NDArray[Any]] = {}  # state by name, shared by the phases
        self.packed: dict[bytes, NDArray[Any]] = {}  # weights by how they are packed
        self.recording: Recording | None = None  # of the function that runs

    def of_lanes(self, lanes: Lanes) -> Cores:
        """The set with these lanes (ascending)."""
        name = lanes.astype(np.intp).tobytes()
        found = self._sets.get(name)
        if found is None:
            found = self._sets[name] = Cores(self, lanes)
        return found

    def where(self, condition: PerCore | bool) -> Cores:
        """The cores on which ``condition`` holds."""
        mask = self.by_lane(condition)
        if mask.dtype != np.bool_:
            raise TypeError("a guard is a condition, not a number")
        return self.of_lanes(np.flatnonzero(mask))

    def by_lane(self, value: PerCore | int) -> NDArray[Any]:
        """One value for each core, in the order of the lanes."""
        grid = grid_of(value)
        if grid.ndim != 3:
            raise TypeError("a value with further axes is not one value per core")
        return np.broadcast_to(grid, self.mesh.grid).reshape(-1)[self.core_of_lane]

    def running(self, on: Cores | None) -> Cores:
        """The active cores that are in ``on`` (None: all active ones)."""
        if on is None:
            return self.active
        return on if self.active is self.everyone else self.active.both(on)

    def not_repeatable(self) -> None:
        """What is done next depends on more than arrays that stay where they are."""
        if self.recording is not None:
            self.recording.complete = False

    def only(self, cores: Cores) -> Only:
        """Run the statements of a ``with`` block on ``cores`` alone."""
        return Only(self, cores)

    def place(self, lane: int) -> str:
        """The coordinates of the core in ``lane``, for messages."""
        return self.mesh.place(int(self.core_of_lane[lane]))

    def __array__(self, *args: object, **kwargs: object) -> NDArray[Any]:
        raise IsolationError("a fabric is no array")


class Only:
    """Inside of this ``with`` block fewer cores are active."""

    def __init__(self, fabric: Fabric, cores: Cores) -> None:
        self._fabric, self._cores = fabric, cores
        self._outer = fabric.active

    def __enter__(self) -> None:
        self._fabric.active = self._fabric.running(self._cores)

    def __exit__(self, *error: object) -> None:
        self._fabric.active = self._outer


class Sweep:
    """A chain of cores, one rank after the other: iterating makes rank 0 active, then rank 1, ..

    A core runs the body once. Ranks that no active core has are passed over.
    """

    def __init__(self, fabric: Fabric, rank: PerCore | int, count: int) -> None:
        self.fabric = fabric
        ranks = fabric.by_lane(rank)
        self._steps = [fabric.of_lanes(np.flatnonzero(ranks == step)) for step in range(count)]
        self._within: dict[Cores, list[Cores]] = {}

    def __iter__(self) -> Iterator[None]:
        fabric = self.fabric
        outer = fabric.active
        steps = self._within.get(outer)
        if steps is None:
            steps = [s for s in (outer.both(step) for step in self._steps) if s.count]
            self._within[outer] = steps
        for step in steps:
            fabric.active = step
            yield
        fabric.active = outer


def progression(values: Lanes) -> slice | None:
    """The slice that counts ``values`` off, if their steps are equal and positive."""
    if not len(values):
        return slice(0, 0)
    start, last = int(values[0]), int(values[-1])
    if len(values) == 1:
        return slice(start, start + 1)
    step = int(values[1] - values[0])
    even = step > 0 and bool((np.diff(values) == step).all())
    return slice(start, last + 1, step) if even else None


def act(fabric: Fabric, function: Callable[..., object], *arguments: Any) -> None:
    """Call ``function``, which changes arrays among ``arguments`` and depends on nothing else."""
    function(*arguments)
    if fabric.recording is not None:
        fabric.recording.actions.append((function, arguments))


def copied(fabric: Fabric, array: NDArray[Any]) -> NDArray[Any]:
    """A copy of ``array``."""
    room = np.empty(array.shape, array.dtype)
    act(fabric, np.copyto, room, array)
    return room

"""Cores that are walked together: what lies at some places of each axis of a mesh.

A guard that holds at places of one axis, or a rank of a sweep, names a slab of rows or columns, so
that a statement moves the clocks of those alone and not of a whole mesh. Guards that hold at no
such product of places keep a mask over one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshc.ir.affine import Cond, Constraint, CoordinateFunction, Expr, IntLike

Mask = NDArray[np.bool_]
Places = NDArray[np.intp]
_AT_ONCE = 1024
"""Rounds of a loop whose guards are evaluated together."""
Index = tuple[slice | Places, ...]
"""Where a part lies in the arrays of one around it."""


@dataclass(frozen=True, eq=False)
class Part:
    """The cores at the places ``at``, ascending, of each axis, or those of them in ``cores``, a
    mask of that shape. ``known`` keeps what was found out about it."""

    at: tuple[Places, ...]
    cores: Mask | None = None
    known: dict[object, object] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Places on each axis."""
        return tuple(len(places) for places in self.at)

    @property
    def empty(self) -> bool:
        """Whether it has no core."""
        return not all(self.shape) or (self.cores is not None and not self.cores.any())

    def index_of(self, inner: Part) -> Index:
        """Where ``inner``, a part of this one, lies in its arrays."""
        found = [
            slice(None) if mine is its else indexed(np.searchsorted(mine, its), len(mine))
            for mine, its in zip(self.at, inner.at, strict=True)
        ]
        return opened(found, self.shape)

    def kept(self, keep: Sequence[Mask | None], cores: Mask | None = None) -> Part:
        """The cores where ``keep`` of each axis holds, if it is given, and ``cores``, a mask that
        broadcasts to the shape of this part."""
        at = tuple(
            places if held is None or held.all() else places[held]
            for places, held in zip(self.at, keep, strict=True)
        )
        mask = self.cores
        if cores is not None:
            mask = np.broadcast_to(cores, self.shape) if mask is None else mask & cores
        if mask is not None:
            mask = mask[self.index_of(Part(at))]
            mask = None if mask.all() else mask
        return Part(at, mask)


class Coordinates:
    """Values of names on cores: ``values`` are numbers, or arrays that broadcast to the mesh. Those
    of ``rounds`` change; what depends on others alone is worked out once for a part."""

    def __init__(
        self,
        values: dict[str, IntLike],
        functions: Mapping[str, CoordinateFunction],
        rounds: Collection[str],
    ) -> None:
        self.values = values
        self.functions = functions
        self._rounds = frozenset(rounds)

    def where(self, part: Part, when: Cond | None) -> Part:
        """The cores of ``part`` on which ``when`` holds."""
        if when is None or when.is_true:
            return part
        if when.free_vars & self._rounds:
            return self._held(part, when)
        found = part.known.get(when)
        if not isinstance(found, Part):
            found = part.known[when] = self._held(part, when)
        return found

    def ranks(self, part: Part, rank: Expr, count: int) -> list[Part]:
        """The cores of ``part`` with each ``rank`` of 0 .. ``count`` - 1 that some have."""
        if rank.free_vars & self._rounds:
            return [*self._ranked(part, rank, count)]
        found = part.known.get((rank, count))
        if not isinstance(found, list):
            found = part.known[rank, count] = [*self._ranked(part, rank, count)]
        return found

    def changes(self, tests: Collection[Constraint | Cond], var: str, rounds: int) -> list[int]:
        """The values of ``var`` in 1 .. ``rounds`` - 1 at which one of ``tests`` no longer holds
        where it did, or holds where it did not."""
        found = np.zeros(rounds, bool)
        axes = [1] * max(np.ndim(value) for value in self.values.values())
        for test in tests:
            was: Mask | None = None
            for first in range(0, rounds, _AT_ONCE):
                now = np.arange(first, min(first + _AT_ONCE, rounds)).reshape(-1, *axes)
                held = np.asarray(test.evaluate(self.values | {var: now}, self.functions))
                held = held.reshape(len(now), -1)
                found[first] |= was is not None and bool((held[0] != was).any())
                found[first + 1 : first + len(now)] |= (held[1:] != held[:-1]).any(axis=1)
                was = held[-1]
        return np.flatnonzero(found).tolist()

    def holds(self, part: Part, test: Constraint | Cond) -> Mask:
        """Where ``test`` holds on ``part``, broadcast to its shape."""
        return np.asarray(test.evaluate(self._on(part, names_of(test)), self.functions))

    def _held(self, part: Part, when: Cond) -> Part:
        keep: list[Mask | None] = [None] * len(part.at)
        cores: Mask | None = None
        for test in tests_of(when):
            holds = self.holds(part, test)
            axes = [axis for axis, count in enumerate(holds.shape) if count > 1]
            if len(axes) > 1:
                cores = holds if cores is None else cores & holds
                continue
            axis = axes[0] if axes else 0
            held = np.broadcast_to(holds.ravel(), len(part.at[axis]))
            earlier = keep[axis]
            keep[axis] = held if earlier is None else earlier & held
        return part.kept(keep, cores)

    def _ranked(self, part: Part, rank: Expr, count: int) -> Iterator[Part]:
        found = np.asarray(rank.evaluate(self._on(part, rank.free_vars), self.functions))
        axes = [axis for axis, size in enumerate(found.shape) if size > 1]
        for step in range(count):
            holds = found == step
            if not holds.any():
                continue
            keep: list[Mask | None] = [None] * len(part.at)
            if len(axes) == 1:
                keep[axes[0]] = holds.ravel()
            here = part.kept(keep, holds if len(axes) > 1 else None)
            if not here.empty:
                yield here

    def _on(self, part: Part, names: frozenset[str]) -> dict[str, IntLike]:
        """The values of ``names`` on the cores of ``part``."""
        found: dict[str, IntLike] = {}
        for name in names & self.values.keys():
            value = self.values[name]
            if isinstance(value, np.ndarray):
                for axis, count in enumerate(value.shape):
                    if count > 1:
                        value = np.take(value, part.at[axis], axis)
            found[name] = value
        return found


def tests_of(cond: Cond) -> tuple[Constraint | Cond, ...]:
    """What must hold together for ``cond`` to hold."""
    return cond.clauses[0] if len(cond.clauses) == 1 else (cond,)


def names_of(test: Constraint | Cond) -> frozenset[str]:
    """The names that a test is about."""
    return test.free_vars if isinstance(test, Cond) else test.expr.free_vars


def everything(shape: Sequence[int]) -> Part:
    """All cores of a mesh."""
    return Part(tuple(np.arange(count) for count in shape))


def indexed(places: Places, count: int) -> slice | Places:
    """``places`` of 0 .. ``count`` - 1 as a slice, where they are one."""
    if not len(places):
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    step = int(places[1]) - first if len(places) > 1 else 1
    if step < 1 or first + step * (len(places) - 1) != last:
        return places
    if len(places) > 2 and (np.diff(places) != step).any():
        return places
    return slice(None) if (first, last, step) == (0, count - 1, 1) else slice(first, last + 1, step)


def opened(found: Sequence[slice | Places], shape: Sequence[int]) -> Index:
    """``found`` of each axis as an index of arrays of ``shape`` that takes each on its own."""
    if sum(not isinstance(one, slice) for one in found) < 2:
        return tuple(found)
    listed = (
        np.arange(count)[one] if isinstance(one, slice) else one
        for one, count in zip(found, shape, strict=True)
    )
    return np.ix_(*listed)

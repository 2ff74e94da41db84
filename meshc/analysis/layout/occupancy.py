"""How many entries the ring buffers of each core hold, step by step, by the guards of a program.

A KV cache overflows where an entry comes to a core whose slots are all taken. Which core that is,
and at which token, follows from the guards of the ring kernels alone, so it is read off them rather
than off the name of a policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.ir.affine import Cond
from meshc.ir.affine.expr import IntLike
from meshc.ir.batch import POSITION
from meshc.ir.core import Block
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For
from meshc.ir.values import Value

_CHANGES = {"ring_grow": 1, "ring_drop": -1}
_CELLS = 1 << 18
"""Steps times cores that are looked at together."""
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Overflow:
    """The first step at which an entry finds no free slot.

    The entry of the token at ``position`` (the first token is at 0) comes to ``core``, a position
    on each axis of the mesh, the first of ``cores`` cores to which this happens then. All caches
    have ``slots``.
    """

    position: int
    core: dict[str, int]
    cores: int
    slots: int


def first_overflow(module: Module) -> Overflow | None:
    """The first overflow of a cache of a tile-level ``module`` when its decode steps run from
    position 0 on; None where none ever comes, as in a program without caches."""
    mesh = module.the_mesh()
    found = [_overflow(ring, mesh) for ring in _rings(module)]
    return min(filter(None, found), key=lambda one: one.position, default=None)


@dataclass
class _Ring:
    """A ring buffer of ``slots``: what changes the number of its entries, in the order of the
    program, each under a condition on the position and the place of a core."""

    slots: int
    changes: list[tuple[int, Cond]]


def _rings(module: Module) -> list[_Ring]:
    """The rings of ``module``, those that share a state once."""
    found: dict[Value, _Ring] = {}
    for op, guard in _guarded(module.program.body, Cond.true()):
        state = op.views()[-1].buffer
        if op.kernel in _CHANGES:
            ring = found.setdefault(state, _Ring(0, []))
            ring.changes.append((_CHANGES[op.kernel], guard))
        elif op.kernel == "ring_push":
            ring = found.setdefault(state, _Ring(0, []))
            ring.slots = op.views()[0].shape()[-2].constant
    return list(found.values())


def _guarded(block: Block, outer: Cond) -> Iterator[tuple[Compute, Cond]]:
    """The kernels of ``block`` and the conditions under which they run, those of the first round
    of each loop: other layers have caches of their own, which fill alike."""
    for op in block.ops:
        guard = outer if op.when is None else outer & op.when
        if isinstance(op, Compute):
            yield op, guard
        for region in op.regions:
            for inner, condition in _guarded(region, guard):
                first = condition.substitute({op.var: 0}) if isinstance(op, For) else condition
                yield inner, first


def _overflow(ring: _Ring, mesh: Mesh) -> Overflow | None:
    """The first overflow of ``ring``, looked for on cores that differ in what its guards name."""
    places = coordinate_values(mesh)
    named = frozenset[str]().union(*(guard.free_vars for _, guard in ring.changes)) & {*places}
    axes = [a for a in mesh.names if any(a in places[name].free_vars for name in named)]
    sizes = [mesh.size(axis) for axis in axes]
    where = dict(zip(axes, np.indices(sizes).reshape(len(axes), prod(sizes)), strict=True))
    cores = prod(sizes)
    known = {name: places[name].evaluate(where) for name in named}
    held = np.zeros(cores, np.int64)
    together = max(1, _CELLS // cores)
    # An entry comes with each step, so that after so many steps all slots are taken.
    for begin in range(0, ring.slots * cores + 1, together):
        positions = np.arange(begin, begin + together)[:, None]
        full, held = _steps(ring, {**known, POSITION: positions}, held, (together, cores))
        if full.any():
            step = int(full.any(axis=1).argmax())
            first = int(full[step].argmax())
            core = dict.fromkeys(mesh.names, 0) | {a: int(where[a][first]) for a in axes}
            alike = mesh.cores // cores
            return Overflow(begin + step, core, int(full[step].sum()) * alike, ring.slots)
    return None


def _steps(
    ring: _Ring, env: Mapping[str, IntLike], held: _Numbers, shape: tuple[int, int]
) -> tuple[NDArray[np.bool_], _Numbers]:
    """Which entries find no slot, at ``[steps, cores]``, and what the cores hold behind the last
    step; before the first one they have ``held``."""
    when = [(change, np.broadcast_to(g.evaluate(env), shape)) for change, g in ring.changes]
    counts = [(change, np.count_nonzero(steps, axis=0)) for change, steps in when]
    grown = sum(count for change, count in counts if change > 0)
    if (held + grown).max() <= ring.slots:  # whatever is dropped in between
        return np.zeros(shape, bool), held + sum(change * count for change, count in counts)
    changes = [change * steps for change, steps in when]
    behind = held + np.cumsum(np.sum(changes, axis=0), axis=0)
    now = np.vstack([held[None], behind[:-1]])
    full = np.zeros(shape, bool)
    for change in changes:
        now = now + change
        full |= now > ring.slots
    return full, behind[-1]

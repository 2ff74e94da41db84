"""Layouts as index maps: which element of a logical tensor each lane of each core holds.

A value at mesh level is one array ``[cores, *lanes]``. Rules, for a dim of extent n on an axis of
p parts where a core is part i (its rank; plus the rank on the skewing axis, modulo p):

- ``block``: lane j holds element ``i * block + j``;
- ``cyclic`` and ``shift``: lane j holds element ``j * p + i``;
- ``block`` with c copies: i is first divided by c, without its remainder;
- lanes whose element is not below n are padding and hold 0 when a tensor is scattered;
- several dims on one axis are split together: their row-major flattening, in equal blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NoReturn

import numpy as np

from meshc.interp.named import Array, Dims
from meshc.interp.places import core_text, part_indices
from meshc.ir.affine import IntArray
from meshc.ir.mesh import Mesh
from meshc.ir.types import Layout, Split, TensorType
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

PAD = -1
_EPSILONS = 4096


@dataclass(frozen=True)
class Sharding:
    """How values of one type lie on a mesh.

    ``extents`` are the module's dims; ``actual`` those of this run, where rows may be fewer.
    """

    type: TensorType
    mesh: Mesh
    extents: Mapping[str, int]
    actual: Mapping[str, int]

    @cached_property
    def layout(self) -> Layout:
        """The type's layout; none means that every core holds everything."""
        return self.type.layout or Layout()

    @cached_property
    def groups(self) -> tuple[Dims, ...]:
        """The dims in order, those that share an axis together in the place of the first."""
        found: dict[str, list[str]] = {}
        for dim in self.type.dims:
            split = self.layout.split_of(dim)
            found.setdefault(f"on {split.axis}" if split else dim, []).append(dim)
        return tuple(tuple(dims) for dims in found.values())

    @cached_property
    def elements(self) -> tuple[IntArray, ...]:
        """For each group ``[cores, lanes]``: the element (of the flattened group), or ``PAD``."""
        return tuple(self._elements(group) for group in self.groups)

    def of_dim(self, dim: str) -> IntArray:
        """``[cores, lanes]``: the element of ``dim`` in each lane, or ``PAD``."""
        return self.elements[self.groups.index((dim,))]

    @property
    def shape(self) -> tuple[int, ...]:
        """``(cores, *lanes)``."""
        return (self.mesh.cores, *(e.shape[1] for e in self.elements))

    def scatter(self, tensor: Array) -> Array:
        """The lanes of every core. A partial layout puts the value on part 0 of its axes."""
        flat = self._flattened(tensor)
        held, index = self._index(flat.shape)
        for axis in (*self.layout.partial, *self.layout.roots):
            held = held & _by_core(part_indices(self.mesh, axis) == 0, held.ndim)
        lanes = np.zeros(self.shape, flat.dtype)
        if flat.dtype.kind == "f":
            lanes[~self.at_roots] = np.nan  # what is not there must not matter
        lanes[held] = flat[tuple(np.broadcast_to(at, self.shape)[held] for at in index)]
        return lanes

    def gather(self, lanes: Array, name: str, span: Span | None = None) -> Array:
        """The logical tensor. Raises ``interp-layout`` when the value is a partial sum, an element
        has no core, or replicas differ; ``name`` is what messages call the value."""
        if self.layout.partial:
            self._wrong(name, f"is a partial sum over {', '.join(self.layout.partial)}", span)
        shape = tuple(prod(self.actual[d] for d in group) for group in self.groups)
        held, index = self._index(shape)
        held &= _by_core(self.at_roots, held.ndim)
        at = np.zeros(int(held.sum()), np.int64)
        for elements, extent in zip(index, shape, strict=True):
            at = at * extent + np.broadcast_to(elements, self.shape)[held]
        result = np.zeros(prod(shape), lanes.dtype)
        given = np.zeros(prod(shape), bool)
        result[at], given[at] = lanes[held], True
        if not given.all():
            self._wrong(name, f"has an element that no core holds ({self.type})", span)
        self._check_replicas(result, at, lanes, held, name, span)
        return self._unflattened(result)

    @property
    def at_roots(self) -> Array:
        """For each core, whether it is the first one on all axes of ``roots``."""
        found = np.ones(self.mesh.cores, bool)
        for axis in self.layout.roots:
            found &= part_indices(self.mesh, axis) == 0
        return found

    def _index(self, shape: tuple[int, ...]) -> tuple[Array, tuple[Array, ...]]:
        """Which lanes hold an element of a flattened tensor of ``shape``, and its index."""
        rank = len(self.groups) + 1
        held = np.ones(self.shape, bool)
        index = []
        for position, (elements, extent) in enumerate(zip(self.elements, shape, strict=True)):
            spread = [1] * rank
            spread[0], spread[position + 1] = elements.shape
            inside = (elements >= 0) & (elements < extent)
            held &= inside.reshape(spread)
            index.append(np.where(inside, elements, 0).reshape(spread))
        return held, tuple(index)

    def _elements(self, group: Dims) -> IntArray:
        extent = prod(self.extents[d] for d in group)
        split = self.layout.split_of(group[0])
        if split is None:
            return np.broadcast_to(np.arange(extent), (self.mesh.cores, extent))
        if len(group) > 1:
            parts = self.mesh.size(split.axis)
            split = Split(split.dim, split.axis, -(-extent // parts), skew=split.skew)
        return split_elements(split, extent, self.mesh)

    def _flattened(self, tensor: Array) -> Array:
        order = [self.type.dims.index(d) for group in self.groups for d in group]
        moved = tensor.transpose(order)
        extents = dict(zip(self.type.dims, tensor.shape, strict=True))
        return moved.reshape([prod(extents[d] for d in group) for group in self.groups])

    def _unflattened(self, flat: Array) -> Array:
        dims = [d for group in self.groups for d in group]
        tensor = flat.reshape([self.actual[d] for d in dims])
        return tensor.transpose([dims.index(d) for d in self.type.dims])

    def _check_replicas(
        self, result: Array, at: Array, lanes: Array, held: Array, name: str, span: Span | None
    ) -> None:
        chosen, own = result[at], lanes[held]
        finite = np.isfinite(chosen) & np.isfinite(own)
        scale = np.abs(chosen[finite]).max(initial=0)
        epsilon = np.finfo(lanes.dtype).eps if lanes.dtype.kind == "f" else 0
        differ = (chosen != own) & ~(np.isnan(chosen) & np.isnan(own))
        differ &= ~finite | (np.abs(chosen - own) > _EPSILONS * epsilon * scale)
        if differ.any():
            core = int(np.argwhere(held)[np.argmax(differ), 0])
            self._wrong(name, f"differs between replicas, as on {core_text(self.mesh, core)}", span)

    def _wrong(self, name: str, message: str, span: Span | None) -> NoReturn:
        fail("interp-layout", f"'{name}' {message}", span, notes=[f"it lies as {self.type}"])


def split_elements(split: Split, extent: int, mesh: Mesh) -> IntArray:
    """``[cores, split.block]``: the element in each lane of each core, or ``PAD``."""
    parts = mesh.size(split.axis)
    part = part_indices(mesh, split.axis)
    if split.skew:
        part = (part + part_indices(mesh, split.skew)) % parts
    part = part // split.copies
    lane = np.arange(split.block)[None, :]
    whole = part[:, None]
    element = whole * split.block + lane if split.kind == "block" else lane * parts + whole
    return np.where(element < extent, element, PAD)


def lane_of(wanted: IntArray, held: IntArray) -> tuple[IntArray, Array]:
    """For elements ``wanted [cores, m]``, the lane of ``held [cores, n]`` that has each, and
    whether the core has it at all."""
    same = (wanted[:, :, None] == held[:, None, :]) & (wanted[:, :, None] != PAD)
    return same.argmax(-1), same.any(-1)


def _by_core(flags: Array, rank: int) -> Array:
    return flags.reshape((-1,) + (1,) * (rank - 1))

"""What collectives, moves and appends of the mesh level do to the shards of every core."""

from __future__ import annotations

import numpy as np

from meshc.interp.mesh_state import CORES, Shards, dims_of, meaning, position_of
from meshc.interp.named import Array, aligned
from meshc.interp.places import elsewhere, part_indices
from meshc.interp.shards import PAD, Sharding, lane_of
from meshc.ir.batch import BATCH
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.ops import mesh
from meshc.ir.types import Layout
from meshc.support.diagnostics import fail

# --- collectives


@meaning(mesh.AllReduce)
@meaning(mesh.Reduce)
def _all_reduce(shards: Shards, op: mesh.AllReduce | mesh.Reduce) -> list[Array]:
    if op.reduce == "softmax":
        return _softmaxes(shards, op)
    return [_combined(shards, shards.of(operand), op.axis, op.reduce) for operand in op.operands]


def _combined(shards: Shards, lanes: Array, axis: str, how: str) -> Array:
    """The sum or maximum over ``axis``, on all of its cores."""
    parts = [part for axis in shards.mesh.axes for part in axis.factors or (axis,)]
    axes = tuple(i for i, part in enumerate(parts) if _is_within(shards.mesh, part.name, axis))
    reduce = np.max if how == "max" else np.sum
    by_axis = lanes.reshape([part.size for part in parts] + [*lanes.shape[1:]])
    total = reduce(by_axis, axis=axes, keepdims=True)
    return np.broadcast_to(total, by_axis.shape).reshape(lanes.shape)


def _softmaxes(shards: Shards, op: mesh.AllReduce | mesh.Reduce) -> list[Array]:
    """Weighted values, sums and maxima of all cores, each relative to its own maximum before."""
    values, sums, tops = (shards.of(operand) for operand in op.operands)
    most = _combined(shards, tops, op.axis, "max")
    weight = np.exp(tops - most)
    wide = aligned(weight, dims_of(op.operands[2]), dims_of(op.operands[0]))
    scaled = [_combined(shards, part, op.axis, "sum") for part in (values * wide, sums * weight)]
    return [*scaled, most]


def _is_within(the_mesh: Mesh, part: str, axis: str) -> bool:
    """Whether ``part`` is ``axis`` itself or one of its factors."""
    return part == axis or part in (f.name for f in the_mesh.parts[axis].factors)


@meaning(mesh.Broadcast)
@meaning(mesh.Gather)
@meaning(mesh.Scatter)
@meaning(mesh.AllGather)
def _placed_anew(shards: Shards, op: Op) -> list[Array]:
    """The same tensor in another layout."""
    return [shards.sharding(op.result).scatter(shards.gathered(op.operands[0], op))]


@meaning(mesh.ReduceScatter)
def _reduce_scatter(shards: Shards, op: mesh.ReduceScatter) -> list[Array]:
    (value,) = op.tensors()
    kind = tensor_type(value)
    layout = kind.layout or Layout()
    whole = kind.with_layout(Layout(layout.splits, (), layout.roots))
    lanes = _combined(shards, shards.of(value), op.axis, op.reduce)
    sharding = Sharding(whole, shards.mesh, shards.extents, shards.actual)
    return [shards.sharding(op.result).scatter(sharding.gather(lanes, value.name, op.span))]


@meaning(mesh.AllReduceNorm)
def _all_reduce_norm(shards: Shards, op: mesh.AllReduceNorm) -> list[Array]:
    """By whole tensors: which core adds up which rows is seen in the layouts alone."""
    partial, residual, gain = op.tensors()
    normed, stream = op.results
    dims = tensor_type(normed).dims
    lanes = _combined(shards, shards.of(partial), op.axis, "sum")
    total = shards.sharding(normed).gather(lanes, partial.name, op.span)
    total = total + shards.gathered(residual, op)
    mean = np.square(total).mean(dims.index(op.dim), keepdims=True)
    gains = aligned(shards.gathered(gain, op), (op.dim,), dims)
    scaled = total / np.sqrt(mean + op.eps) * gains
    return [shards.sharding(normed).scatter(scaled), shards.sharding(stream).scatter(total)]


@meaning(mesh.Shift)
def _shift(shards: Shards, op: mesh.Shift) -> list[Array]:
    """Every core takes the lanes of the one ``by`` ranks further."""
    lanes = shards.of(op.operands[0])
    part = part_indices(shards.mesh, op.axis)
    order = np.lexsort((part, *elsewhere(shards.mesh, op.axis)))
    size = shards.mesh.size(op.axis)
    lines = order.reshape(-1, size)
    moved = np.empty_like(lanes)
    moved[lines] = lanes[np.roll(lines, -op.by, axis=1)]
    return [moved]


# --- moving


@meaning(mesh.Relayout)
def _relayout(shards: Shards, op: mesh.Relayout) -> list[Array]:
    (x,) = op.operands
    old, new, dims = shards.sharding(x), shards.sharding(op.result), dims_of(x)
    lanes = shards.of(x)
    for dim in dims[1:]:
        if old.layout.split_of(dim) != new.layout.split_of(dim):
            lane, held = lane_of(new.of_dim(dim), old.of_dim(dim))
            taken = np.take_along_axis(lanes, aligned(lane, (CORES, dim), dims), dims.index(dim))
            lanes = np.where(aligned(held, (CORES, dim), dims), taken, 0)
    return [lanes]


@meaning(mesh.Part)
def _part(shards: Shards, op: mesh.Part) -> list[Array]:
    """Every core keeps the lanes that the result's layout gives it; it must have them already."""
    (x,) = op.operands
    old, new, dims = shards.sharding(x), shards.sharding(op.result), dims_of(x)
    wanted = new.of_dim(op.dim)
    lane, held = lane_of(wanted, old.of_dim(op.dim))
    if not (held | (wanted == PAD)).all():
        fail("interp-layout", f"{op.NAME}: a core lacks an element of its part", op.span)
    axis = dims.index(op.dim)
    taken = np.take_along_axis(shards.of(x), aligned(lane, (CORES, op.dim), dims), axis)
    return [np.where(aligned(held, (CORES, op.dim), dims), taken, 0)]


@meaning(mesh.Append)
def _append(shards: Shards, op: mesh.Append) -> list[Array]:
    pairs = zip(op.operands[::2], op.operands[1::2], strict=True)
    return [_appended(shards, op, cache, new) for cache, new in pairs]


def _appended(shards: Shards, op: mesh.Append, cache: Operand, new: Operand) -> Array:
    sharding = shards.sharding(cache)
    rows = shards.gathered(new, op)
    dims = tensor_type(cache).dims
    axis = dims.index(op.dim)
    fresh_dims = tuple(op.dim if d == op.rows else d for d in tensor_type(new).dims)
    fresh = aligned(rows, fresh_dims, dims)
    count = fresh.shape[axis]
    entered = np.zeros(tensor_type(cache).shape(shards.actual), fresh.dtype)
    for request, first in enumerate(np.atleast_1d(shards.position)):
        if first < 0:
            continue
        end = first + count
        if end > shards.extents[op.dim]:
            fail("interp-shape", f"{op.NAME}: row {end - 1} does not fit {op.dim}", op.span)
        every = slice(request, request + 1) if shards.position.ndim else slice(None)
        own = {BATCH: every, op.dim: slice(first, end)}
        place = tuple(own.get(d, slice(None)) for d in dims)
        entered[place] = fresh[tuple(every if d == BATCH else slice(None) for d in dims)]
    row = aligned(sharding.of_dim(op.dim), (CORES, op.dim), dims_of(cache))
    first = position_of(shards, op, cache, dims_of(cache))
    stored = (row >= first) & (row < first + count) & (first >= 0)
    return np.where(stored, sharding.scatter(entered), shards.of(cache))

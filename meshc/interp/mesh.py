"""Runs mesh-level modules on the shards of every core.

Local ops compute on each core from its own lanes only, so a wrong layout gives wrong numbers.
Distributed products read their operands where the layouts say the elements are and leave the
result where its layout says; how the pieces travel is the tile level's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from meshc.interp import formulas, gating
from meshc.interp import mesh_moves as _  # noqa: F401  the meanings of collectives and moves
from meshc.interp import mesh_routing as _routing  # noqa: F401  what goes to experts and back
from meshc.interp.inputs import Scalars, bound_inputs, checked_scalars, rounds_of
from meshc.interp.mesh_state import CORES, MEANINGS, Meaning, Shards, dims_of, meaning, position_of
from meshc.interp.named import Array, Dims, aligned, contracted, ungrouped
from meshc.interp.shards import PAD, lane_of
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.functions import Function
from meshc.ir.module import Module
from meshc.ir.ops import mesh
from meshc.ir.values import Value
from meshc.support.diagnostics import fail


def run_mesh(
    module: Module,
    inputs: Mapping[str, Array],
    scalars: Scalars | None = None,
    dtype: DTypeLike = np.float64,
) -> list[Array]:
    """The results of the module's function as logical arrays, in order.

    ``inputs`` are logical arrays by parameter name (a state that is left out starts as zeros).
    Raises ``interp-input``, ``interp-scalar``, ``interp-shape``, ``interp-layout``.
    """
    actual, arrays = bound_inputs(module, inputs, np.dtype(dtype))
    checked = checked_scalars(module, scalars or {})
    shards = Shards(module.the_mesh(), module.dims, actual, checked)
    for value, array in arrays.items():
        shards.values[value] = shards.sharding(value).scatter(array)
    with np.errstate(all="ignore"):
        ending = run_block(module.function.body, shards)
    return [shards.gathered(o, ending) for o in ending.operands]


def run_block(block: Block, shards: Shards) -> Op:
    """Execute the ops of ``block``; its ``yield`` or ``return``."""
    for op in block.ops:
        if isinstance(op, (mesh.Return, mesh.Yield)):
            return op
        if (compute := _meaning_of(op)) is None:
            op.reject("has no meaning at mesh level")
        try:
            results = compute(shards, op)
        except ValueError as error:
            fail("interp-shape", f"{op.NAME}: {error}", op.span)
        for value, lanes in zip(op.results, results, strict=True):
            _check_lanes(shards, op, value, lanes)
            shards.values[value] = lanes
    return Op()


def _check_lanes(shards: Shards, op: Op, value: Value, lanes: Array) -> None:
    expected = shards.sharding(value).shape
    if lanes.shape != expected:
        fail(
            "interp-layout",
            f"{op.NAME} gives {list(lanes.shape[1:])} lanes per core, but {value} has "
            f"{list(expected[1:])}",
            op.span,
            notes=[f"it lies as {value.type}"],
        )


def _beside(shards: Shards, left: Operand, right: Operand) -> Array:
    """The lanes of ``right``, repeated over dims of ``left`` that it lacks."""
    lanes, own = shards.of(right), shards.of(left)
    for dim, count in zip(dims_of(right), lanes.shape, strict=True):
        if count != own.shape[dims_of(left).index(dim)]:
            raise ValueError(f"{count} lanes of {dim} beside {own.shape[dims_of(left).index(dim)]}")
    return aligned(lanes, dims_of(right), dims_of(left))


def _both(shards: Shards, op: Op) -> tuple[Array, Array]:
    left, right = op.operands
    return shards.of(left), _beside(shards, left, right)


# --- pointwise


@meaning(mesh.Add)
def _add(shards: Shards, op: mesh.Add) -> list[Array]:
    left, right = _both(shards, op)
    return [left + right]


@meaning(mesh.Mul)
def _mul(shards: Shards, op: mesh.Mul) -> list[Array]:
    left, right = _both(shards, op)
    return [left * right]


@meaning(mesh.Div)
def _div(shards: Shards, op: mesh.Div) -> list[Array]:
    left, right = _both(shards, op)
    return [left / right]


@meaning(mesh.ExpSub)
def _exp_sub(shards: Shards, op: mesh.ExpSub) -> list[Array]:
    left, right = _both(shards, op)
    return [np.exp(left - right)]


@meaning(mesh.Larger)
def _larger(shards: Shards, op: mesh.Larger) -> list[Array]:
    left, right = _both(shards, op)
    return [np.maximum(left, right)]


@meaning(mesh.AtLeast)
def _at_least(shards: Shards, op: mesh.AtLeast) -> list[Array]:
    return [np.maximum(shards.of(op.operands[0]), op.value)]


@meaning(mesh.TopK)
def _top_k(shards: Shards, op: mesh.TopK) -> list[Array]:
    scores, *bias = op.operands
    axis = dims_of(scores).index(op.dim)
    added = np.moveaxis(_beside(shards, scores, bias[0]), axis, -1) if bias else None
    gates = gating.top_k(np.moveaxis(shards.of(scores), axis, -1), added, op.attributes())
    return [np.moveaxis(gates, -1, axis)]


@meaning(mesh.Scale)
def _scale(shards: Shards, op: mesh.Scale) -> list[Array]:
    return [shards.of(op.operands[0]) * op.factor]


def _function(shards: Shards, op: Function) -> list[Array]:
    formula = formulas.formula_of(op.NAME.removeprefix("mesh."))
    return [formula(shards.of(op.operands[0]), **op.attributes())]


def _meaning_of(op: Op) -> Meaning | None:
    of_level = isinstance(op, Function) and op.NAME.startswith("mesh.")
    return _function if of_level else MEANINGS.get(type(op))


@meaning(mesh.RmsScale)
def _rms_scale(shards: Shards, op: mesh.RmsScale) -> list[Array]:
    x, squares, gain = op.operands
    count = prod(shards.extents[dim] for dim in (op.dim, *op.also))
    root = np.sqrt(_beside(shards, x, squares) / count + op.eps)
    return [shards.of(x) / root * _beside(shards, x, gain)]


@meaning(mesh.InverseRms)
def _inverse_rms(shards: Shards, op: mesh.InverseRms) -> list[Array]:
    mean = shards.of(op.operands[0]) / shards.extents[op.dim]
    return [1 / np.sqrt(mean + op.eps)]


@meaning(mesh.Mask)
def _mask(shards: Shards, op: mesh.Mask) -> list[Array]:
    (x,) = op.operands
    sharding = shards.sharding(x)
    key = aligned(sharding.of_dim(op.dim), (CORES, op.dim), dims_of(x))
    hidden = key == PAD
    if op.kind == "causal":
        row = np.zeros(1, np.int64)
        if op.rows in dims_of(x):
            row = aligned(sharding.of_dim(op.rows), (CORES, op.rows), dims_of(x))
        # A pad row sees every key, as does that of an absent request, so that its softmax stays a
        # number.
        position = position_of(shards, op, x, dims_of(x))
        seen = key <= position + row
        if op.window and _has_window(op, shards.layer):
            seen &= key > position + row - op.window
        seen |= (row == PAD) | (position < 0)
        hidden = hidden | ~seen
    return [np.where(hidden, -np.inf, shards.of(x))]


def _has_window(op: mesh.Mask, layer: int) -> bool:
    if op.but:
        return (layer + 1) % op.but != 0
    return layer >= op.after and layer % op.every == 0


@meaning(mesh.KeepLanes)
def _keep_lanes(shards: Shards, op: mesh.KeepLanes) -> list[Array]:
    (x,) = op.operands
    element = aligned(shards.sharding(x).of_dim(op.dim), (CORES, op.dim), dims_of(x))
    return [np.where(element == PAD, 0, shards.of(x))]


@meaning(mesh.Rope)
def _rope(shards: Shards, op: mesh.Rope) -> list[Array]:
    (x,) = op.operands
    sharding, dims = shards.sharding(x), dims_of(x)
    lanes = np.moveaxis(shards.of(x), dims.index(op.dim), -1)
    pair = _pairs(sharding.of_dim(op.dim), op)
    frequency = formulas.frequencies(op, shards.extents[op.dim], shards.layer)[pair]
    rest = tuple(d for d in dims if d != op.dim)
    position = position_of(shards, op, x, rest)
    if op.rows in dims:
        row = np.maximum(sharding.of_dim(op.rows), 0)
        position = position + aligned(row, (CORES, op.rows), rest)
    angle = position[..., None] * aligned(frequency, (CORES, op.dim), (*rest, op.dim))
    turned = np.stack(formulas.turned(lanes[..., 0::2], lanes[..., 1::2], angle), -1)
    return [np.moveaxis(turned.reshape(lanes.shape), -1, dims.index(op.dim))]


def _pairs(elements: Array, op: mesh.Rope) -> Array:
    """Which pair each two neighbouring lanes hold (pad lanes count as pair 0)."""
    first = elements[:, 0::2]
    second = elements[:, 1::2] if elements.shape[1] % 2 == 0 else np.zeros(0)
    whole = first.shape == second.shape and bool(
        ((first == PAD) & (second == PAD) | (first % 2 == 0) & (second == first + 1)).all()
    )
    if op.style != "interleaved" or not whole:
        fail("interp-layout", f"{op.NAME}: a pair of {op.dim} is not on one core", op.span)
    return np.maximum(first, 0) // 2


# --- reductions


@meaning(mesh.RowMax)
def _row_max(shards: Shards, op: mesh.RowMax) -> list[Array]:
    (x,) = op.operands
    return [shards.of(x).max(dims_of(x).index(op.dim), initial=-np.inf)]


@meaning(mesh.FirstAt)
def _first_at(shards: Shards, op: mesh.FirstAt) -> list[Array]:
    x, top = op.operands
    index = aligned(shards.sharding(x).of_dim(op.dim), (CORES, op.dim), dims_of(x))
    found = (shards.of(x) == _beside(shards, x, top)) & (index != PAD)
    return [np.where(found, -index, -np.inf).max(dims_of(x).index(op.dim), initial=-np.inf)]


@meaning(mesh.RowSum)
def _row_sum(shards: Shards, op: mesh.RowSum) -> list[Array]:
    (x,) = op.operands
    return [shards.of(x).sum(dims_of(x).index(op.dim))]


@meaning(mesh.SquareSum)
def _square_sum(shards: Shards, op: mesh.SquareSum) -> list[Array]:
    (x,) = op.operands
    axes = tuple(dims_of(x).index(dim) for dim in op.over())
    return [np.square(shards.of(x)).sum(axes) / op.sharing()]


# --- products


@meaning(mesh.Gemv)
def _gemv(shards: Shards, op: mesh.Gemv) -> list[Array]:
    left = op.operands[0]
    results = []
    for right, value in zip(op.operands[1:], op.results, strict=True):
        lanes, dims = _own_heads(shards, op, left, right)
        over, wanted = op.contract, dims_of(value)
        results.append(contracted(shards.of(left), dims_of(left), lanes, dims, over, wanted))
    return results


def _own_heads(shards: Shards, op: mesh.Gemv, left: Operand, right: Operand) -> tuple[Array, Dims]:
    """The right operand with, for every head the core has, the entry of the group it belongs to."""
    lanes, dims = shards.of(right), dims_of(right)
    if not op.group or op.group[1] not in dims:
        return lanes, dims
    heads, groups = op.group
    head = shards.sharding(left).of_dim(heads)
    per_group = shards.extents[heads] // shards.extents[groups]
    wanted = np.where(head == PAD, PAD, head // per_group)
    lane, held = lane_of(wanted, shards.sharding(right).of_dim(groups))
    if not (held | (head == PAD)).all():
        fail("interp-layout", f"{op.NAME}: a core lacks the group of one of its heads", op.span)
    axis = dims.index(groups)
    spread = aligned(lane, (CORES, heads), tuple(heads if d == groups else d for d in dims))
    return np.take_along_axis(lanes, spread, axis), tuple(heads if d == groups else d for d in dims)


@meaning(mesh.Gemm)
@meaning(mesh.GemmT)
def _gemm(shards: Shards, op: mesh.Gemm | mesh.GemmT) -> list[Array]:
    left, left_dims = shards.gathered(op.operands[0], op), tensor_type(op.operands[0]).dims
    heads = left.shape[left_dims.index(op.group[0])] if op.group else 0
    results = []
    for operand, value in zip(op.operands[1:], op.results, strict=True):
        logical, dims = shards.gathered(operand, op), tensor_type(operand).dims
        right, right_dims = ungrouped(logical, dims, op.group, heads)
        wanted = tensor_type(value).dims
        product = contracted(left, left_dims, right, right_dims, op.contract, wanted)
        results.append(shards.sharding(value).scatter(product))
    return results


# --- layers


@meaning(mesh.Repeat)
def _repeat(shards: Shards, op: mesh.Repeat) -> list[Array]:
    (body,) = op.regions
    carried = [shards.of(o) for o in op.operands[: op.carried]]
    collected = op.results[op.carried :]
    kept = [np.zeros(shards.sharding(v).shape, carried[0].dtype) for v in collected]
    if op.rounds:
        stacks = [op.continued(i) for i in range(op.carried, len(op.results))]
        kept = [shards.of(stack).copy() for stack in stacks]
    for layer in rounds_of(op, shards.extents[op.dim], shards.scalars):
        shards.layer = layer
        slices = [_slice(shards, o, op.dim, layer) for o in op.operands[op.carried :]]
        shards.values.update(zip(body.args, [*carried, *slices], strict=True))
        given = [shards.of(o) for o in run_block(body, shards).operands]
        carried = given[: op.carried]
        for value, stack, lanes in zip(collected, kept, given[op.carried :], strict=True):
            lane, held = _layer_lane(shards, value, op.dim, layer)
            stack[held, lane[held]] = lanes[held]
    return [*carried, *kept]


def _layer_lane(shards: Shards, value: Operand, dim: str, layer: int) -> tuple[Array, Array]:
    """On every core the lane of a stacked value that holds ``layer``, and whether one does."""
    elements = shards.sharding(value).of_dim(dim)
    lane, held = lane_of(np.full((len(elements), 1), layer), elements)
    return lane[:, 0], held[:, 0]


def _slice(shards: Shards, operand: Operand, dim: str, layer: int) -> Array:
    """One layer of a stacked value. Where layers are dealt to regions, every region gets what the
    one has that runs the layer, and computes the same."""
    lane, held = _layer_lane(shards, operand, dim, layer)
    lanes = shards.of(operand)[np.arange(len(lane)), lane]
    by_region = lanes.reshape(shards.mesh.regions, -1, *lanes.shape[1:])
    owner = int(np.argmax(held)) // len(by_region[0])
    return np.broadcast_to(by_region[owner], by_region.shape).reshape(lanes.shape)

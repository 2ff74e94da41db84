"""Ops of the mesh level whose nodes work on what they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshc.analysis.rotary_angles import rope_frequencies
from meshc.backends.ttlang.panels import Panel, alike, numbers_of
from meshc.backends.ttlang.pointwise import constant, own, pointwise, square
from meshc.backends.ttlang.program import PhaseProgram, writes
from meshc.ir.core import Op, tensor_type
from meshc.ir.core import Operand as Argument
from meshc.ir.functions import ON_MESH, Function
from meshc.ir.ops import mesh
from meshc.ir.types import DType, Layout, TensorType

_BINARY: dict[type[Op], str] = {
    mesh.Add: "{a} + {b}",
    mesh.Mul: "{a} * {b}",
    mesh.Div: "{a} / {b}",
    mesh.ExpSub: "ttl.math.exp({a} - {b})",
    mesh.Larger: "ttl.math.max({a}, {b})",
}
_REDUCED: dict[type[Op], str] = {
    mesh.RowSum: "ttl.math.reduce_sum({a}, dims=[-1], shape=(1, 1))",
    mesh.SquareSum: "ttl.math.reduce_sum({a} * {a}, dims=[-1], shape=(1, 1))",
    mesh.RowMax: "ttl.math.reduce_max({a}, dims=[-1], shape=(1, 1))",
}
_FUNCTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "mesh.silu": ("ttl.math.silu({a})", ()),
    "mesh.sigmoid": ("ttl.math.sigmoid({a})", ()),
    "mesh.exp": ("ttl.math.exp({a})", ()),
    "mesh.tanh": ("ttl.math.tanh({a})", ()),
    "mesh.relu2": ("ttl.math.square(ttl.math.relu({a}))", ()),
    "mesh.quick_gelu": ("{a} * ttl.math.sigmoid({a} * {b})", (1.702,)),
}
_GELU: dict[str, tuple[str, tuple[float, ...]]] = {
    "erf": ("ttl.math.gelu({a})", ()),
    "tanh": (
        "{a} * {b} * ({c} + ttl.math.tanh(({a} + {a} * {a} * {a} * {e}) * {d}))",
        (0.5, 1.0, float(np.sqrt(2 / np.pi)), 0.044715),
    ),
}


def _simple(
    program: PhaseProgram, op: Op, expression: str, others: Sequence[Argument] = (),
    numbers: Sequence[float] = (),
) -> None:  # fmt: skip
    """An op whose result lies as its first operand ``{a}``; ``others`` and then ``numbers`` are
    ``{b}``, ``{c}``, .."""
    name, panel = program.of(op.operands[0])
    if panel.line:
        program.refuse(op, f"{op.operands[0]} has no rows")
    beside = [(name, own(panel)), *(program.beside(op, panel, value) for value in others)]
    beside += [(program.number(value), constant(panel.width)) for value in numbers]
    made = alike(panel, tensor_type(op.result))
    operation = pointwise(program.grid, made, [operand for _, operand in beside], expression)
    program.give(op, op.result, operation, [tensor for tensor, _ in beside], made)


@writes(*_BINARY)
def _binary(program: PhaseProgram, op: Op) -> None:
    _simple(program, op, _BINARY[type(op)], op.operands[1:])


@writes(*ON_MESH.values())
def _function(program: PhaseProgram, op: Function) -> None:
    attributes: dict[str, Any] = op.attributes()
    expression, numbers = _FUNCTIONS.get(op.NAME, ("", ()))
    if op.NAME == "mesh.gelu":
        expression, numbers = _GELU[attributes["form"]]
    elif op.NAME == "mesh.clamp":
        expression = "ttl.math.max(ttl.math.min({a}, {b}), {c})"
        numbers = attributes["most"], attributes["least"]
    if not expression:
        program.refuse(op, "there are no operations for it")
    _simple(program, op, expression, numbers=numbers)


@writes(mesh.Scale)
def _scale(program: PhaseProgram, op: mesh.Scale) -> None:
    _simple(program, op, "{a} * {b}", numbers=(op.factor,))


@writes(mesh.AtLeast)
def _at_least(program: PhaseProgram, op: mesh.AtLeast) -> None:
    _simple(program, op, "ttl.math.max({a}, {b})", numbers=(op.value,))


@writes(mesh.InverseRms)
def _inverse_rms(program: PhaseProgram, op: mesh.InverseRms) -> None:
    numbers = (1 / program.module.dims[op.dim], op.eps)
    _simple(program, op, "ttl.math.rsqrt({a} * {b} + {c})", numbers=numbers)


@writes(mesh.RmsScale)
def _rms_scale(program: PhaseProgram, op: mesh.RmsScale) -> None:
    if op.also:
        program.refuse(op, f"it is over {op.dim} and {', '.join(op.also)}")
    numbers = (1 / program.module.dims[op.dim], op.eps)
    expression = "{a} * ttl.math.rsqrt({b} * {d} + {e}) * {c}"
    _simple(program, op, expression, op.operands[1:], numbers)


@writes(*_REDUCED)
def _reduced(program: PhaseProgram, op: mesh.RowReduction) -> None:
    name, panel = program.of(op.operands[0])
    if panel.line or panel.numbers or op.over() != panel.columns[-1:]:
        program.refuse(op, "it is not over the lanes of rows")
    made = numbers_of(panel, tensor_type(op.result))
    operation = pointwise(program.grid, made, [own(panel)], _REDUCED[type(op)])
    program.give(op, op.result, operation, [name], made)


def _of_one_head(panel: Panel) -> Panel:
    """What lies beside each head of ``panel``: its rows and their lanes."""
    dims = (*panel.rows, *panel.columns[-1:])
    splits = tuple(s for s in (panel.kind.layout or Layout()).splits if s.dim in dims)
    kind = TensorType(panel.kind.dtype, dims, Layout(splits))
    return Panel(kind, panel.rows, panel.columns[-1:], panel.height, 1, panel.width)


@writes(mesh.Mask)
def _mask(program: PhaseProgram, op: mesh.Mask) -> None:
    name, panel = program.of(op.operands[0])
    if op.kind == "none":
        program.put(op.result, name, alike(panel, tensor_type(op.result)))
        return
    if op.window and (op.every != 1 or op.but or op.after):
        program.refuse(op, "its window is not that of all layers")
    if panel.rows != (op.rows,) or panel.columns[-1:] != (op.dim,):
        program.refuse(op, "its scores are not rows of keys")
    seen = _of_one_head(panel)
    table = program.table("mask", seen, (("causal", op.window),), "mask")
    made = alike(panel, tensor_type(op.result))
    operands = [own(panel), own(seen, grouped=False)]
    operation = pointwise(program.grid, made, operands, "{a} + {b}")
    program.give(op, op.result, operation, [name, table], made)


@writes(mesh.Rope)
def _rope(program: PhaseProgram, op: mesh.Rope) -> None:
    name, panel = program.of(op.operands[0])
    if op.but or op.skip or op.rows not in panel.rows or panel.columns[-1:] != (op.dim,):
        program.refuse(op, "layers turn by other angles, or its lanes are not those of rows")
    lanes = program.grid.extents[op.dim]
    turns = tuple(rope_frequencies(op, lanes))
    angles = _of_one_head(panel)
    tables = [program.table(word, angles, ((word, turns),), word) for word in ("cosine", "sine")]
    whole = Panel(TensorType(DType.F32, (), Layout()), (), (), panel.width, 1, panel.width)
    pairs = program.table("pairs", whole, (("pairs", panel.width),), "pairs")
    made = alike(panel, tensor_type(op.result))
    operands = [own(panel), own(angles, False), own(angles, False), square(panel.width)]
    operation = pointwise(program.grid, made, operands, "{a} * {b} + ({a} @ {d}) * {c}")
    program.give(op, op.result, operation, [name, *tables, pairs], made)


@writes(mesh.KeepLanes)
def _keep_lanes(program: PhaseProgram, op: mesh.KeepLanes) -> None:
    """All lanes of a tile hold elements."""
    name, panel = program.of(op.operands[0])
    program.put(op.result, name, alike(panel, tensor_type(op.result)))

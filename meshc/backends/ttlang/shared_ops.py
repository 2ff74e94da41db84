"""Ops of the mesh level for which nodes send each other blocks, caches, and loops over layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshc.backends.ttlang.combining import combined
from meshc.backends.ttlang.node_elements import Elements
from meshc.backends.ttlang.operation import Node
from meshc.backends.ttlang.panels import Panel, alike, matrix
from meshc.backends.ttlang.products import Heads, summa, turned
from meshc.backends.ttlang.program import PhaseProgram, writes
from meshc.ir.core import Op, tensor_type
from meshc.ir.core import Operand as Argument
from meshc.ir.ops import mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value


@writes(mesh.AllReduce)
def _all_reduce(program: PhaseProgram, op: mesh.AllReduce) -> None:
    if op.reduce == "softmax":
        program.refuse(op, "it merges softmaxes")
    for operand, result in zip(op.operands, op.results, strict=True):
        name, panel = program.of(operand)
        made = alike(panel, tensor_type(result))
        if program.grid.mesh.size(op.axis) == 1:
            program.put(result, name, made)
            continue
        operation = combined(program.grid, panel, op.axis, op.reduce)
        program.give(op, result, operation, [name], made)


@writes(mesh.Gemm)
def _gemm(program: PhaseProgram, op: mesh.Gemm) -> None:
    name, left = program.of(op.operands[0])
    heads = tuple(dim for dim in left.columns if dim not in op.contract)
    if left.columns != (*heads, *program.several(op.contract)) or left.line or left.numbers:
        program.refuse(op, "what it contracts are not the last columns of its left side")
    if program.grid.mesh.whole(op.axis) != program.grid.mesh.across:
        program.refuse(op, "its left side moves along columns")
    contracted = program.several(op.contract)
    splits = (left.kind.layout or Layout()).splits
    skew = next((s.skew for s in splits if s.dim in contracted), "")
    order = _order(program, op, left, contracted, skew)
    for argument, result in zip(op.operands[1:], op.results, strict=True):
        new = tuple(d for d in tensor_type(argument).dims if d not in op.contract)
        right_name, right = _right(program, op, argument, (contracted, new), order)
        kind = tensor_type(result)
        columns = program.several([d for d in kind.dims if d not in left.rows])
        made = matrix(program.grid, result, left.rows, columns, kind)
        own_heads = _heads(program, op, left, right, heads)
        if columns[: len(heads)] != heads:
            program.refuse(op, "heads are not the first columns of its result")
        operation = summa(program.grid, left, right, made, op.axis, skew, own_heads, program.room)
        program.give(op, result, operation, [name, right_name], made)


def _order(
    program: PhaseProgram, op: Op, left: Panel, dims: tuple[str, ...], skew: str
) -> Elements:
    """What is contracted, in the order in which parts of the left side have it. Raises
    ``ttlang-op`` where nodes of one part differ."""
    assert isinstance(op, mesh.Gemm)
    grid = program.grid
    parts: dict[int, Elements] = {}
    for node in grid.nodes:
        part = grid.rotated(op.axis, skew, node)
        found = grid.elements(left.kind, dims, node)
        if not np.array_equal(parts.setdefault(part, found), found):
            program.refuse(op, "nodes of one part have other elements")
    order = np.concatenate([parts[part] for part in sorted(parts)])
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        program.refuse(op, f"{', '.join(dims)} of its left side does not lie over {op.axis} alone")
    return order


def _right(
    program: PhaseProgram, op: mesh.Gemm, argument: Argument,
    dims: tuple[tuple[str, ...], tuple[str, ...]], order: Elements,
) -> tuple[str, Panel]:  # fmt: skip
    """The right side of a product, rows of tiles being what is contracted, in ``order`` over the
    rows of nodes. A parameter is given so; what was computed must lie so."""
    grid, (contracted, new) = program.grid, dims
    crossing = grid.mesh.other(op.axis)
    share = len(order) // grid.mesh.size(crossing)

    def wanted(node: Node) -> Elements:
        part = grid.part(crossing, node)
        return order[part * share : (part + 1) * share]

    assert isinstance(argument, Value)
    source, _ = program.stacks.get(argument, (argument, 0))
    columns = program.several(new)
    if source in program.parameters:
        placed = _by_result(program, op, argument, contracted)
        panel = matrix(grid, argument, contracted, columns, placed)
        return program.parameter(argument, panel, wanted).name, panel
    name, panel = program.of(argument)
    if panel.rows != contracted or panel.columns != columns:
        program.refuse(op, f"{argument} is no matrix of what it contracts")
    for node in grid.nodes:
        if not np.array_equal(grid.elements(panel.kind, contracted, node), wanted(node)):
            program.refuse(op, f"parts of {argument} are not those of its left side")
    return name, panel


def _by_result(
    program: PhaseProgram, op: mesh.Gemm, argument: Value, contracted: tuple[str, ...]
) -> TensorType:
    """The type of a right side that is given: new dims as they lie in the result, and what is
    contracted in equal parts over rows of nodes."""
    result = op.results[op.operands.index(argument) - 1]
    layout = tensor_type(result).layout or Layout()
    kind = tensor_type(argument)
    own = (kind.layout or Layout()).splits
    held = tuple(replace(s, skew="") for s in own if s.dim in contracted)
    splits = held + tuple(s for s in layout.splits if s.dim in kind.dims)
    return kind.with_layout(Layout(splits))


def _heads(
    program: PhaseProgram, op: mesh.Gemm | mesh.GemmT, left: Panel, right: Panel,
    heads: tuple[str, ...],
) -> Heads:  # fmt: skip
    """How the products of heads share right sides; ``heads`` are those of the left one."""
    if not heads:
        return Heads()
    own_heads = program.grid.local(left.kind, heads)
    dims = (op.group[1],) if op.group else heads
    keys = program.grid.local(right.kind, program.several(dims))
    if len(heads) > 1 or own_heads % keys or (op.group and op.group[0] != heads[0]):
        program.refuse(op, "a node has no whole groups of heads")
    share = own_heads // keys
    for node in program.grid.nodes:
        query = program.grid.elements(left.kind, heads, node)
        key = program.grid.elements(right.kind, program.several(dims), node)
        if not np.array_equal(query // share, np.repeat(key, share)):
            program.refuse(op, "a node lacks the keys of one of its heads")
    return Heads(keys, share)


@writes(mesh.GemmT)
def _gemm_t(program: PhaseProgram, op: mesh.GemmT) -> None:
    (left_name, left), (right_name, right) = map(program.of, op.operands)
    grid, kind = program.grid, tensor_type(op.result)
    contracted = program.several(op.contract)
    heads = tuple(dim for dim in left.columns if dim not in contracted)
    columns = program.several([d for d in kind.dims if d not in left.rows])
    if left.columns != (*heads, *contracted) or right.columns[-1:] != contracted:
        program.refuse(op, "what it contracts are not the last columns of both sides")
    if columns != (*heads, *right.rows) or grid.mesh.whole(op.axis) != grid.mesh.across:
        program.refuse(op, "its result is not scores of rows beside rows")
    made = matrix(grid, op.result, left.rows, columns, kind)
    split = (kind.layout or Layout()).split_of(right.rows[0])
    skew = "" if split is None else split.skew
    crossing = grid.mesh.other(op.axis)
    parts = {
        grid.part(crossing, node): grid.elements(right.kind, right.rows, node)
        for node in grid.nodes
    }
    program.check_alike(op, left, right, contracted)
    for node in grid.nodes:
        part = grid.rotated(op.axis, skew, node)
        scores = grid.elements(kind, right.rows, node)
        rows = grid.elements(right.kind, right.rows, node)
        if part not in parts or len(parts) != grid.mesh.size(op.axis):
            program.refuse(op, "rows and columns of nodes are not as many")
        if not np.array_equal(parts[part], scores) or not np.array_equal(
            parts[grid.part(crossing, node)], rows
        ):
            program.refuse(op, "parts of its result are not those of its right side")
    own_heads = _heads(program, op, left, right, heads)
    operation = turned(grid, left, right, made, op.axis, skew, own_heads, program.room)
    program.give(op, op.result, operation, [left_name, right_name], made)


@writes(mesh.Append)
def _append(program: PhaseProgram, op: mesh.Append) -> None:
    """New rows are the whole cache: a program reads a prompt as long as its caches."""
    pairs = zip(op.operands[::2], op.operands[1::2], op.results, strict=True)
    for cache, new, result in pairs:
        name, panel = program.of(new)
        kind = tensor_type(cache)
        rows = tuple(op.dim if dim == op.rows else dim for dim in panel.rows)
        grown = replace(panel, kind=kind, rows=rows)
        if program.module.dims[op.dim] != program.module.dims[op.rows]:
            program.refuse(op, f"{op.rows} is not all of {op.dim}")
        for node in program.grid.nodes:
            held = program.grid.elements(kind, (*rows, *panel.columns), node)
            given = program.grid.elements(panel.kind, (*panel.rows, *panel.columns), node)
            if not np.array_equal(held, given):
                program.refuse(op, f"{new} does not lie as {cache} does")
        program.put(result, name, grown)


@writes(mesh.Repeat)
def _repeat(program: PhaseProgram, op: mesh.Repeat) -> None:
    (body,) = op.regions
    if op.rounds:
        program.refuse(op, "a run passes some of the layers")
    count = program.module.dims[op.dim]
    carried = []
    for argument, operand in zip(body.args, op.operands[: op.carried], strict=False):
        name, panel = program.of(operand)
        own_name = program.names.fresh(argument.name)
        program.say(f"{own_name} = {name}")
        program.put(argument, own_name, panel)
        carried.append(own_name)
    for argument, operand in zip(body.args[op.carried :], op.operands[op.carried :], strict=True):
        assert isinstance(operand, Value)
        if operand not in program.parameters:
            program.refuse(op, f"{operand} is a stack that was computed")
        program.stacks[argument] = operand, count
    kept = [program.names.fresh(value.name) for value in op.results[op.carried :]]
    for name in kept:
        program.say(f"{name} = []")
    program.say(f"for layer in range({count}):")
    program.depth += 1
    ending = program.block(body)
    given = [program.of(value) for value in ending.operands]
    for name, (found, _) in zip(kept, given[op.carried :], strict=True):
        program.say(f"{name}.append({found})")
    goes_on = given[: op.carried]
    program.say(f"{', '.join(carried)} = {', '.join(name for name, _ in goes_on)}")
    program.depth -= 1
    for value, name, (_, panel) in zip(
        op.results, [*carried, *kept], [*goes_on, *given[op.carried :]], strict=True
    ):
        program.put(value, name, panel)

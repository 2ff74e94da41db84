"""Products of single rows with weights: local products, then a reduction that flips the axis.

A vector over one axis times a weight whose rows lie over that axis and whose columns lie over the
other gives partial sums; their reduction leaves a vector over the other axis. Weights of
consecutive products have their axes swapped, so nothing is ever transposed (fine-grained
replication, WaferLLM section 4.2 and Fig. 4).
"""

from __future__ import annotations

from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import (
    column_splits,
    has_experts,
    has_heads,
    on_axis,
)
from meshc.passes.mesh.forms.contraction import contracted, left_of, new_dims
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering, Unscaled
from meshc.passes.mesh.forms.relayouts import move


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """``gemv_y``: the vector lies over ``y``, after a move if it does not lie there by itself.
    ``experts_y``: the same, with experts over the other axis, each whole where it lies.

    Heads lie over columns, so a product that makes them starts from rows.
    """
    left = way.peek(op.operands[0])
    own = _axis_of(way, left, op.contract)
    new = [new_dims(way, op, left, way.peek(r)) for r in op.operands[1:]]
    heads = any(has_heads(way, dims) for dims in new)
    axes = [axis for axis in (own, way.mesh.other(own)) if not heads or axis == way.mesh.down]
    found = [Form(f"gemv_{a}", lambda way, a=a: product_over(way, op, a)) for a in axes]  # type: ignore[misc]
    if has_experts(way, new):
        found += [
            Form(f"experts_{a}", lambda way, a=a: product_over(way, op, a, True))  # type: ignore[misc]
            for a in axes
        ]
    return found


def product_over(way: Lowering, op: graph.Matmul, axis: str, by_experts: bool = False) -> None:
    """A product of what lies over ``axis``, with its columns over the other one."""
    rights = [way.env_of(r) for r in op.operands[1:]]
    waiting = _unscaled(way, op, axis)
    left = waiting.value if waiting else left_of(way, op)
    contract = contracted(way, op, left, rights)
    if _axis_of(way, left, contract) != axis:
        left = move(way, left, on_axis(way, left, axis), op)
    held = way.restricted(left, contract).splits
    results = []
    for old, right in zip(op.results, rights, strict=True):
        new = new_dims(way, op, left, right)
        columns = column_splits(way, new, way.mesh.other(axis), by_experts)
        order = way.type_of(right).dims
        splits = tuple(s for d in order for s in (*held, *columns) if s.dim == d)
        way.place(right, Layout(splits), op)
        kind = way.partial(tensor_type(old).dims, columns, axis)
        results.append((old.name, kind if held else kind.with_layout(Layout(columns))))
    made = mesh.Gemv([left, *rights], contract=contract, group=op.group)
    values = way.emit(made, *results)
    if waiting is not None:
        *values, sums = way.all_reduce([*values, waiting.sums], axis)
        values = waiting.scaled(way, sums, values, [r.name for r in op.results])
    elif held:  # else every core has all that is contracted
        values = _reduced(way, values, axis, op.results)
    way.env.update(zip(op.results, values, strict=True))


def _unscaled(way: Lowering, op: graph.Matmul, axis: str) -> Unscaled | None:
    """The norm on the left whose sum of squares can travel in the reduction over ``axis``."""
    left = op.operands[0]
    waiting = way.pending.get(left) if isinstance(left, Value) else None
    if not isinstance(left, Value) or not isinstance(waiting, Unscaled):
        return None
    if way.layout_of(waiting.sums).partial != (axis,) or _at_roots(way, op.results):
        return None
    del way.pending[left]
    return waiting


def _at_roots(way: Lowering, results: list[Value]) -> bool:
    """Whether results are wanted on the first core of the reduction only: they leave main and are
    asked for there, or nothing but a choice reads them."""
    readers = [reader for result in results for reader in way.problem.used_by(result)]
    if readers and all(isinstance(reader, graph.ArgMax) for reader in readers):
        return not any(map(way.problem.is_returned, results))
    return way.problem.result == "roots" and all(map(way.problem.is_returned, results))


def _reduced(way: Lowering, values: list[Value], axis: str, users: list[Value]) -> list[Value]:
    """Complete the results of a product, graph values ``users``: on every core of the axis or,
    if they leave main and the setting ``result`` is ``roots``, on the first core only."""
    if not _at_roots(way, users) or way.mesh.size(axis) == 1:
        return way.all_reduce(values, axis)
    kinds = [way.type_of(v) for v in values]
    done = [
        TensorType(k.dtype, k.dims, Layout((k.layout or Layout()).splits, (), (axis,)))
        for k in kinds
    ]
    return way.emit(
        mesh.Reduce(list(values), axis=axis),
        *((v.name, kind) for v, kind in zip(values, done, strict=True)),
    )


def _axis_of(way: Lowering, value: Value, dims: tuple[str, ...]) -> str:
    """The axis of the plane over which ``dims`` lie, be it over its factors; columns where they lie
    over none or both, rows where they will be laid as activations are."""
    layout = way.type_of(value).layout
    if layout is None:
        return way.mesh.down
    axes = {way.mesh.whole(s.axis) for s in layout.splits if s.dim in dims}
    return axes.pop() if len(axes) == 1 else way.mesh.across

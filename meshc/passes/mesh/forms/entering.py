"""Forms of what enters a function: parameters, and rows of a table that the host looks up."""

from __future__ import annotations

from meshc.ir.core import Op, tensor_type
from meshc.ir.module import Param
from meshc.ir.ops import graph
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import (
    activation_layout,
    cache_layout,
    usual_axis,
    whole_rows,
)
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def is_hosted(way: Lowering, param: Param) -> bool:
    """Whether only the host reads ``param``: token ids and the embedding table."""
    users = way.problem.used_by(param.value)
    return bool(users) and all(isinstance(o, graph.Embed) for o in users)


def enter(way: Lowering, param: Param) -> list[Form]:
    """Activations enter over either axis; weights wait for their use, and so do inputs without rows
    of tokens, which are placed where their product wants them."""
    if param.role == "weight" or (param.role == "in" and _is_placed_by_product(way, param.value)):
        return [Form("by_use", lambda way: _constant(way, param))]
    if param.role == "state":
        return [Form("cache", lambda way: _cache(way, param))]
    kind = tensor_type(param.value)
    return _entering(way, param.value, kind.dims)


def embed(way: Lowering, op: Op) -> list[Form]:
    """The host looks tokens up in a table of the checkpoint; the rows enter as an input."""
    assert isinstance(op, graph.Embed)
    table, *learned = op.tensors()[1:]
    rows = [p.value for p in way.problem.source.function.params if p.role == "weight"]
    if any(positions not in rows for positions in learned):
        fail(
            "unsupported-op",
            f"positions are looked up in {learned[0]}, which is no weight",
            op.span,
        )
    if table not in rows or tensor_type(table).dims[0] != op.dim:
        over = ", ".join(tensor_type(table).dims)
        fail(
            "unsupported-op",
            f"tokens are looked up in {table} over {over}, which is no weight with a row for "
            "each of them",
            op.span,
            help=f"declare the table with {op.dim} first; products can transpose it",
        )
    return _entering(way, op.result, tensor_type(op.result).dims)


def _entering(way: Lowering, old: Value, dims: tuple[str, ...]) -> list[Form]:
    """Features enter over the usual axis; of single rows over the other one too, of many rows also
    whole on every core of a row."""

    def form(name: str, layout: Layout, only_pinned: bool = False) -> Form:
        return Form(name, lambda way: _activation(way, old, dims, layout), only_pinned)

    usual = usual_axis(way)
    axes = [usual]
    features = [d for d in dims if d != way.problem.row_dim]
    if features and not way.problem.many_rows:
        axes.append(way.mesh.other(usual))
    found = [form(f"over_{axis}", activation_layout(way, dims, axis)) for axis in axes]
    if features and way.problem.many_rows and way.mesh.columns > 1:
        found.append(form("whole", whole_rows(way, dims), not way.problem.holds_copies))
    return found


def _activation(way: Lowering, old: Value, dims: tuple[str, ...], layout: Layout) -> None:
    way.env[old] = way.value(old.name, TensorType(way.problem.dtype, dims, layout))
    way.params = (*way.params, Param(way.env[old], "in"))


def _cache(way: Lowering, param: Param) -> None:
    dims = tensor_type(param.value).dims
    kind = TensorType(way.problem.dtype, dims, cache_layout(way, dims))
    way.env[param.value] = way.value(param.value.name, kind)
    way.params = (*way.params, Param(way.env[param.value], param.role))


def _constant(way: Lowering, param: Param) -> None:
    kind = TensorType(way.problem.dtype, tensor_type(param.value).dims)
    value = way.env[param.value] = way.value(param.value.name, kind)
    way.weights.add(value)
    if param.role == "in":
        way.inputs.add(value)
    way.params = (*way.params, Param(value, param.role))


def _is_placed_by_product(way: Lowering, value: Value) -> bool:
    """Whether an input is no activation: it has no rows of tokens or, where nothing has, it is
    the right operand of products and nothing else."""
    if way.problem.row_dim:
        return way.problem.row_dim not in tensor_type(value).dims
    users = way.problem.used_by(value)
    return bool(users) and all(
        isinstance(o, graph.Matmul) and value in o.operands[1:] and value is not o.operands[0]
        for o in users
    )

"""Forms of ops that compute each element by itself: every core has its own lanes."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.functions import ON_MESH, Function
from meshc.ir.ops import graph, mesh
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.dispatch import keep_routes
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import move
from meshc.support.diagnostics import fail

_BINARY: dict[type[Op], type[Op]] = {graph.Add: mesh.Add, graph.Mul: mesh.Mul}


def of_two(way: Lowering, op: Op) -> list[Form]:
    """The second operand comes to where the first lies or, where both are whole activations, the
    first to where the second lies."""
    if any(o in way.at_experts for o in op.operands):
        return only("at_experts", _at_experts, op)
    found = [Form("as_first", lambda way: _as_first(way, op))]
    left, right = (way.type_of(way.peek(o)) for o in op.operands)
    both = left.layout is not None and right.layout is not None
    if both and left.dims == right.dims and left.layout != right.layout:
        found.append(Form("as_second", lambda way: _as_second(way, op)))
    return found


def _at_experts(way: Lowering, op: Op) -> None:
    """Both are at the same experts; the product with gates is left to whoever adds these up."""
    left, right = op.operands
    assert isinstance(left, Value) and isinstance(right, Value)
    known, other = way.at_experts.get(left), way.at_experts.get(right)
    if known is not None and isinstance(op, graph.Mul) and right is known.gates:
        way.env[op.result] = way.env[left]
        keep_routes(way, left, op.result, weighted=True)
        return
    both = known is not None and (other is None or other.routes is known.routes)
    if not both or (other is None and not way.is_weight(way.env_of(right))):
        fail("unsupported-layout", f"only one of {left} and {right} is at its experts", op.span)
    _as_first(way, op)
    keep_routes(way, left, op.result)


def _as_first(way: Lowering, op: Op) -> None:
    left, right = laid_out(way, way.env_of(op.operands[0])), way.env_of(op.operands[1])
    wanted = way.restricted(left, way.type_of(right).dims)
    if way.is_weight(right):
        way.place(right, wanted, op)
    elif way.type_of(right).layout != wanted:
        right = move(way, right, wanted, op)
    _emit(way, op, left, right)


def _as_second(way: Lowering, op: Op) -> None:
    left, right = (way.env_of(o) for o in op.operands)
    _emit(way, op, move(way, left, way.layout_of(right), op), right)


def _emit(way: Lowering, op: Op, left: Value, right: Value) -> None:
    made = _BINARY[type(op)]([left, right])
    way.env[op.result] = way.emit_like(made, op.result.name, left)


def of_one(way: Lowering, op: Op) -> list[Form]:
    """Each core works on the lanes it has."""
    return only("local", _of_one, op)


def _of_one(way: Lowering, op: Op) -> None:
    value = laid_out(way, way.env_of(op.operands[0]))
    made: Op
    if isinstance(op, Function):
        made = ON_MESH[type(op)]([value], **op.attributes())  # type: ignore[arg-type]
    else:
        assert isinstance(op, graph.Scale)
        made = mesh.Scale([value], factor=op.factor)
    way.env[op.result] = way.emit_like(made, op.result.name, value)
    if op.operands[0] in way.at_experts:
        assert isinstance(op.operands[0], Value)
        keep_routes(way, op.operands[0], op.result)

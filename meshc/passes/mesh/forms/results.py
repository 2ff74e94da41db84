"""Forms of what leaves a function, and of what ends the body of a loop."""

from __future__ import annotations

from meshc.ir.core import Op
from meshc.ir.ops import mesh
from meshc.passes.mesh.forms.asked_layouts import laid_out
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.relayouts import move


def yielded(way: Lowering, op: Op) -> list[Form]:
    """Carried values return to the type and the layout they entered with."""
    return only("as_entered", _yielded, op)


def _yielded(way: Lowering, op: Op) -> None:
    values = [laid_out(way, way.env_of(o)) for o in op.operands]
    for position, arg in enumerate(way.carried):
        values[position], entered = way.rounded(values[position]), way.layout_of(arg)
        if way.type_of(values[position]).layout != entered:
            values[position] = move(way, values[position], entered, op)
    way.emit(mesh.Yield(list(values)))


def returned(way: Lowering, op: Op) -> list[Form]:
    """Results leave as they lie."""
    return only("as_they_lie", _returned, op)


def _returned(way: Lowering, op: Op) -> None:
    way.emit(mesh.Return([way.env_of(asked) for asked in op.tensors()]))

"""The form of cache appends: all that come together enter in one op, before a cache is read."""

from __future__ import annotations

from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph, mesh
from meshc.ir.values import Value
from meshc.passes.mesh.forms.form import Form, only
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.support.diagnostics import fail


def append(way: Lowering, op: Op) -> list[Form]:
    """New rows lie on the columns where the cache has them."""
    return only("joint", _wait, op)


def _wait(way: Lowering, op: Op) -> None:
    assert isinstance(op, graph.Append)
    way.appends.append(op)


def flush(way: Lowering, user: Op) -> None:
    """Emit the appends that wait as one op, once ``user`` needs a cache."""
    ends = isinstance(user, (graph.Yield, graph.Return))
    used = ends or any(a.result in user.operands for a in way.appends)
    if not way.appends or not used:
        return
    operands: list[Operand] = []
    for waiting in way.appends:
        cache, new = (way.env_of(o) for o in waiting.operands)
        _check_columns(way, cache, new, waiting)
        operands += [cache, new]
    first = way.appends[0]
    made = mesh.Append(operands, span=first.span, dim=first.dim, rows=first.rows)
    caches = [o for o in operands[::2] if isinstance(o, Value)]
    results = way.emit(made, *((f"{c.name}.new", way.type_of(c)) for c in caches))
    for waiting, value in zip(way.appends, results, strict=True):
        way.env[waiting.result] = value
    way.appends = []


def _check_columns(way: Lowering, cache: Value, new: Value, op: Op) -> None:
    heads = way.heads()
    want = {s for s in way.layout_of(cache).splits if s.dim != heads.keys}
    have = {s for s in way.layout_of(new).splits if s.dim != way.problem.row_dim}
    if want != have:
        fail("unsupported-layout", f"new rows lie as {way.type_of(new).layout}", op.span)

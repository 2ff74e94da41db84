"""Forms of cache appends: the policy by which new rows enter. All that come together enter in one
op, before a cache is read."""

from __future__ import annotations

from meshc.ir.core import Op, Operand
from meshc.ir.ops import graph, mesh
from meshc.ir.values import Value
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.problem import AUTO
from meshc.support.diagnostics import fail

_READERS = (graph.Matmul, graph.Append, graph.Repeat, graph.Yield, graph.Return)
_BY_COST = ("shift", "cyclic")
"""``concat`` is for comparison: it leaves everything new to one row."""


def append(way: Lowering, op: Op) -> list[Form]:
    """New rows lie on the columns where the cache has them. ``shift`` hands old rows on around the
    ring of the mesh's rows, ``cyclic`` moves nothing; they differ where single rows enter one after
    the other. Those that enter in one op have one policy. Windows need to know the position of each
    slot, which ``cyclic`` keeps."""
    earlier = [other for other in way.problem.source.walk() if isinstance(other, graph.Append)]
    if any(op.operands[0] is other.result for other in earlier):
        fail(
            "unsupported-op",
            f"the new rows of this step are in {op.operands[0]} already",
            op.span,
            help="a cache takes one append a step",
        )
    _check_readers(way, op)
    wanted = way.problem.kv
    single = not way.problem.many_rows and way.mesh.rows > 1
    policies = _BY_COST if wanted == AUTO and single else (_BY_COST[0],)
    if wanted == AUTO and single and way.problem.windowed:
        policies = ("cyclic",)
    if way.appends:
        policies = (way.policy,)
    elif wanted != AUTO:
        policies = (wanted,)
    return [Form(policy, lambda way, p=policy: _wait(way, op, p)) for policy in policies]  # type: ignore[misc]


def _check_readers(way: Lowering, op: Op) -> None:
    """Raise ``unsupported-op`` for a cache that another op than a product reads: its rows lie in
    slots of their own."""
    for user in way.problem.source.walk():
        if op.results[0] in user.operands and not isinstance(user, _READERS):
            fail(
                "unsupported-op",
                f"{user.NAME} reads {op.results[0]}, a cache, which products alone do",
                user.span,
                help="apply it to the new rows before they are appended, or to what the product "
                "gives",
            )


def _wait(way: Lowering, op: Op, policy: str) -> None:
    assert isinstance(op, graph.Append)
    if op.coded:
        words = f"cores keep caches in the type of the model, and {op.result} is {op.coded}"
        fail("unsupported-op", words, op.span, help="leave out code-caches")
    way.appends.append(op)
    way.policy = policy


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
    made = mesh.Append(operands, span=first.span, dim=first.dim, rows=first.rows, policy=way.policy)
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

"""Forms in which experts compute only the rows that they are sent.

Rows go to the cores that hold their experts (``mesh.dispatch``), products and functions of elements
follow there for the rows that gates send (``mesh.expert_gemv``), and the last product is weighted
by the gates and added up over experts (``mesh.combine``) on the way back.

``dispatch_y`` of single rows: features lie over y and whole experts over the other axis; every core
has its features of all rows, so a dispatch sends nothing. The last product leaves features over y,
where they began. ``dispatch`` of many rows: whole experts over columns; features come to the cores
of a row and go back as a sum that each of them has (``combine``) or a part of (``combine_parts``).
"""

from __future__ import annotations

from meshc.ir.ops import graph, mesh
from meshc.ir.types import Layout, Split, TensorType
from meshc.ir.values import Value
from meshc.passes.mesh.forms.asked_layouts import lanes, on_axis
from meshc.passes.mesh.forms.contraction import contracted, left_of, rows_of
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.gemv import product_over
from meshc.passes.mesh.forms.lowering import AtExperts, Lowering
from meshc.passes.mesh.forms.relayouts import move, with_whole_features
from meshc.passes.mesh.forms.tensor_parallel import column_parallel
from meshc.support.diagnostics import fail


def forms(way: Lowering, op: graph.Matmul) -> list[Form]:
    """Those of a product of which some results are wanted for the rows alone that gates send, if
    these are known. What else it computes, such as for an expert that all rows are sent to, is a
    product of its own."""
    gates = {g for r in op.results if (g := way.problem.routes.by.get(r)) is not None}
    if len(gates) != 1 or next(iter(gates)).value not in way.env:
        return []
    if way.problem.many_rows:
        pinned = not way.problem.holds_copies
        columns = way.mesh.columns > 1
        across = way.mesh.across
        form = Form("dispatch", lambda way: _to_experts(way, op, "", across), pinned)
        return [form] if columns else []
    return [
        Form(f"dispatch_{a}", lambda way, a=a: _to_experts(way, op, a, way.mesh.other(a)))  # type: ignore[misc]
        for a in way.mesh.plane
    ]


def _to_experts(way: Lowering, op: graph.Matmul, axis: str, over: str) -> None:
    """Dispatch over ``over`` rows whose features lie over ``axis`` (nothing: are gathered), then
    multiply."""
    routed = way.problem.routes.by
    pairs = list(zip(op.results, op.operands[1:], strict=True))
    wanted = [(result, way.env_of(right)) for result, right in pairs if result in routed]
    others = [(result, right) for result, right in pairs if result not in routed]
    known = routed[wanted[0][0]]
    given = op.operands[0]
    left = rows_of(way, op) if way.problem.many_rows else left_of(way, op)
    rights = [right for _, right in wanted]
    contract = contracted(way, op, left, rights)
    if axis and any(s.axis != axis for s in way.layout_of(left).splits):
        left = move(way, left, on_axis(way, left, axis), op)
    elif axis and not way.layout_of(left).splits:
        fail("unsupported-layout", f"'{left.name}' lies over no axis", op.span)
    if others:
        rest = graph.Matmul([given, *(right for _, right in others)], contract=op.contract)
        rest.results, rest.span = [result for result, _ in others], op.span
        if axis:
            product_over(way, rest, axis)
        else:
            left = with_whole_features(way, left, op)
            column_parallel(way, rest)
    experts = Split(known.dim, over, lanes(way, known.dim, over))
    sent, routes = _dispatched(way, left, way.env[known.value], experts)
    held = way.restricted(sent, contract).splits
    at_rows = tuple(s for s in way.layout_of(routes).splits if s != experts)
    results = []
    for old, right in wanted:
        splits = (*held, experts)
        order = way.type_of(right).dims
        way.place(right, Layout(tuple(s for d in order for s in splits if s.dim == d)), op)
        dims = _dims(way, routes, right, contract)
        kind = way.summed(dims, Layout((*at_rows, experts)))
        if held:
            kind = way.partial(dims, (*at_rows, experts), axis)
        results.append((old.name, kind))
    made = mesh.ExpertGemv(
        [sent, routes, *rights], dim=known.dim, contract=contract, count=known.count
    )
    values = way.emit(made, *results)
    if held:
        values = way.all_reduce(values, axis)
    for (old, _), value in zip(wanted, values, strict=True):
        way.env[old] = value
        way.at_experts[old] = AtExperts(routes, known.value, False)


def _dispatched(way: Lowering, left: Value, gates: Value, experts: Split) -> tuple[Value, Value]:
    """The rows of ``left`` at their ``experts``, and the gates of these; what another product has
    dispatched already is taken as it is."""
    key = (left, gates, experts)
    if key not in way.dispatches:
        kind, given = way.type_of(left), way.type_of(gates)
        kept = tuple(s for s in way.layout_of(left).splits if s.axis != experts.axis)
        rows = tuple(s for s in kept if s.dim in given.dims)
        made = mesh.Dispatch([left, gates], dim=experts.dim, axis=experts.axis)
        behind = [d for d in kind.dims if d not in given.dims]
        dims = (*given.dims, *behind)
        ordered = (*rows, experts, *(s for s in kept if s not in rows))
        sent, routes = way.emit(
            made,
            (f"{left.name}.sent", TensorType(kind.dtype, dims, Layout(ordered))),
            (f"{gates.name}.routes", given.with_layout(Layout((*rows, experts)))),
        )
        way.dispatches[key] = (sent, routes)
    return way.dispatches[key]


def _dims(way: Lowering, routes: Value, right: Value, contract: tuple[str, ...]) -> tuple[str, ...]:
    """Rows and experts, then what the matrices of experts add."""
    dims = way.type_of(routes).dims
    return (*dims, *(d for d in way.type_of(right).dims if d not in (*dims, *contract)))


def combining(way: Lowering, op: graph.Matmul) -> list[Form]:
    """Those of a product that adds up experts of weighted values which lie at these."""
    if not way.problem.many_rows:
        return [Form("combine", lambda way: _combined(way, op, False))]
    return [
        Form("combine", lambda way: _combined(way, op, False)),
        Form("combine_parts", lambda way: _combined(way, op, True)),
    ]


def _combined(way: Lowering, op: graph.Matmul, parts: bool) -> None:
    left = op.operands[0]
    assert isinstance(left, Value)
    waiting, value = way.at_experts[left], way.rounded(way.env[left])
    if not waiting.weighted or len(op.operands) != 2:
        fail("unsupported-op", "a product that adds up experts without weights", op.span)
    routes, right, (old,) = waiting.routes, way.env_of(op.operands[1]), op.results
    (dim,) = [d for d in way.type_of(routes).dims if d in op.contract]
    experts = way.layout_of(routes).split_of(dim)
    assert experts is not None
    contract = tuple(d for d in op.contract if d != dim)
    rows = tuple(s for s in way.layout_of(routes).splits if s != experts)
    dims = _dims(way, routes, right, contract)
    new = [d for d in dims if d not in way.type_of(routes).dims]
    columns: tuple[Split, ...] = ()
    if not way.problem.many_rows:
        axis = way.mesh.other(experts.axis)
        columns = (Split(new[-1], axis, lanes(way, new[-1], axis)),)
    order = way.type_of(right).dims
    splits = (experts, *columns)
    way.place(right, Layout(tuple(s for d in order for s in splits if s.dim == d)), op)
    product = way.summed(dims, Layout((*rows, experts, *columns)))
    made = mesh.ExpertGemv(
        [value, routes, right],
        dim=dim,
        contract=contract,
        count=way.problem.routes.count_of(dim),
    )
    (each,) = way.emit(made, (f"{old.name}.each", product))
    total = way.partial(tuple(d for d in dims if d != dim), (*rows, *columns), experts.axis)
    (summed,) = way.emit(mesh.Combine([each, routes], dim=dim), (old.name, total))
    if parts and way.mesh.size(experts.axis) > 1:
        split = Split(new[-1], experts.axis, lanes(way, new[-1], experts.axis))
        kind = total.with_layout(Layout((*rows, split)))
        scattered = mesh.ReduceScatter([summed], axis=experts.axis, dim=new[-1])
        (summed,) = way.emit(scattered, (old.name, kind))
    else:
        (summed,) = way.all_reduce([summed], experts.axis)
    way.env[old] = summed


def keep_routes(way: Lowering, left: Value, result: Value, weighted: bool = False) -> None:
    """``result`` is at the experts that ``left`` is at, and weighted by gates if ``left`` is or
    it is now."""
    known = way.at_experts[left]
    way.at_experts[result] = AtExperts(known.routes, known.gates, known.weighted or weighted)

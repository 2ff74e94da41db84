"""Builtins that make colors, queues, task ids and registers."""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.builtins.arguments import check_id
from meshc.sim.sema.csl_types import Type
from meshc.sim.sema.registry import Analyzer, builtin
from meshc.sim.sema.values import Frame, Val
from meshc.support.diagnostics import fail

_LIMITS = {
    "get_color": (ty.COLOR, 64),  # above 31: entry points of SDK 0.x, and "no color" in 1.0
    "get_input_queue": (ty.INPUT_QUEUE, 8),
    "get_output_queue": (ty.OUTPUT_QUEUE, 8),
    "get_local_task_id": (ty.LOCAL_TASK, 32),
    "get_control_task_id": (ty.CONTROL_TASK, 64),
    "get_ut_id": (ty.UT, 8),
}


@builtin(*_LIMITS, args=(1, 1))
def _make_id(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind, limit = _LIMITS[node.name]
    value = an.eval(node.args[0], frame)
    if not ty.is_int(value.type) and value.type != kind:
        fail("csl-type", f"@{node.name} needs an integer, found '{value.type}'", node.span)
    if not value.known:
        return Val(kind, value.v, False)
    number = an.as_number(value, node.span)
    if not 0 <= number < limit:
        fail("csl-range", f"{number} is no {kind}; the largest is {limit - 1}", node.span)
    if node.name == "get_local_task_id" and an.arch == "wse3" and number < 8:
        fail("csl-range", f"local task id {number}: WSE-3 has local task ids 8 to 30", node.span)
    if node.name == "get_output_queue" and an.arch == "wse2" and number > 5:
        fail("csl-range", f"output queue {number}: WSE-2 has output queues 0 to 5", node.span)
    if node.name == "get_ut_id" and an.arch == "wse2":
        fail("csl-type", "@get_ut_id exists on WSE-3 only", node.span)
    return Val(kind, number)


@builtin("get_data_task_id", args=(1, 1))
def _data_task(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.eval(node.args[0], frame)
    if an.arch == "wse3" and value.type == ty.COLOR:
        fail(
            "csl-type",
            "on WSE-3 a data task id comes from an input queue, not from a color",
            node.span,
        )
    if an.arch == "wse2" and value.type == ty.INPUT_QUEUE:
        fail("csl-type", "on WSE-2 a data task id comes from a color, not a queue", node.span)
    source, count = (ty.COLOR, 64) if an.arch == "wse2" else (ty.INPUT_QUEUE, 8)
    check_id(value, source, count, "what @get_data_task_id is given", node.span)
    return Val(ty.DATA_TASK, value.v, value.known)


@builtin("get_dsr", args=(2, 2))
def _get_dsr(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = an.type_from(node.args[0], frame)
    if kind not in ty.DSRS:
        fail("csl-type", f"'{kind}' is no kind of data structure register", node.span)
    number = an.number(node.args[1], frame)
    if not 0 <= number < 48:
        fail("csl-range", f"there is no {kind} number {number}", node.span)
    return Val(kind, number)


@builtin("get_xdsr", "get_sr", args=(1, 1))
def _get_xdsr(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    kind = ty.XDSR if node.name == "get_xdsr" else ty.SR
    number = an.number(node.args[0], frame)
    if number < 0:
        fail("csl-range", f"there is no {kind} number {number}", node.span)
    return Val(kind, number)


@builtin("get_color_id", args=(1, 1))
def _color_id(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    """The number of a color, before ``@get_int`` took its place."""
    value = an.eval(node.args[0], frame)
    if value.type != ty.COLOR:
        fail("csl-type", f"@get_color_id needs a color, found '{value.type}'", node.span)
    return Val(ty.U16, value.v if value.known else ir.Bits(ty.U16, value.v), value.known)

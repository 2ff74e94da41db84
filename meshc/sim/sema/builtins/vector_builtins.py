"""Vector operations, ``@map``, and loads of data structure registers."""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.descriptors import Mem
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.builtins.arguments import check_id, check_names, fields_of, flag, priority_level
from meshc.sim.sema.builtins.tasks import gate_target
from meshc.sim.sema.builtins.values import VOID
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Enum, Float, Fn, Int, Pointer, Type
from meshc.sim.sema.registry import Analyzer, builtin
from meshc.sim.sema.values import Frame, Val
from meshc.sim.vector_ops import BUILTINS, OPS, operation
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

_OPTION_NAMES = ("async", "activate", "unblock", "index", "ut_id", "priority", "on_control",
                 "save_address", "single_step", "microthread")  # fmt: skip


def _vector(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    spec = OPS[operation(node.name, an.unit.half)]
    values = an.all_in_order(node.args, frame)
    options = ir.OpOptions()
    if values and values[-1].type == ty.STRUCT:
        options = op_options(an, values.pop().v, node.span)
    if len(values) != len(spec.types):
        fail(
            "csl-type",
            f"'@{node.name}' takes {len(spec.types)} operands, found {len(values)}",
            node.span,
        )
    operands = [
        operand(an, value, kind, node.span, position == 0)
        for position, (value, kind) in enumerate(zip(values, spec.types, strict=True))
    ]
    _check_async(values, options, node.span)
    result = None if want == ty.VOID else an.unit.temp(ty.BOOL)
    if frame.known:
        fail("csl-comptime", f"'@{node.name}' cannot run at compile time", node.span)
    an.emit(frame, ir.VectorOp(an.place_of(node), result, spec.name, operands, options))
    if result is None:
        return VOID
    return Val(ty.BOOL, ir.Local(ty.BOOL, result), False)


def _check_async(values: list[Val], options: ir.OpOptions, span: Span) -> None:
    if not options.is_async:
        return
    if any(v.type in (ty.FABIN, ty.FABOUT) or v.type in ty.DSRS for v in values):
        return
    fail("csl-dsd", "only an operation with a fabric operand can be asynchronous", span)


def operand(an: Analyzer, value: Val, kind: Type, span: Span, is_dst: bool) -> ir.Expr:
    """One operand of a vector operation as code."""
    if value.type in ty.DSDS or value.type in ty.DSRS:
        _check_side(value, is_dst, span)
        return an.code(value)
    if isinstance(value.type, Pointer) and not isinstance(value.type.target, Fn):
        size = ty.size_of(value.type.target)
        if value.known:
            return ir.Const(ty.MEM1D, Mem(value.v, 0, 0, size, scalar=True))
        return ir.Runtime(ty.MEM1D, "scalar_mem", [value.v, ir.Const(ty.U16, size)])
    if is_dst:
        fail("csl-type", f"the destination must be a DSD or a pointer, not '{value.type}'", span)
    return _scalar(an, value, kind, span)


def _check_side(value: Val, is_dst: bool, span: Span) -> None:
    if is_dst and value.type == ty.FABIN:
        fail("csl-dsd", "a fabin_dsd cannot be a destination", span)
    if not is_dst and value.type == ty.FABOUT:
        fail("csl-dsd", "a fabout_dsd cannot be a source", span)


def _scalar(an: Analyzer, value: Val, kind: Type, span: Span) -> ir.Expr:
    """Float operands convert; bit operands take any scalar of the width."""
    if isinstance(kind, Float):
        return an.code(coerce(value, kind, span))
    assert isinstance(kind, Int)
    if value.type == ty.COMPTIME_FLOAT:
        value = coerce(value, ty.F32 if kind.bits == 32 else an.unit.half, span)
    if value.type == ty.COMPTIME_INT:
        if not -(1 << (kind.bits - 1)) <= value.v < (1 << kind.bits):
            fail("csl-range", f"{value.v} does not fit {kind.bits} bits", span)
        return ir.Const(kind, kind.wrap(value.v))
    base = value.type.base if isinstance(value.type, Enum) else value.type
    if isinstance(base, Int) and base.bits < kind.bits:
        return an.code(Val(kind, kind.wrap(value.v)) if value.known
                       else Val(kind, ir.Cast(kind, value.v), False))  # fmt: skip
    if ty.size_of(base) * 8 != kind.bits:
        fail("csl-type", f"operand of type '{value.type}' where {kind.bits} bits go", span)
    code = an.code(value)
    return code if code.type == kind else ir.Bits(kind, code)


def op_options(an: Analyzer, fields: dict[str, Val], span: Span) -> ir.OpOptions:
    """The options struct at the end of a vector operation or register load."""
    options = ir.OpOptions()
    for name, value in fields.items():
        if name not in _OPTION_NAMES:
            fail("csl-unknown-name", f"unknown option '.{name}'", span)
        if name in ("async", "save_address", "single_step"):
            known = flag(fields, name, span)
            options.is_async = known if name == "async" else options.is_async
        elif name == "activate":
            options.activate = _task_code(an, value, span)
        elif name == "unblock":
            options.unblock = gate_target(an, value, span)
        elif name == "index":
            options.index = an.code(coerce(value, ty.U16, span))
        elif name in ("ut_id", "microthread"):
            check_id(value, ty.UT, 8, f"'.{name}'", span)
            options.ut_id = an.code(value)
        elif name == "priority":
            options.priority = priority_level(value, span)
        elif name == "on_control":
            _on_control(an, fields_of(value, span), options, span)
    if options.activate is not None and options.unblock is not None:
        fail("csl-dsd", "an operation may have '.activate' or '.unblock', not both", span)
    return options


def _on_control(an: Analyzer, fields: dict[str, Val], options: ir.OpOptions, span: Span) -> None:
    check_names(fields, ("terminate", "activate", "unblock"), "'.on_control'", span)
    for name, value in fields.items():
        if name == "terminate":
            ends = flag(fields, name, span)
            options.on_control = options.on_control or ("terminate" if ends else "")
        elif name == "activate":
            options.on_control, options.on_control_activate = (
                "activate",
                _task_code(an, value, span),
            )
        elif name == "unblock":
            options.on_control = "unblock"
            options.on_control_unblock = gate_target(an, value, span)


def _task_code(an: Analyzer, value: Val, span: Span) -> ir.Expr:
    kind, code = gate_target(an, value, span)
    if kind not in ("local", "task", "color"):
        fail("csl-type", "'.activate' needs a local task", span)
    return code


for _name in BUILTINS:
    builtin(_name, args=(1, 6))(_vector)


@builtin("load_to_dsr", "load_to_dsr_xdsr", "load_to_dsr_xdsr_sr", args=(2, 5))
def _load(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    values = an.all_in_order(node.args, frame)
    dsr = values[0]
    if dsr.type not in ty.DSRS:
        fail("csl-type", f"'@{node.name}' needs a register, found '{dsr.type}'", node.span)
    fields = values[-1].v if values[-1].type == ty.STRUCT else {}
    dsd = next((v for v in values[1:] if v.type in ty.DSDS), None)
    if dsd is None:
        fail("csl-type", f"'@{node.name}' needs a DSD", node.span)
    for value in values[1:-1] if fields else values[1:]:
        if value is not dsd and value.type not in (ty.XDSR, ty.SR, ty.STRUCT):
            fail("csl-type", f"'@{node.name}' has no use for a '{value.type}'", node.span)
    bank = str(dsr.type)[4:]
    if bank == "dest" and dsd.type == ty.FABIN:
        fail("csl-dsd", "a fabin_dsd cannot be loaded to a dsr_dest", node.span)
    if bank != "dest" and dsd.type == ty.FABOUT:
        fail("csl-dsd", f"a fabout_dsd cannot be loaded to a {dsr.type}", node.span)
    stmt = ir.LoadDsr(
        an.place_of(node),
        bank,
        an.code(Val(ty.U16, dsr.v, dsr.known)),
        an.code(dsd),
        op_options(an, fields, node.span),
        flag(fields, "save_address", node.span),
        flag(fields, "single_step", node.span),
    )
    if frame.known:
        an.unit.dsr_loads.append(stmt)
    else:
        an.emit(frame, stmt)
    return VOID


@builtin("map", args=(1, 16))
def _map(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    fn = an.fn_value(node.args[0], frame)
    if fn is None or fn.decl.task:
        fail("csl-type", "the first argument of @map must be a function", node.span)
    values = an.all_in_order(node.args[1:], frame)
    if values and values[-1].type == ty.STRUCT:
        check_names(values.pop().v, (), "'@map'", node.span)
    function = an.instance(fn, (), node.span)
    kinds = [v.type for v in function.params]
    returns = function.result != ty.VOID
    if len(values) != len(kinds) + returns:
        fail(
            "csl-type",
            f"'{fn.name}' takes {len(kinds)} arguments{' and gives a result' if returns else ''},"
            f" @map has {len(values)} operands",
            node.span,
        )
    sources = [_map_source(an, v, k, node.span) for v, k in zip(values, kinds, strict=False)]
    dst = operand(an, values[-1], function.result, node.span, True) if returns else None
    an.emit(
        frame,
        ir.MapOp(an.place_of(node), function.name, tuple(kinds), sources, dst,
                 function.result if returns else None),
    )  # fmt: skip
    return VOID


def _map_source(an: Analyzer, value: Val, kind: Type, span: Span) -> ir.Expr:
    if value.type in ty.DSDS or value.type in ty.DSRS:
        return an.code(value)
    return an.code(coerce(value, kind, span))


@builtin("dfilt", args=(2, 3))
def _dfilt(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    fail(
        "csl-unsupported",
        "'@dfilt' is not supported by the simulator: it would take queues that drop wavelets by "
        "their payload",
        node.span,
    )


def is_function(kind: Type) -> bool:
    """Whether values of ``kind`` can be called."""
    return isinstance(kind, Fn)

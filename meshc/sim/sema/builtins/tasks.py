"""Builtins for tasks, queues, exports and local configuration."""

from __future__ import annotations

from meshc.sim import ir
from meshc.sim.descriptors import Fifo
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.builtins.arguments import (
    check_id,
    check_names,
    chosen,
    color_of,
    number_in,
    routable,
    task_of,
)
from meshc.sim.sema.builtins.layout import color_config
from meshc.sim.sema.builtins.values import VOID
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Array, Pointer, Type
from meshc.sim.sema.rectangle import LayoutInfo
from meshc.sim.sema.registry import Analyzer, builtin
from meshc.sim.sema.unit import Export
from meshc.sim.sema.values import FnVal, Frame, Global, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


@builtin("bind_data_task", "bind_local_task", "bind_control_task", "bind_task", args=(2, 2))
def _bind(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    task = task_of(an.eval(node.args[0], frame), f"@{node.name}", node.span)
    value = an.known(node.args[1], frame)
    number, unit = an.as_number(value, node.span), an.unit
    kind = node.name[5:-5]
    if node.name == "bind_task":
        unit.one_task_table = True
        has_args = bool(task.decl.params)
        kind = "data" if has_args and value.type == ty.COLOR else "local"
        kind = "control" if number > 31 else kind
    wanted = {"data": ty.DATA_TASK, "local": ty.LOCAL_TASK, "control": ty.CONTROL_TASK}[kind]
    if value.type != wanted and value.type not in (ty.COLOR, ty.COMPTIME_INT):
        fail("csl-type", f"@{node.name} needs a {wanted}, found '{value.type}'", node.span)
    if node.name != "bind_task":
        data = 24 if an.arch == "wse2" else 8
        count = {"data": data, "local": 32, "control": 64}[kind]
        check_id(Val(ty.COMPTIME_INT, number), wanted, count, "", node.span)
    table = {"data": unit.data_tasks, "local": unit.local_tasks, "control": unit.control_tasks}[
        kind
    ]
    if number in table:
        fail("csl-task", f"{kind} task id {number} is bound twice", node.span)
    if kind == "data" and not task.decl.params:
        fail("csl-task", f"data task '{task.name}' needs a parameter", node.span)
    if kind == "local" and task.decl.params:
        fail("csl-task", f"local task '{task.name}' takes no parameters", node.span)
    table[number] = task
    if node.name == "bind_task":  # one table for all kinds: control wavelets find it too
        unit.control_tasks.setdefault(number, task)
    unit.task_ids[(task.module.number, task.name)] = (kind, number)
    return VOID


Target = tuple[str, ir.Expr]


def gate_target(an: Analyzer, value: Val, span: Span) -> Target:
    """What a block, unblock or activate is about: (local, color, queue or task, id)."""
    if isinstance(value.v, FnVal):
        task = task_of(value, "what is started or opened", span)
        return "task", ir.TaskId(ty.LOCAL_TASK, task)
    code = ir.Const(ty.U16, value.v) if value.known else value.v
    kind = value.type
    if kind == ty.LOCAL_TASK:
        return "local", code
    if kind == ty.COLOR:
        return "color", code
    if kind == ty.INPUT_QUEUE:
        return "queue", code
    if kind == ty.DATA_TASK:
        return ("color" if an.arch == "wse2" else "queue"), code
    if kind == ty.CONTROL_TASK:
        return "control", code
    if ty.is_int(kind):
        check_id(value, ty.COLOR, 64, "the id", span)
        return "color", code
    if kind == ty.UT:
        fail("csl-unsupported", "the simulator does not stop and resume microthreads; it would "
             "have to hold back the steps of an operation that runs", span)  # fmt: skip
    fail("csl-type", f"expected a task, a task id, a color or a queue, found '{kind}'", span)


@builtin("activate", "block", "unblock", args=(1, 1))
def _gate(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.eval(node.args[0], frame)
    kind, code = gate_target(an, value, node.span)
    if node.name == "activate" and kind not in ("local", "task", "color"):
        fail("csl-type", f"@activate needs a local task, found '{value.type}'", node.span)
    if frame.known:
        unit = an.unit
        table = {"activate": unit.activated, "block": unit.blocked, "unblock": unit.unblocked}
        known = code.task if isinstance(code, ir.TaskId) else an.known(node.args[0], frame).v
        table[node.name].append((kind, known))
        return VOID
    an.emit(frame, ir.Effect(an.place_of(node), None, f"{node.name}_{kind}", [code]))
    return VOID


@builtin("initialize_queue", args=(1, 2))
def _initialize_queue(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    queue = an.known(node.args[0], frame)
    fields = an.struct(node.args[1], frame) if len(node.args) > 1 else {}
    if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
        fail("csl-type", f"@initialize_queue needs a queue, found '{queue.type}'", node.span)
    check_names(fields, ("color", "priority", "ctrl_table_id"), "a queue", node.span)
    if "priority" in fields:
        chosen(fields["priority"], ("high", "medium", "low"), "low", "priority", node.span)
    if "ctrl_table_id" in fields:
        number_in(fields["ctrl_table_id"], 0, 63, "'.ctrl_table_id'", node.span)
    color = color_of(fields["color"], "'.color'", node.span) if "color" in fields else -1
    table = an.unit.in_queues if queue.type == ty.INPUT_QUEUE else an.unit.out_queues
    if table.get(queue.v, color) != color:
        fail("csl-queue", f"{queue.type} {queue.v} is initialised twice", node.span)
    table[queue.v] = color
    return VOID


@builtin("set_local_color_config", args=(2, 2))
def _local_config(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    color = routable(an.number(node.args[0], frame), node.args[0].span)
    if color in an.unit.color_configs:
        fail("csl-layout", f"color {color} is configured twice", node.span)
    an.unit.color_configs[color] = color_config(an, an.known(node.args[1], frame), color, node)
    return VOID


@builtin("set_teardown_handler", "set_empty_queue_handler", args=(2, 2))
def _handler(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    fn = an.eval(node.args[0], frame).v
    if not isinstance(fn, FnVal) or fn.decl.task or fn.decl.params:
        fail("csl-type", f"@{node.name} needs a function without parameters", node.span)
    given = an.known(node.args[1], frame)
    if node.name == "set_empty_queue_handler":
        table, number = an.unit.empty_handlers, _queue_number(given, node)
    else:
        table, number = an.unit.teardown, color_of(given, "what is torn down", node.span)
    if number in table:
        fail("csl-task", f"@{node.name} is called twice for {number}", node.span)
    table[number] = fn
    return VOID


def _queue_number(queue: Val, node: t.Builtin) -> int:
    """Input queues count from 0, output queues from 8."""
    if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
        fail("csl-type", f"@{node.name} needs a queue, found '{queue.type}'", node.span)
    return int(queue.v) + (8 if queue.type == ty.OUTPUT_QUEUE else 0)


@builtin("queue_flush", args=(1, 1))
def _queue_flush(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    queue = an.known(node.args[0], frame)
    code = ir.Const(ty.U16, _queue_number(queue, node))
    if an.arch == "wse2":
        fail("csl-type", "@queue_flush exists on WSE-3 only", node.span)
    if frame.known:
        fail("csl-comptime", "@queue_flush cannot run at compile time", node.span)
    an.emit(frame, ir.Effect(an.place_of(node), None, "queue_flush", [code]))
    return VOID


@builtin("rpc", args=(1, 1))
def _rpc(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    value = an.known(node.args[0], frame)  # launches need no color since SDK 1.1
    if value.type not in (ty.DATA_TASK, ty.COLOR) and not ty.is_int(value.type):
        fail("csl-type", f"@rpc needs a data task id, found '{value.type}'", node.span)
    return VOID


@builtin("set_control_task_table", args=(0, 8))
def _control_task_table(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    for arg in node.args:  # tasks are found by the identifier a control wavelet carries
        an.known(arg, frame)
    return VOID


@builtin("bind_rotating_tasks", "get_filter_id", "get_symbol_id", "get_symbol_value",
         "get_tensor_ptr", "has_exported_tensors", args=(0, 8))  # fmt: skip
def _refused(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    needs = ""
    if node.name == "bind_rotating_tasks":
        needs = ": it would take ids whose task is another one after each run"
    fail("csl-unsupported", f"'@{node.name}' is not supported by the simulator{needs}", node.span)


@builtin("export_symbol", args=(1, 2))
def _export_symbol(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    item = _exported(an, node.args[0], frame)
    name = an.text(node.args[1], frame) if len(node.args) > 1 else None
    if isinstance(item, FnVal):
        name = name or item.name
        if item.decl.task:
            fail("csl-type", f"task '{name}' cannot be exported", node.span)
        function = an.instance(item, (), node.span)
        export = Export(name, "fn", an.fn_type(item), fn=function.name)
    else:
        name = name or item.decl.name
        kind = an.global_type(item)
        symbol = an.symbol(item)
        export = Export(name, "pointer" if isinstance(kind, Pointer) else "data", kind, symbol.addr)
    if name in an.unit.exports and name not in an.unit.export_variables:
        fail("csl-redeclared", f"'{name}' is exported twice", node.span)
    layout = getattr(an, "rectangle", None)
    if isinstance(layout, LayoutInfo) and name not in layout.exports:
        fail(
            "csl-layout",
            f"'{name}' is exported here but the layout has no @export_name for it",
            node.span,
        )
    an.unit.exports[name] = export
    an.unit.export_variables.discard(name)
    return VOID


def _exported(an: Analyzer, node: t.Expr, frame: Frame) -> FnVal | Global:
    item: object = None
    if isinstance(node, t.Name):
        item = an.lookup(node.name, frame, node.span)
    elif isinstance(node, t.Field):
        module = an.module_of(node.base, frame)
        if module is not None:
            item = an.member(module, node.name, node.span)
    if isinstance(item, Val) and isinstance(item.v, FnVal):
        item = item.v
    if isinstance(item, Global) and item.decl.const:
        an.settle(item)
        if item.value is not None and isinstance(item.value.v, FnVal):
            item = item.value.v
    if not isinstance(item, FnVal | Global):
        fail("csl-type", "only variables and functions can be exported", node.span)
    return item


@builtin("allocate_fifo", args=(1, 2))
def _fifo(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    place = an.place(node.args[0], Frame(frame.module, False, frame.names))
    kind = getattr(place, "type", None)
    addr = getattr(place, "addr", None)
    if not isinstance(kind, Array) or not isinstance(addr, ir.Const):
        fail("csl-type", "@allocate_fifo needs an array", node.span)
    options = an.struct(node.args[1], frame) if len(node.args) > 1 else {}
    for name in filter(_UNBUILT_FIFO_OPTIONS.__contains__, map(str, options)):
        fail("csl-unsupported", f"'.{name}' of a FIFO is not supported by the simulator, whose "
             "FIFOs have no registers and suspend an operation that finds them empty or full",
             node.span)  # fmt: skip
    check_names(options, ("activate_push", "activate_pop"), "a FIFO", node.span)
    tasks = {k: _task_number(an, v, node) for k, v in options.items()}
    an.unit.fifos += 1
    fifo = Fifo(an.unit.fifos - 1, addr.value, kind.count, ty.size_of(kind.element), **tasks)
    return Val(ty.FIFO, fifo)


_UNBUILT_FIFO_OPTIONS = frozenset(
    ("dest", "src", "xdsr", "dsr_fifo_dest", "dsr_fifo_src1", "empty_action", "full_action")
)


def _task_number(an: Analyzer, value: Val, node: t.Builtin) -> int:
    if isinstance(value.v, FnVal):
        task_of(value, "a FIFO", node.span)
        bound = an.unit.task_ids.get((value.v.module.number, value.v.name))
        if bound is None:
            fail("csl-task", f"task '{value.v.name}' must be bound before this", node.span)
        return bound[1]
    if value.type not in (ty.LOCAL_TASK, ty.COLOR, ty.COMPTIME_INT):
        fail("csl-type", f"a FIFO activates a local task, not '{value.type}'", node.span)
    check_id(Val(ty.COMPTIME_INT, value.v), ty.LOCAL_TASK, 32, "", node.span)
    return an.as_number(value, node.span)


@builtin("set_fifo_read_length", "set_fifo_write_length", args=(2, 2))
def _fifo_length(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    fifo = an.known(node.args[0], frame).v
    if not isinstance(fifo, Fifo):
        fail("csl-type", f"@{node.name} needs a FIFO", node.span)
    length = an.code(coerce(an.eval(node.args[1], frame), ty.U16, node.span))
    name = node.name[4:]
    number = ir.Const(ty.U16, fifo.number)
    an.emit(frame, ir.Effect(an.place_of(node), None, name, [number, length]))
    return VOID


@builtin("set_config", "set_config_unchecked", args=(2, 3))
def _set_config(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    values = _register_arguments(an, node, frame, 2)
    if frame.known:
        word, value = (an.as_number(v, node.span) for v in values)
        an.unit.local_settings.append((word, value))
        return VOID
    codes = [an.code(v) for v in values]
    an.emit(frame, ir.Effect(an.place_of(node), None, "set_config", codes))
    return VOID


def _register_arguments(an: Analyzer, node: t.Builtin, frame: Frame, count: int) -> list[Val]:
    """Address and value as words; what follows are ranges, promises without an effect."""
    for promise in node.args[count:]:
        an.known(promise, frame)
    values = [an.eval(a, frame, ty.U16) for a in node.args[:count]]
    return [coerce(v, ty.U16, node.span) for v in values]


@builtin("get_config", "get_config_unchecked", args=(1, 2))
def _config(an: Analyzer, node: t.Builtin, frame: Frame, want: Type | None) -> Val:
    values = _register_arguments(an, node, frame, 1)
    if frame.known:
        word = an.as_number(values[0], node.span)
        written = dict(an.unit.local_settings)
        if word not in written:
            fail("csl-comptime", "no value was written to this register before", node.span)
        return Val(ty.U16, written[word])
    codes = [an.code(v) for v in values]
    dst = an.unit.temp(ty.U16)
    an.emit(frame, ir.Effect(an.place_of(node), dst, "get_config", codes))
    return Val(ty.U16, ir.Local(ty.U16, dst), False)

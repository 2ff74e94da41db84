"""What stands around the statements: memory, channels, constants and ports of a phase."""

from __future__ import annotations

from itertools import takewhile
from typing import NoReturn

from meshc.analysis.layout.shortest import on_cores
from meshc.backends.python.expressions import (
    comparison,
    condition,
    expression,
    number,
    spelled,
)
from meshc.backends.python.names import Names, file_stem
from meshc.backends.python.source_text import WIDTH, Argument, call
from meshc.backends.python.view_text import Writer
from meshc.ir.affine import Cond, Expr
from meshc.ir.affine.piecewise import MapPiece, range_name
from meshc.ir.batch import request_axis
from meshc.ir.core import Op
from meshc.ir.module import Buffer, Channel, Module, Port
from meshc.ir.ops.tile import Compute, Recv, Send, channel_in, channel_out, scalars_of_rounds
from meshc.ir.values import Value
from meshc.ir.views import Point, View
from meshc.support.diagnostics import fail

_INDENT = 4
# Measured with OpenBLAS: a vector times many matrices with columns as short as this, or rows up to
# the other length, takes less time when they are kept column by column.
_SHORT_COLUMN, _LONG_ROW = 40, 512


def buffers(module: Module, writer: Writer) -> list[str]:
    """One declaration per buffer; only those that are used get a name."""
    views: dict[Value, list[View]] = {}
    for op in module.walk():
        for view in op.views():
            views.setdefault(view.buffer, []).append(view)
    used = views.keys() | {port.buffer for port in module.ports}
    written, by_columns, in_turn = _written(module), _by_columns(module), _sent_in_turn(module)
    lines = []
    for buffer in module.buffers:
        value = buffer.value
        layout = []
        if buffer.role in ("weight", "state"):
            if stacked := _stacked(views.get(value, [])):
                layout.append(f"stacked={stacked}")
            if value in by_columns:
                layout.append("by_columns=True")
        elif value in in_turn:
            layout.append("stacked=1")
        if buffer.role == "state" and (axis := request_axis(module, value)) is not None:
            layout.append(f"requests={axis}")
        lines += _buffer(buffer, writer, value in used, written, layout)
    return lines


def _stacked(views: list[View]) -> int:
    """How many of its first dims all views of a buffer reach at one index, as that of a layer."""
    counts = []
    for view in views:
        points = takewhile(lambda index: isinstance(index, Point), view.indices)
        counts.append(sum(1 for _ in points))
    return min(counts, default=0)


def _sent_in_turn(module: Module) -> set[Value]:
    """Buffers of several messages, of which one is sent while the next arrives: what all cores have
    of one message then lies side by side in the host's memory."""
    sent = [view for op in module.walk() if isinstance(op, Send) for view in op.views()]
    return {view.buffer for view in sent if view.indices and isinstance(view.indices[0], Point)}


def _by_columns(module: Module) -> set[Value]:
    """Buffers that are nothing but short matrices by which vectors are multiplied."""
    found, others = set[Value](), set[Value]()
    for op in module.walk():
        for place, view in enumerate(op.views()):
            (found if place == 2 and _is_short_product(op) else others).add(view.buffer)
    return found - others


def _is_short_product(op: Op) -> bool:
    """Whether ``op`` multiplies a vector by a matrix with short columns."""
    if not isinstance(op, Compute) or op.kernel != "gemm" or op.params["transposed"]:
        return False
    _, vector, matrix = op.views()
    size = [extent.constant for extent in matrix.shape() if extent.is_const]
    return (
        len(size) == len(matrix.buffer_type.shape) - len(matrix.indices) == 2
        and vector.shape()[-2] == Expr.const(1)
        and size[0] <= _SHORT_COLUMN
        and size[1] <= _LONG_ROW
    )


def _buffer(
    buffer: Buffer, writer: Writer, used: bool, written: set[Value], layout: list[str]
) -> list[str]:
    name = buffer.value.name
    shape = [str(n) for n in buffer.type.shape]
    arguments: list[Argument] = [_quoted(name), _quoted(str(buffer.type.dtype)), *shape]
    if buffer.role:
        arguments.append(f'role="{buffer.role}"')
    if buffer.role == "weight" and buffer.value in written:
        arguments.append("rewritten=True")
    arguments += layout
    head = "phase.buffer"
    if used:
        head = f"{writer.names.of('buffer', name)} = phase.buffer"
    return call(_INDENT, head, arguments)


def _written(module: Module) -> set[Value]:
    """Buffers that a statement writes to."""
    return {view.buffer for op in module.walk() for view in results(op)}


def results(op: Op) -> list[View]:
    """The views that ``op`` writes."""
    if isinstance(op, Recv):
        return list(op.views())
    if isinstance(op, Compute):
        pairs = zip(op.views(), op.declared.operands_of(op.params), strict=True)
        return [view for view, operand in pairs if operand.role != "in"]
    return []


def channels(module: Module, writer: Writer) -> list[str]:
    """One declaration per channel: its route, hop by hop."""
    used = {name for op in module.walk() for name in (channel_in(op), channel_out(op))}
    every: dict[tuple[str, int], str] = {}
    lines = []
    for channel in module.channels:
        if channel.name in used:
            lines += _channel(channel, module, writer, every)
    reach = []
    for (axis, count), name in every.items():
        extent = f"{module.the_mesh().size(axis)}" + (f", {count}" if count else "")
        reach.append(f"{' ' * _INDENT}{name} = core.every({extent})")
    return reach + lines


def _channel(
    channel: Channel, module: Module, writer: Writer, every: dict[tuple[str, int], str]
) -> list[str]:
    for name in sorted(channel.route.free_vars - writer.coordinates):
        _refuse(channel, f"depends on '{name}'")
    hops: list[Argument] = [
        line for p in channel.route.pieces for line in _hop(p, channel, writer, every)
    ]
    head = f"{writer.names.of('channel', channel.name)} = phase.channel"
    return call(_INDENT, head, [_quoted(channel.name), *hops])


def _refuse(channel: Channel, what: str) -> NoReturn:
    fail(
        "unsupported-route",
        f"the route of channel '{channel.name}' {what}",
        notes=[str(channel.route)],
        help="a route leads from the coordinates of a core to those of another",
    )


def _hop(
    piece: MapPiece, channel: Channel, writer: Writer, every: dict[tuple[str, int], str]
) -> list[str]:
    """``Hop(to=(row, column), where=guard)``, if any core takes it; a multicast reaches all of an
    axis."""
    axes = channel.route.inputs
    if len(piece.outputs) != len(axes):
        _refuse(channel, f"leads to {len(piece.outputs)} coordinates, not {len(axes)}")
    names = {n: f"core.{n}" for n in channel.route.inputs}
    ranges: list[tuple[str, int]] = []
    for output, axis in zip(piece.outputs, axes, strict=True):
        name = range_name(output)
        if name:
            place = (axis, len(ranges))
            fresh = every.get(place) or writer.names.fresh(f"every_{axis}")
            names[name] = every[place] = fresh
            ranges.append((name, writer.mesh.size(axis)))
    spell = spelled(names)
    to = ", ".join(expression(e, spell) for e in piece.outputs)
    where = on_cores(piece.domain, writer.mesh, tuple(ranges))
    if where.is_false:
        return []
    if where.is_true:
        return [f"Hop(to=({to}))"]
    return [_fitting(f"Hop(to=({to}), where=", condition(where, spell))]


def _fitting(head: str, where: Argument) -> str:
    """A hop; a long condition takes several lines."""
    line = f"{head}{where})"
    if len(line) + 8 + 1 <= WIDTH or isinstance(where, str):
        return line
    pad = " " * (_INDENT + 4)
    to, _, _ = head.partition(" where=")
    if len(f"{pad}    where={where},") <= WIDTH:
        return f"Hop(\n{pad}    {to.removeprefix('Hop(')}\n{pad}    where={where},\n{pad})"
    inner = "".join(f"\n{pad}        {part}" for part in where.lines())
    return f"Hop(\n{pad}    {to.removeprefix('Hop(')}\n{pad}    where=({inner}\n{pad}    ),\n{pad})"


def constants(module: Module) -> list[str]:
    """Vectors known at compile time."""
    lines: list[str] = []
    for name, values in module.constants.items():
        texts = [number(v) for v in values]
        head = f"phase.constant({_quoted(file_stem(name))}, "
        short = f"{' ' * _INDENT}{head}[{', '.join(texts)}])"
        if len(short) <= WIDTH:
            lines.append(short)
        else:
            lines += [f"{' ' * _INDENT}{head}[", *_filled(texts), f"{' ' * _INDENT}])  # fmt: skip"]
    return lines


def _filled(items: list[str]) -> list[str]:
    """As many items on a line as fit."""
    pad, lines, line = " " * (_INDENT + 4), [], ""
    for item in items:
        if len(pad + line + item) + 1 > WIDTH:
            lines.append(pad + line.rstrip())
            line = ""
        line += f"{item}, "
    return [*lines, pad + line.rstrip()]


def ports(module: Module, writer: Writer) -> list[str]:
    """Each port: a function from lanes to the element they hold, and its declaration."""
    blocks = [_port(port, module, writer) for port in module.ports]
    return [line for block in blocks for line in ("", *block)][1:]


def _port(port: Port, module: Module, writer: Writer) -> list[str]:
    _check_port(port, module)
    function = writer.names.fresh(f"{port.name}_lanes")
    names = Names(frozenset({function}))
    known = {lane: names.of("lane", lane) for lane in port.lanes}
    pad = " " * (_INDENT + 4)
    lines = [f"{' ' * _INDENT}def {function}({', '.join(known.values())}):"]
    for name, value in port.lets:
        text = expression(value, spelled(known))
        known[name] = names.of("let", name)
        lines.append(f"{pad}{known[name]} = {text}")
    lines += call(_INDENT + 4, "return element", _element(port, known))
    buffer = writer.names.of("buffer", port.buffer.name)
    arguments = [
        _quoted(port.direction),
        _quoted(file_stem(port.name)),
        _dims(port, module),
        buffer,
        function,
    ]
    if port.pad:
        arguments.append(f"pad={number(port.pad)}")
    return [*lines, "", *call(_INDENT, "phase.port", arguments)]


def _check_port(port: Port, module: Module) -> None:
    """Ports depend on coordinates and lanes only, and what they load is no state."""
    known = module.the_mesh().coordinates | set(port.lanes) | {name for name, _ in port.lets}
    parts = [*port.element, *(value for _, value in port.lets)]
    free = {n for part in parts for n in part.free_vars}
    free |= port.where.free_vars if port.where is not None else set()
    for name in sorted(free - known):
        fail("unsupported-port", f"port '{port.name}' depends on '{name}'")
    role = next(b.role for b in module.buffers if b.value is port.buffer)
    if port.direction == "in" and role == "state":
        fail("unsupported-port", f"port '{port.name}' loads %{port.buffer.name}, which is state")


def _dims(port: Port, module: Module) -> str:
    """Names and extents of the tensor's dims; a name that occurs again gets a number."""
    names = Names(frozenset())
    shape = zip(port.tensor.dims, port.tensor.shape(module.dims), strict=True)
    return "{" + ", ".join(f'"{names.fresh(dim)}": {extent}' for dim, extent in shape) + "}"


def _element(port: Port, names: dict[str, str]) -> list[Argument]:
    """Logical indices, then the conditions under which the lane holds them."""
    spell = spelled(names)
    arguments: list[Argument] = [expression(e, spell) for e in port.element]
    if port.where is not None and not port.where.is_true:
        tests = _conditions(port.where, names)
        arguments.append(f"where=({', '.join(tests)}{',' if len(tests) == 1 else ''})")
    return arguments


def _conditions(where: Cond, names: dict[str, str]) -> list[str]:
    """Conditions that all hold; kept apart, since few lanes matter to each."""
    spell = spelled(names)
    if len(where.clauses) == 1:
        return [comparison(c, spell) for c in where.clauses[0]]
    return [str(condition(where, spell))]


def extents(module: Module, writer: Writer) -> list[str]:
    """Names for extents that follow from the run-time scalars and occur more than once."""
    known = module.scalars.keys() - scalars_of_rounds(module).keys()
    counted: dict[Expr, int] = {}
    for value in (e for op in module.walk() for e in _extents_of(op)):
        if value.terms and value.free_vars <= known and value.depth:
            counted[value] = counted.get(value, 0) + 1
    lines = []
    for value, count in counted.items():
        if count > 1:
            text = writer.number(value)
            writer.extents[value] = writer.names.fresh("extent")
            lines.append(f"{' ' * (_INDENT + 4)}{writer.extents[value]} = {text}")
    return lines


def _extents_of(op: Op) -> list[Expr]:
    found: list[Expr] = [e for view in op.views() for e in view.shape()]
    for view in op.views():
        found += [e for i in view.indices if (e := getattr(i, "extent", None)) is not None]
    count = getattr(op, "count", None)
    return [*found, count] if isinstance(count, Expr) else found


def _quoted(text: str) -> str:
    """``text`` as a string literal."""
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in body) + '"'

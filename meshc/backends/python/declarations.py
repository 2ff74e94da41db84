"""What stands around the statements: memory, channels, constants and ports of a phase."""

from __future__ import annotations

from typing import NoReturn

from meshc.backends.python.expressions import (
    COORDINATES,
    comparison,
    condition,
    expression,
    number,
    spelled,
)
from meshc.backends.python.names import Names, file_stem
from meshc.backends.python.text import WIDTH, Argument, call
from meshc.backends.python.views import Writer
from meshc.ir.affine import Cond, Expr
from meshc.ir.affine.piecewise import MapPiece, range_name
from meshc.ir.core import Op
from meshc.ir.module import Buffer, Channel, Module, Port
from meshc.ir.ops.tile import Compute, Recv, Send
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

_INDENT = 4
_AXES = {2: ("y", "x"), 3: ("r", "y", "x")}


def buffers(module: Module, writer: Writer) -> list[str]:
    """One declaration per buffer; only those that are used get a name."""
    used = {view.buffer for op in module.walk() for view in op.views()}
    used |= {port.buffer for port in module.ports}
    written = _written(module)
    return [line for b in module.buffers for line in _buffer(b, writer, b.value in used, written)]


def _buffer(buffer: Buffer, writer: Writer, used: bool, written: set[Value]) -> list[str]:
    name = buffer.value.name
    shape = [str(n) for n in buffer.type.shape]
    arguments: list[Argument] = [_quoted(name), _quoted(str(buffer.type.dtype)), *shape]
    if buffer.role:
        arguments.append(f'role="{buffer.role}"')
    if buffer.role == "weight" and buffer.value in written:
        arguments.append("rewritten=True")
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
        kinds = zip(op.views(), op.signature.operands, strict=True)
        return [view for view, kind in kinds if kind != "in"]
    return []


def channels(module: Module, writer: Writer) -> list[str]:
    """One declaration per channel: its route, hop by hop."""
    used = {op.channel for op in module.walk() if isinstance(op, (Send, Recv))}
    return [line for c in module.channels if c.name in used for line in _channel(c, module, writer)]


def _channel(channel: Channel, module: Module, writer: Writer) -> list[str]:
    for name in sorted(channel.route.free_vars - COORDINATES):
        _refuse(channel, f"depends on '{name}'")
    hops: list[Argument] = [_hop(p, channel, module) for p in channel.route.pieces]
    head = f"{writer.names.of('channel', channel.name)} = phase.channel"
    return call(_INDENT, head, [_quoted(channel.name), *hops])


def _refuse(channel: Channel, what: str) -> NoReturn:
    fail(
        "unsupported-route",
        f"the route of channel '{channel.name}' {what}",
        notes=[str(channel.route)],
        help="a route leads from the coordinates of a core to [y, x] or [r, y, x]",
    )


def _hop(piece: MapPiece, channel: Channel, module: Module) -> str:
    """``Hop(to=(row, column), where=guard)``; a multicast reaches all of an axis."""
    names = {n: f"core.{n}" for n in channel.route.inputs}
    if len(piece.outputs) not in _AXES:
        _refuse(channel, f"leads to {len(piece.outputs)} coordinates, not 2 or 3")
    axes = _AXES[len(piece.outputs)]
    ranges = [
        (r, axis) for e, axis in zip(piece.outputs, axes, strict=True) if (r := range_name(e))
    ]
    for count, (name, axis) in enumerate(ranges):
        size = module.the_mesh().size(axis)
        names[name] = f"core.every({size}, {count})" if count else f"core.every({size})"
    spell = spelled(names)
    to = ", ".join(expression(e, spell) for e in piece.outputs)
    if piece.domain.is_true:
        return f"Hop(to=({to}))"
    return f"Hop(to=({to}), where={condition(piece.domain, spell)})"


def constants(module: Module) -> list[str]:
    """Vectors known at compile time."""
    lines = []
    for name, values in module.constants.items():
        lines.append(f"{' ' * _INDENT}phase.constant(")
        lines.append(f"{' ' * (_INDENT + 4)}{_quoted(file_stem(name))},")
        lines += _wrapped("(", [number(v) for v in values], "),", _INDENT + 4)
        lines.append(f"{' ' * _INDENT})")
    return lines


def _wrapped(opening: str, items: list[str], closing: str, indent: int) -> list[str]:
    """Items in brackets, as many on a line as fit."""
    pad, lines, line = " " * indent, [], ""
    for item in items:
        if len(pad) + 4 + len(line) + len(item) + 2 > WIDTH:
            lines.append(f"{pad}    {line.rstrip()}")
            line = ""
        line += f"{item}, "
    return [pad + opening, *lines, *([f"{pad}    {line.rstrip()}"] if line else []), pad + closing]


def ports(module: Module, writer: Writer) -> list[str]:
    """Each port: a function from lanes to the element they hold, and its declaration."""
    lines: list[str] = []
    for port in module.ports:
        lines += ["", *_port(port, module, writer)] if lines else _port(port, module, writer)
    return lines


def _port(port: Port, module: Module, writer: Writer) -> list[str]:
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
    return lines + call(_INDENT, "phase.port", arguments)


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
    counted: dict[Expr, int] = {}
    for value in (e for op in module.walk() for e in _extents_of(op)):
        if value.terms and value.free_vars <= module.scalars.keys() and value.depth:
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

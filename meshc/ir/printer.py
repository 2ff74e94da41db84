"""Text of modules, the exact inverse of :mod:`meshc.ir.parser`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from meshc.ir.attributes import attribute_text, quoted
from meshc.ir.core import Block, Op
from meshc.ir.header import (
    device_lines,
    names_text,
    paired_text,
    pairs_text,
    ranks_lines,
    token_part_text,
)
from meshc.ir.mesh import Mesh
from meshc.ir.module import RESOURCES, Buffer, Channel, Function, Module, Port, Program
from meshc.ir.ops.tile import Compute
from meshc.ir.values import Value


def print_module(module: Module) -> str:
    """The whole module as ``.meshir`` text, ending in a newline."""
    holds = f" holds({', '.join(sorted(module.holds))})" if module.holds else ""
    lines = [f"module @{module.name} level({module.level}){holds} {{", *_declared(module)]
    for function in module.functions:
        lines += _function(function)
    for program in module.programs:
        lines += _program(program)
    return "\n".join([*lines, "}"]) + "\n"


def op_lines(module: Module) -> list[tuple[int, Op]]:
    """Each op of a module, in text order, with the number of the line of :func:`print_module` on
    which it stands; lines count from 1."""
    found: list[tuple[int, Op]] = []
    line = 2 + len(_declared(module))
    for block in module.blocks():
        found += _numbered(block, line + 1)
        line += _height(block) + 2
    return found


def _numbered(block: Block, line: int) -> Iterator[tuple[int, Op]]:
    """The ops of ``block``, the first of which stands on ``line``."""
    for op in block.ops:
        yield line, op
        line += 1
        for region in op.regions:
            yield from _numbered(region, line)
            line += _height(region) + 1


def _height(block: Block) -> int:
    """The lines that ``block`` takes: one for each op and one behind each region."""
    return sum(1 + len(op.regions) for op in block.walk())


def _declared(module: Module) -> list[str]:
    """The lines between the first one of a module and its functions or programs."""
    lines = ["  " + line for line in header_lines(module)]
    lines += [f"  constant @{k} {attribute_text(v)}" for k, v in module.constants.items()]
    lines += ["  " + _buffer(b) for b in module.buffers]
    lines += ["  " + _channel(c) for c in module.channels]
    lines += ["  " + _port(p) for p in module.ports]
    return lines


def header_lines(module: Module) -> list[str]:
    """The lines of a module in front of its constants; the first one says the dims, if there are
    any."""
    lines = []
    if module.dims:
        lines.append("dims " + ", ".join(f"{k} = {v}" for k, v in module.dims.items()))
    if module.scalars:
        by = {k: f" by {n}" for k, n in module.multiples.items()}
        ranges = (f"{k} = {lo}..{hi}{by.get(k, '')}" for k, (lo, hi) in module.scalars.items())
        lines.append("scalars " + ", ".join(ranges))
    if module.rows is not None:
        lines.append("rows " + names_text(module.rows))
    lines += ["attention " + names_text(one) for one in module.attention]
    lines += ["tokens " + token_part_text(part) for part in module.token_parts]
    if module.ranks is not None:
        lines += ranks_lines(module.ranks)
    if module.paired:
        lines.append("paired " + paired_text(module.paired))
    if module.options:
        lines.append("options " + pairs_text(module.options))
    if module.device is not None:
        lines += device_lines(module.device)
    if module.mesh is not None:
        lines.append(f"mesh {_mesh(module.mesh)}")
    for word in RESOURCES:
        if found := module.resources.get(word):
            lines.append(f"{word} " + ", ".join(f"{k} = {v}" for k, v in found.items()))
    return lines


def _mesh(mesh: Mesh) -> str:
    """The axes, outermost first, and where the regions lie."""
    words = [str(axis) for axis in mesh.axes]
    if mesh.origins:
        words.append(f"origins = {attribute_text(mesh.origins)}")
    return ", ".join(words)


def _buffer(buffer: Buffer) -> str:
    return f"buffer {buffer.value} : {buffer.type}" + _braced(buffer_facts(buffer))


def buffer_facts(buffer: Buffer) -> dict[str, object]:
    """What is said of a buffer beside its name and type."""
    facts: dict[str, object] = {}
    if buffer.role:
        facts["role"] = buffer.role
    for name in ("address", "kept", "tags"):
        if getattr(buffer, name) is not None:
            facts[name] = getattr(buffer, name)
    if buffer.cluster is not None:
        facts["cluster"] = [*buffer.cluster]
    if buffer.ranks is not None:
        facts["ranks"] = buffer.ranks
    if buffer.coded is not None:
        facts["coded"] = str(buffer.coded)
    return facts


def _channel(channel: Channel) -> str:
    route = quoted(str(channel.route))
    return f"channel @{channel.name} {route}" + _braced(channel_facts(channel))


def channel_facts(channel: Channel) -> dict[str, object]:
    """What is said of a channel beside its name and route."""
    facts: dict[str, object] = {}
    for name in ("multicast", "turns", "send_color", "recv_color", "queue", "output_queue"):
        value = getattr(channel, name)
        if value not in (False, "", None) or (value == 0 and name.endswith("queue")):
            facts[name] = value
    return facts


def _port(port: Port) -> str:
    head = f"port @{port.name} {port.direction} {port.tensor} : {port.buffer}"
    return head + _braced(port_facts(port))


def port_facts(port: Port) -> dict[str, object]:
    """What is said of a port beside its name, direction, tensor and buffer."""
    facts: dict[str, object] = {"lanes": port.lanes}
    if port.lets:
        facts["lets"] = tuple(f"{name} = {expr}" for name, expr in port.lets)
    facts["element"] = tuple(map(str, port.element))
    if port.where is not None:
        facts["where"] = port.where
    if port.pad:
        facts["pad"] = port.pad
    return facts


def _braced(values: Mapping[str, object]) -> str:
    return f" {{{pairs_text(values)}}}" if values else ""


def _function(function: Function) -> list[str]:
    params = ", ".join(f"{p.role} {p.value}: {p.value.type}" for p in function.params)
    results = ", ".join(map(str, function.result_types))
    head = f"  func @{function.name}({params}) -> ({results}) {{"
    return [head, *_body(function.body, 4), "  }"]


def _program(program: Program) -> list[str]:
    return [f"  program @{program.name} {{", *_body(program.body, 4), "  }"]


def _body(block: Block, indent: int) -> list[str]:
    return [line for op in block.ops for line in _op(op, indent)]


def _op(op: Op, indent: int) -> list[str]:
    pad = " " * indent
    results = ", ".join(map(str, op.results))
    text = f"{results} = " if results else ""
    text += op_name(op)
    if op.operands:
        text += " " + ", ".join(map(str, op.operands))
    text += _braced(stated_attributes(op))
    if op.results:
        text += " : " + ", ".join(str(v.type) for v in op.results)
    lines = [pad + text]
    for region in op.regions:
        lines[-1] += f"{_arguments(region.args)} {{"
        lines += [*_body(region, indent + 2), pad + "}"]
    return lines


def _arguments(args: Iterable[Value]) -> str:
    text = ", ".join(f"{v}: {v.type}" for v in args)
    return f" ({text})" if text else ""


def op_name(op: Op) -> str:
    """What an op is called, with its level."""
    return f"tile.{op.kernel}" if isinstance(op, Compute) else op.NAME


def stated_attributes(op: Op) -> dict[str, object]:
    """Attributes that differ from the class's defaults (all of a microkernel's)."""
    if isinstance(op, Compute):
        return op.attributes()
    plain = type(op)().attributes()
    return {k: v for k, v in op.attributes().items() if k == "when" or v != plain.get(k)}

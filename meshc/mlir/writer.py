"""Text of modules of any level in MLIR's generic form, with the dialect of docs/mlir.md."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Buffer, Channel, Function, Module, Port
from meshc.ir.printer import (
    buffer_facts,
    channel_facts,
    header_lines,
    op_name,
    port_facts,
    stated_attributes,
)
from meshc.ir.types import BufferType, DType, TensorType, Type
from meshc.ir.values import Value
from meshc.ir.views import Symbol, View

ELEMENTS = {
    DType.F32: "f32",
    DType.F16: "f16",
    DType.BF16: "bf16",
    DType.I32: "i32",
    DType.U8: "ui8",
    DType.U6: "ui6",
    DType.U5: "ui5",
    DType.U4: "ui4",
    DType.U3: "ui3",
    DType.U2: "ui2",
    DType.E4M3: "f8E4M3FN",
    DType.E2M1: "f4E2M1FN",
}
"""Element types by their names in MLIR."""
TOKEN = "!meshc.token"
NAME, NAMES, ARGUMENTS = "meshc.name", "meshc.names", "meshc.arguments"
SYMBOLS, SYMBOLS_AT = "meshc.symbols", "meshc.symbols_at"
HEADER, LEVEL, HOLDS = "meshc.header", "meshc.level", "meshc.holds"
DIMS, EXTENTS = "meshc.dims", "meshc.extents"
_IDENTIFIER = re.compile(r"\d+|[A-Za-z_.][A-Za-z0-9_.]*")
_COUNTED = re.compile(r"_(\d+)$")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")


def print_mlir(module: Module) -> str:
    """``module`` as one ``builtin.module``, ending in a newline. Ops, buffers, channels, ports and
    functions are ops of the dialect ``meshc``; the header is attributes of the module."""
    return _Writer(module).text()


def type_text(kind: Type, dims: Mapping[str, int]) -> str:
    """``kind`` in MLIR: a tensor over named ``dims`` keeps these, and where its elements lie, as
    its encoding."""
    if isinstance(kind, TensorType):
        shape = "".join(f"{extent}x" for extent in kind.shape(dims))
        return f"tensor<{shape}{ELEMENTS[kind.dtype]}, #meshc.layout<{quoted(str(kind))}>>"
    if isinstance(kind, BufferType):
        return memref(kind.shape, kind.dtype)
    return TOKEN


def memref(shape: Iterable[int | str], dtype: DType) -> str:
    """Memory of a core."""
    return f"memref<{''.join(f'{extent}x' for extent in shape)}{ELEMENTS[dtype]}>"


def quoted(text: str) -> str:
    """``text`` as a string of MLIR, all but printable ASCII as bytes."""
    found = []
    for byte in text.encode():
        plain = 32 <= byte < 127 and byte not in b'"\\'
        found.append(chr(byte) if plain else f"\\{byte:02X}")
    return f'"{"".join(found)}"'


class _Writer:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.names: dict[Value, str] = {}
        self.used: set[str] = set()
        self.lines: list[str] = []
        self.views = 0

    def text(self) -> str:
        module = self.module
        facts: dict[str, object] = {LEVEL: module.level}
        if module.dims:  # as two lists: dictionaries of MLIR keep no order
            facts |= {DIMS: list(module.dims), EXTENTS: list(module.dims.values())}
        if module.holds:
            facts[HOLDS] = sorted(module.holds)
        rest = header_lines(module)[bool(module.dims) :]  # of which the first says the dims
        if rest:
            facts[HEADER] = rest
        self.lines.append('"builtin.module"() ({')
        for name, values in module.constants.items():
            self._add("  ", "meshc.constant", [], {NAME: name, "values": values})
        for buffer in module.buffers:
            self._buffer(buffer)
        for channel in module.channels:
            self._channel(channel)
        for port in module.ports:
            self._port(port)
        for function in module.functions:
            self._function(function)
        for program in module.programs:
            self._add("  ", "meshc.program", [], {"sym_name": program.name}, bodies=[program.body])
        attributes = {"sym_name": module.name, **facts}
        self.lines.append(f"}}) {self._braced(attributes)} : () -> ()")
        return "\n".join(self.lines) + "\n"

    # --- what stands in a module

    def _buffer(self, buffer: Buffer) -> None:
        self._add("  ", "meshc.buffer", [], buffer_facts(buffer), results=[buffer.value])

    def _channel(self, channel: Channel) -> None:
        facts = {"sym_name": channel.name, "route": str(channel.route), **channel_facts(channel)}
        self._add("  ", "meshc.channel", [], facts)

    def _port(self, port: Port) -> None:
        tensor = _Type(type_text(port.tensor, self.module.dims))
        facts = {NAME: port.name, "direction": port.direction, "tensor": tensor}
        self._add("  ", "meshc.port", [port.buffer], {**facts, **port_facts(port)})

    def _function(self, function: Function) -> None:
        body = Block([param.value for param in function.params], function.body.ops)
        facts = {
            "sym_name": function.name,
            "roles": [param.role for param in function.params],
            "results": [_Type(type_text(one, self.module.dims)) for one in function.result_types],
        }
        self._add("  ", "meshc.func", [], facts, bodies=[body])

    # --- ops

    def _op(self, op: Op, pad: str) -> None:
        symbols = [(at, o.name) for at, o in enumerate(op.operands) if isinstance(o, Symbol)]
        facts = stated_attributes(op)
        if symbols:
            facts[SYMBOLS] = [_Symbol(name) for _, name in symbols]
            facts[SYMBOLS_AT] = [at for at, _ in symbols]
        given = [o for o in op.operands if not isinstance(o, Symbol)]
        self._add(pad, f"meshc.{op_name(op)}", given, facts, op.results, op.regions)

    def _add(
        self,
        pad: str,
        name: str,
        operands: Sequence[Value | View],
        facts: Mapping[str, object],
        results: Sequence[Value] = (),
        bodies: Sequence[Block] = (),
    ) -> None:
        """An op with its bodies, behind the views that it reads."""
        given = [self._operand(one, pad) for one in operands]
        if results:
            facts = {**facts, NAMES: [value.name for value in results]}
        arguments = [[value.name for value in body.args] for body in bodies]
        if any(arguments):
            facts = {**facts, ARGUMENTS: arguments}
        defined = ", ".join(self._defined(value) for value in results)
        head = f'{pad}{f"{defined} = " if defined else ""}"{name}"'
        head += f"({', '.join(text for text, _ in given)})"
        for number, body in enumerate(bodies):
            self.lines.append(head + (" ({" if not number else "}, {"))
            head = pad
            if body.args:
                shown = ", ".join(f"{self._defined(v)} : {self._type(v.type)}" for v in body.args)
                self.lines.append(f"{pad}^bb0({shown}):")
            for op in body.ops:
                self._op(op, pad + "  ")
        if bodies:
            head = f"{pad}}})"
        tail = f" {self._braced(facts)}" if facts else ""
        types = ", ".join(kind for _, kind in given)
        outputs = [self._type(value.type) for value in results]
        out = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
        self.lines.append(f"{head}{tail} : ({types}) -> {out}")

    def _operand(self, operand: Value | View, pad: str) -> tuple[str, str]:
        """What stands for ``operand``, and its type."""
        if isinstance(operand, Value):
            return self.names[operand], self._type(operand.type)
        base, kind = self.names[operand.buffer], self._type(operand.buffer_type)
        if not (operand.indices or operand.reshape or operand.order):
            return base, kind
        self.views += 1
        name = self._unused(f"view_{self.views}")
        window = str(operand).removeprefix(str(operand.buffer)).strip()
        extents = ["?" if not one.is_const else one.constant for one in operand.shape()]
        shown = memref(extents, operand.buffer_type.dtype)
        self.lines.append(
            f'{pad}{name} = "meshc.view"({base}) {{window = {quoted(window)}}} '
            f": ({kind}) -> {shown}"
        )
        return name, shown

    def _defined(self, value: Value) -> str:
        """What ``value`` is called from here on: %gate.1 for gate_1, as xDSL counts the values of a
        name by such endings and takes no notice of those that have one already."""
        name = value.name if _IDENTIFIER.fullmatch(value.name) else f"v_{value.name}"
        self.names[value] = self._unused(_COUNTED.sub(r".\1", name))
        return self.names[value]

    def _unused(self, name: str) -> str:
        while name in self.used:
            name += "_"
        self.used.add(name)
        return f"%{name}"

    def _type(self, kind: Type) -> str:
        return type_text(kind, self.module.dims)

    # --- attributes

    def _braced(self, values: Mapping[str, object]) -> str:
        pairs = (
            f"{name if _KEY.fullmatch(name) else quoted(name)} = {self._attribute(value)}"
            for name, value in values.items()
        )
        return f"{{{', '.join(pairs)}}}"

    def _attribute(self, value: object) -> str:
        if isinstance(value, _Type):
            return value.text
        if isinstance(value, _Symbol):
            return f"@{quoted(value.name)}"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, Expr) and value.is_const:
            value = value.constant
        if isinstance(value, int):
            return f"{value} : i64"
        if isinstance(value, float):
            return _float(value)
        if isinstance(value, str | Expr | Cond):
            return quoted(str(value))
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self._attribute, value))}]"
        raise TypeError(f"no attribute of MLIR for {value!r}")


class _Type:
    """A type as an attribute."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Symbol:
    """A reference to what is called ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name


def _float(value: float) -> str:
    """A number that reads back to the same bits."""
    text = repr(value)
    if not re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", text):  # infinite, or no number
        return f"0x{struct.pack('>d', value).hex().upper()} : f64"
    mantissa, exponent, power = text.partition("e")
    whole = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{whole}{exponent}{power} : f64"

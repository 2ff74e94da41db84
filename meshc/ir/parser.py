"""Parser of ``.meshir`` text, the exact inverse of :mod:`meshc.ir.printer`: descent by hand.

What is left out in a graph that is written by hand, rows and attention, is read off its ops.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast

from meshc.devices.axes import is_axis_name
from meshc.ir.affine import Expr, parse_cond, parse_expr, parse_map
from meshc.ir.attributes import (
    Raw,
    decode_attributes,
    decode_condition,
    decode_dsr,
    decode_params,
    decode_way,
    unquoted,
)
from meshc.ir.brought_functions import is_function
from meshc.ir.coded_rows import ROW_CODES
from meshc.ir.core import OP_CLASSES, Block, Op, Operand
from meshc.ir.header import (
    as_cluster,
    read_attention,
    read_device,
    read_paired,
    read_part,
    read_ranks,
    read_rows,
    read_token_part,
)
from meshc.ir.kernels import KERNELS
from meshc.ir.mesh import Axis, Mesh, mesh_mistake
from meshc.ir.module import (
    LEVELS,
    RESOURCES,
    Buffer,
    Channel,
    Function,
    Module,
    Param,
    Port,
    Program,
)
from meshc.ir.module import Role as ParamRole
from meshc.ir.ops.tile import Compute
from meshc.ir.read_rows import record
from meshc.ir.tokens import Tokens, shown
from meshc.ir.types import BufferType, DType, Layout, Split, TensorType, TokenType, Type
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, Range, Symbol, View, Whole
from meshc.support.diagnostics import fail
from meshc.support.spans import Source, Span

_MAX_TEXT = 64 * 2**20

_SPLIT = re.compile(
    r"(?P<dim>\w+)_(?P<axis>[a-z][a-z0-9]*)(?:\*(?P<copies>[0-9]{1,18}))?(?:>>(?P<skew>\w+))?"
    r"(?P<kind>[%~]?):(?P<block>[0-9]{1,18})\Z"
)
_KINDS = {"": "block", "%": "cyclic", "~": "shift"}
_ROLES = ("in", "weight", "state", "out")


def parse_module(source: Source) -> Module:
    """The module that ``source`` spells. Fails with ``bad-meshir`` and a place otherwise."""
    if len(source.text) > _MAX_TEXT:
        fail("bad-meshir", f"{source.name} is larger than {_MAX_TEXT} characters")
    return _Parser(source).module()


class _Parser(Tokens):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.values: dict[str, Value] = {}
        self.places: dict[str, Span] = {}

    # --- header

    def module(self) -> Module:
        start = self.span()
        self.expect("module")
        name = self.symbol()
        self.expect("level")
        self.expect("(")
        level = next((known for known in LEVELS if known == self.token), None)
        if level is None:
            self.wrong(f"no such level; there are {', '.join(LEVELS)}")
        self.advance()
        self.expect(")")
        module = Module(name, level, places=self.places)
        self.places["module"] = start
        if self.take("holds"):
            self.expect("(")
            module.holds = set(self.names_until(")"))
        self.expect("{")
        while not self.take("}"):
            self.section(module)
        if self.kind != "end":
            self.wrong("expected the end of the text; one file holds one module")
        if level == "graph":
            record(module)
        return module

    def section(self, module: Module) -> None:
        start = self.span()
        word = self.name()
        module.places.setdefault(word, start)
        if word == "dims":
            module.dims = {k: self.as_int(v, start) for k, v in self.pairs().items()}
        elif word == "scalars":
            module.scalars, module.multiples = self.scalars()
        elif word == "rows":
            if module.rows is not None:
                fail("bad-meshir", "the header says its rows twice", start)
            module.rows = read_rows(self, start)
        elif word == "attention":
            module.attention += (read_attention(self, start),)
        elif word == "tokens":
            module.token_parts += (read_token_part(self, start),)
        elif word == "ranks":
            if module.ranks is not None:
                fail("bad-meshir", "the header says its ranks twice", start)
            module.ranks = read_ranks(self, start)
        elif word == "part":
            if module.ranks is None:
                fail("bad-meshir", "a part stands behind the line 'ranks'", start)
            parts = (*module.ranks.parts, read_part(self, start))
            module.ranks = replace(module.ranks, parts=parts)
        elif word == "paired":
            module.paired = read_paired(self, start)
        elif word == "options":
            module.options = {k: self.as_scalar(v, start) for k, v in self.pairs().items()}
        elif word == "device":
            module.device = read_device(self, start)
        elif word == "mesh":
            module.mesh = self.mesh(start)
        elif word in RESOURCES:
            numbers = {k: self.as_int(v, start) for k, v in self.pairs().items()}
            module.resources[word] = numbers
        elif word == "constant":
            name = self.symbol()
            module.constants[name] = self.floats(self.raw(), start)
        elif word == "buffer":
            module.buffers.append(self.buffer())
        elif word == "channel":
            module.channels.append(self.channel())
        elif word == "port":
            module.ports.append(self.port())
        elif word == "func":
            module.functions.append(self.function())
        elif word == "program":
            name = self.symbol()
            self.expect("{")
            module.programs.append(Program(name, self.block()))
        else:
            fail("bad-meshir", f"no section '{word}' in a module", start)

    def floats(self, raw: Raw, span: Span) -> tuple[float, ...]:
        if not isinstance(raw, list) or not all(isinstance(v, (int, float)) for v in raw):
            fail("bad-meshir", "a constant is a list of numbers", span)
        return tuple(float(v) for v in raw if isinstance(v, (int, float)))

    def scalars(self) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
        """Ranges by name, and what a scalar is a multiple of where its range says ``by``."""
        found, multiples = {}, {}
        while True:
            name = self.name()
            self.expect("=")
            low = self.integer()
            self.expect("..")
            found[name] = (low, self.integer())
            if self.take("by"):
                multiples[name] = self.integer()
            if not self.take(","):
                return found, multiples

    def mesh(self, start: Span) -> Mesh:
        """Axes with commas between them, outermost first, then perhaps the origins of regions."""
        axes: list[Axis] = []
        origins: Raw = []
        while not origins:
            if axes and self.take("origins"):
                self.expect("=")
                origins = self.raw()
            else:
                axes.append(self.axis(True))
            if not self.take(","):
                break
        mistake = mesh_mistake(tuple(axes))
        if mistake:
            fail("bad-meshir", f"this is no mesh: {mistake}", start)
        places = [self.corner(o, start) for o in origins] if isinstance(origins, list) else []
        return Mesh(tuple(axes), tuple(places))

    def axis(self, divisible: bool) -> Axis:
        """``name = size``, perhaps ``interleaved``, perhaps factors in parentheses."""
        span = self.span()
        name = self.name()
        if not is_axis_name(name):
            fail(
                "bad-meshir",
                f"'{name}' is no name of an axis",
                span,
                help="axes have names in small letters (of single ones o, r, u to z) that programs "
                "do not use for something else; a mesh is such as 'mesh y = 4, x = 8'",
            )
        self.expect("=")
        size = self.integer()
        interleaved = self.take("interleaved")
        factors: list[Axis] = []
        if divisible and self.take("("):
            while not self.take(")"):
                factors.append(self.axis(False))
                if self.token != ")":
                    self.expect(",")
        return Axis(name, size, interleaved, tuple(factors))

    def corner(self, raw: Raw, span: Span) -> tuple[int, int]:
        if not isinstance(raw, list) or len(raw) != 2:
            fail("bad-meshir", "a place on the device is [column, row]", span)
        return self.as_int(raw[0], span), self.as_int(raw[1], span)

    # --- declarations

    def declare(self, name: str, kind: Type, span: Span) -> Value:
        if name in self.values:
            fail("bad-meshir", f"%{name} is defined twice", span)
        value = Value(name, kind)
        self.values[name] = value
        self.places[str(value)] = span
        return value

    def buffer(self) -> Buffer:
        span = self.span()
        name = self.of("value", "a %name")[1:]
        self.expect(":")
        value = self.declare(name, self.type(), span)
        if not isinstance(value.type, BufferType):
            fail("bad-meshir", "a buffer has whole numbers as extents", span)
        facts = self.facts("role", "address", "kept", "tags", "cluster", "ranks", "coded")
        role = facts.get("role", "")
        if role not in ("", *_ROLES):
            fail("bad-meshir", f"no role '{role}'", span)
        address, kept, tags, ranks = (
            self.as_int(facts[name], span) if name in facts else None
            for name in ("address", "kept", "tags", "ranks")
        )
        held = as_cluster(facts.get("cluster"), span)
        if "coded" in facts and facts["coded"] not in ROW_CODES:
            fail("bad-meshir", f"no buffer is coded as '{facts['coded']}'", span)
        coded = DType(facts["coded"]) if "coded" in facts else None
        return Buffer(value, cast(ParamRole, role), address, kept, tags, held, ranks, coded)

    def channel(self) -> Channel:
        span = self.span()
        name = self.symbol()
        self.places[f"channel @{name}"] = span
        route = parse_map(unquoted(self.of("string", "a route in quotes")), span)
        facts = self.facts(
            "multicast", "turns", "send_color", "recv_color", "queue", "output_queue"
        )
        return Channel(
            name,
            route,
            self.as_bool(facts.get("multicast", False), span),
            self.as_int(facts["turns"], span) if "turns" in facts else 0,
            str(facts.get("send_color", "")),
            str(facts.get("recv_color", "")),
            self.as_int(facts["queue"], span) if "queue" in facts else None,
            self.as_int(facts["output_queue"], span) if "output_queue" in facts else None,
        )

    def port(self) -> Port:
        span = self.span()
        name = self.symbol()
        self.places[f"port @{name}"] = span
        direction = self.name()
        if direction not in ("in", "out"):
            fail("bad-meshir", "a port is 'in' or 'out'", span)
        tensor = self.type()
        self.expect(":")
        buffer = self.value()
        facts = self.facts("lanes", "lets", "element", "where", "pad")
        lets = [text.partition(" = ") for text in self.texts(facts.get("lets", []), span)]
        if not isinstance(tensor, TensorType):
            fail("bad-meshir", "a port carries a tensor over named dims", span)
        where = facts.get("where")
        pad = facts.get("pad", 0.0)
        return Port(
            name,
            "in" if direction == "in" else "out",
            tensor,
            buffer,
            tuple(self.texts(facts.get("lanes", []), span)),
            tuple((let, parse_expr(text, span)) for let, _, text in lets),
            tuple(parse_expr(t, span) for t in self.texts(facts.get("element", []), span)),
            None if where is None else parse_cond(str(where), span),
            float(pad) if isinstance(pad, (int, float)) else 0.0,
        )

    def function(self) -> Function:
        span = self.span()
        name = self.symbol()
        self.places[f"func @{name}"] = span
        self.expect("(")
        params = []
        while not self.take(")"):
            role = self.name()
            if role not in _ROLES:
                self.wrong(f"'{role}' is no role of a parameter")
            span = self.span()
            value = self.of("value", "a %name")[1:]
            self.expect(":")
            params.append(Param(self.declare(value, self.type(), span), cast(ParamRole, role)))
            if self.token != ")":
                self.expect(",")
        self.expect("->")
        self.expect("(")
        results: list[Type] = []
        while not self.take(")"):
            results.append(self.type())
            if self.token != ")":
                self.expect(",")
        self.expect("{")
        return Function(name, params, results, self.block())

    # --- types

    def type(self) -> Type:
        span = self.span()
        word = self.name()
        if word == "token":
            return TokenType()
        try:
            dtype = DType(word)
        except ValueError:
            fail("bad-meshir", f"no element type '{word}'", span)
        self.expect("[")
        if self.kind == "number" or self.token == "]":
            shape = []
            while not self.take("]"):
                shape.append(self.integer())
                if self.token != "]":
                    self.expect(",")
            if shape or self.kind != "layout":
                return BufferType(dtype, tuple(shape))
            return TensorType(dtype, (), self.layout())
        dims = tuple(self.names_until("]"))
        return TensorType(dtype, dims, self.layout() if self.kind == "layout" else None)

    def layout(self) -> Layout:
        span = self.span()
        splits: list[Split] = []
        partial: list[str] = []
        roots: list[str] = []
        for word in self.advance()[1:-1].split():
            match = _SPLIT.match(word)
            if word.startswith("+"):
                partial.append(word[1:])
            elif word.startswith("@"):
                roots.append(word[1:])
            elif match:
                kind = _KINDS[match["kind"]]
                splits.append(
                    Split(
                        match["dim"],
                        match["axis"],
                        int(match["block"]),
                        kind,  # type: ignore[arg-type]
                        match["skew"] or "",
                        int(match["copies"] or 1),
                    )
                )
            else:
                fail(
                    "bad-meshir",
                    f"'{word}' is no part of a layout",
                    span,
                    help="write dim_axis:lanes, +axis for a partial sum, @axis for what only the "
                    "first core of an axis has",
                )
        return Layout(tuple(splits), tuple(partial), tuple(roots))

    # --- ops

    def block(self) -> Block:
        """Ops up to and with the closing brace."""
        self.enter()
        block = Block()
        while not self.take("}"):
            block.ops.append(self.op())
        self.depth -= 1
        return block

    def op(self) -> Op:
        results: list[tuple[str, Span]] = []
        while self.kind == "value":
            results.append((self.token[1:], self.span()))
            self.advance()
            if not self.take(","):
                self.expect("=")
                break
        span = self.span()
        name = self.name()
        operands = self.operands()
        op = self.made(name, operands, self.braced(), span)
        op.span = span
        if results:
            self.expect(":")
            kinds = [self.type()]
            while self.take(","):
                kinds.append(self.type())
            if len(kinds) != len(results):
                fail("bad-meshir", f"{len(results)} results but {len(kinds)} types", span)
            op.results = [self.declare(n, k, s) for (n, s), k in zip(results, kinds, strict=True)]
        while self.token in ("(", "{") and self.kind == "punct":
            op.regions.append(self.region())
        return op

    def region(self) -> Block:
        args = []
        if self.take("("):
            while not self.take(")"):
                span = self.span()
                value = self.of("value", "a %name")[1:]
                self.expect(":")
                args.append(self.declare(value, self.type(), span))
                if self.token != ")":
                    self.expect(",")
        self.expect("{")
        block = self.block()
        block.args = args
        return block

    def made(self, name: str, operands: list[Operand], raw: dict[str, Raw], span: Span) -> Op:
        when = decode_condition(raw.pop("when"), span) if "when" in raw else None
        level, _, kernel = name.partition(".")
        if name not in OP_CLASSES and kernel not in KERNELS:
            is_function(kernel, span)  # an installed package may bring it
        if level == "tile" and kernel in KERNELS:
            way = decode_way(raw.pop("way"), span) if "way" in raw else ""
            dsr = decode_dsr(raw.pop("dsr"), span) if "dsr" in raw else 0
            params = decode_params(kernel, raw, span)
            return Compute(operands, when=when, kernel=kernel, params=params, way=way, dsr=dsr)  # type: ignore[arg-type]
        if name not in OP_CLASSES:
            fail("bad-meshir", f"no op '{name}'", span)
        cls = OP_CLASSES[name]
        return cls(operands, when=when, **decode_attributes(cls, raw, span))  # type: ignore[arg-type]

    def operands(self) -> list[Operand]:
        found: list[Operand] = []
        while self.kind in ("value", "symbol"):
            if self.kind == "symbol":
                found.append(Symbol(self.advance()[1:]))
            else:
                found.append(self.value_or_view())
            if not self.take(","):
                break
        return found

    def value(self) -> Value:
        if self.token[1:] not in self.values or self.kind != "value":
            self.wrong(f"{shown(self.token)} is not defined above")
        return self.values[self.advance()[1:]]

    def value_or_view(self) -> Value | View:
        span = self.span()
        value = self.values.get(self.token[1:])
        if value is None:
            self.wrong(f"{self.token} is not defined above")
        if not isinstance(value.type, BufferType):
            self.advance()
            return value
        indices: tuple[Index, ...] = ()
        if self.at < len(self.text) and self.text[self.at] == "[":
            parts = self.bracket()
            indices = tuple(_index(p, span) for p in parts)
        self.advance()
        shape: tuple[Expr, ...] = ()
        order: tuple[int, ...] = ()
        if self.token == "as":
            shape = tuple(parse_expr(p, span) for p in self.raw_list())
        if self.token == "order":
            order = tuple(self.as_int(_int(p), span) for p in self.raw_list())
        return View(value, indices, shape, order, span)


def _index(text: str, span: Span) -> Index:
    if text == ":":
        return Whole()
    start, found, rest = text.partition("+:")
    if not found:
        return Point(parse_expr(text, span))
    extent, by, step = rest.partition(" by ")
    stride = _int(step.strip()) if by else 1
    if not isinstance(stride, int) or stride < 1:
        fail("bad-meshir", "the stride of a view is a positive integer", span)
    return Range(parse_expr(start, span), parse_expr(extent, span), stride)


def _int(text: str) -> Raw:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text

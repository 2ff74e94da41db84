"""Modules from MLIR's generic form: what :mod:`meshc.mlir.writer` writes, also behind xDSL.

A module is read as the ``.meshir`` text that says the same, so that one parser and one verifier
know what a module is. Names of values are those that ops keep in an attribute, whatever a tool has
called the values since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshc.ir.attributes import attribute_text
from meshc.ir.attributes import quoted as meshir_quoted
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.mlir.syntax import Body, MlirOp, SymbolName, TypeText, parse_mlir, unquoted
from meshc.mlir.writer import (
    ARGUMENTS,
    DIMS,
    ELEMENTS,
    EXTENTS,
    HEADER,
    HOLDS,
    LEVEL,
    NAME,
    NAMES,
    SYMBOLS,
    SYMBOLS_AT,
    TOKEN,
)
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Source, Span

_SHAPE = re.compile(r"(?:tensor|memref)<((?:\d+x|\?x)*)([A-Za-z]\w*)")
_EXTENT = re.compile(r"\d+|\?")
_LAYOUT = re.compile(r'#meshc\.layout<("(?:\\.|[^"\\])*")>')
_DTYPES = {name: dtype for dtype, name in ELEMENTS.items()}
_NAME = re.compile(r"[A-Za-z0-9_.]+")
_SYMBOL = re.compile(r"[A-Za-z0-9_.\-]+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_OF_OURS = frozenset({"sym_name", NAME, NAMES, ARGUMENTS, SYMBOLS, SYMBOLS_AT})
_PREFIX = "meshc."


def read_mlir(source: Source) -> Module:
    """The module that ``source`` spells in MLIR. Fails with ``bad-mlir``, or with what the parser
    of modules says, at the place in ``source``."""
    return _Reader(source).module()


@dataclass
class _Reader:
    source: Source
    lines: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    scopes: list[dict[str, str]] = field(default_factory=lambda: [{}])
    given: list[tuple[TypeText, Span]] = field(default_factory=list)

    def module(self) -> Module:
        whole = parse_mlir(self.source)
        if whole.name != "builtin.module":
            fail("bad-mlir", f"a file holds one builtin.module, not '{whole.name}'", whole.span)
        facts, span = whole.attributes, whole.span
        name, level = self._symbol(whole), _text(facts.get(LEVEL), LEVEL, span)
        holds = [_word(one, HOLDS, span) for one in _list(facts.get(HOLDS, []), HOLDS, span)]
        claims = f" holds({', '.join(holds)})" if holds else ""
        self._line(f"module @{name} level({_word(level, LEVEL, span)}){claims} {{", span)
        dims = [_word(one, DIMS, span) for one in _list(facts.get(DIMS, []), DIMS, span)]
        sizes = [_whole(one, EXTENTS, span) for one in _list(facts.get(EXTENTS, []), EXTENTS, span)]
        if len(dims) != len(sizes) or len(dims) != len(set(dims)):
            fail("bad-mlir", f"'{DIMS}' and '{EXTENTS}' are not one extent for each name", span)
        extents = dict(zip(dims, sizes, strict=True))
        if extents:
            self._line("dims " + ", ".join(f"{k} = {v}" for k, v in extents.items()), span)
        for line in _list(facts.get(HEADER, []), HEADER, span):
            text = _text(line, HEADER, span)
            if "\n" in text:
                fail("bad-mlir", f"'{HEADER}' has a line for each string", span)
            self._line(text, span)
        for op in (one for body in whole.bodies for one in body.ops):
            self._section(op)
        self._line("}", span)
        found = self._parsed()
        for kind, place in self.given:
            self._check_type(kind, place, extents)
        return found

    def _parsed(self) -> Module:
        """The module of the lines so far; what is wrong is told where the op stands."""
        text = "\n".join(self.lines) + "\n"
        try:
            found = parse_module(Source(self.source.name, text))
        except MeshcError as error:
            raise MeshcError(
                replace(one, span=one.span and self._place(one.span)) for one in error.diagnostics
            ) from error
        found.places = {name: self._place(span) for name, span in found.places.items()}
        for op in found.walk():
            op.span = op.span and self._place(op.span)
        return found

    def _place(self, span: Span) -> Span:
        return self.spans[min(span.line, len(self.spans)) - 1]

    def _check_type(self, kind: TypeText, span: Span, dims: Mapping[str, int]) -> None:
        """A tensor has the extents of its dims."""
        layout = _LAYOUT.search(kind.text)
        if layout is None:
            return
        text = unquoted(layout[1])
        names = re.match(r"\w+\[([^\]]*)\]", text)
        shape = _SHAPE.match(kind.text)
        assert shape is not None
        wanted = (
            [dims.get(name.strip(), 0) for name in names[1].split(",") if name.strip()]
            if names
            else []
        )
        said = [int(n) if n != "?" else -1 for n in _EXTENT.findall(shape[1])]
        if said != wanted or not text.startswith(str(_DTYPES.get(shape[2], "?"))):
            words = f"the tensor is {shape[1]}{shape[2]}, but its layout says {text}"
            fail("bad-mlir", words, span)

    # --- sections

    def _section(self, op: MlirOp) -> None:
        kind, facts = op.name, {k: v for k, v in op.attributes.items() if k not in _OF_OURS}
        if kind == "meshc.constant":
            self._line(
                f"constant @{self._called(op)} {_attribute(facts.get('values'), op.span)}", op.span
            )
        elif kind == "meshc.buffer":
            if len(op.results) != 1:
                fail("bad-mlir", "a buffer is one value", op.span)
            (name,), (held,) = self._names(op), self._typed(op.types, op.span)
            self._define(op.results[0], name, op.span)
            self._line(f"buffer {name} : {held}{self._braced(facts, op.span)}", op.span)
        elif kind == "meshc.channel":
            route = meshir_quoted(_text(facts.pop("route", None), "route", op.span))
            self._line(
                f"channel @{self._symbol(op)} {route}{self._braced(facts, op.span)}", op.span
            )
        elif kind == "meshc.port":
            direction = _word(
                _text(facts.pop("direction", None), "direction", op.span), "direction", op.span
            )
            tensor = self._of_type(facts.pop("tensor", None), "tensor", op.span)
            if len(op.operands) != 1:
                fail("bad-mlir", "a port has one buffer", op.span)
            buffer = self._value(op.operands[0], op.span)
            head = f"port @{self._called(op)} {direction} {tensor} : {buffer}"
            self._line(head + self._braced(facts, op.span), op.span)
        elif kind == "meshc.func":
            self._function(op, facts)
        elif kind == "meshc.program":
            self._line(f"program @{self._symbol(op)} {{", op.span)
            self._body(op, [])
        else:
            fail("bad-mlir", f"'{kind}' is nothing that stands in a module", op.span)

    def _function(self, op: MlirOp, facts: dict[str, object]) -> None:
        roles = [
            _word(one, "roles", op.span) for one in _list(facts.get("roles", []), "roles", op.span)
        ]
        results = [
            self._of_type(one, "results", op.span)
            for one in _list(facts.get("results", []), "results", op.span)
        ]
        (arguments,) = self._arguments(op, 1)
        if len(roles) != len(arguments):
            fail("bad-mlir", f"{len(arguments)} parameters, but {len(roles)} roles", op.span)
        pairs = zip(roles, arguments, strict=True)
        params = ", ".join(f"{role} {one}" for role, one in pairs)
        self._line(f"func @{self._symbol(op)}({params}) -> ({', '.join(results)}) {{", op.span)
        self._body(op, arguments)

    # --- ops

    def _inner(self, op: MlirOp) -> None:
        if op.name == "meshc.view":
            self._view(op)
            return
        if not op.name.startswith(_PREFIX):
            fail(
                "bad-mlir",
                f"'{op.name}' is no op of the dialect meshc",
                op.span,
                help="docs/mlir.md says which ops there are; others have no meaning here",
            )
        operands = [self._value(one, op.span) for one in op.operands]
        facts = dict(op.attributes)
        symbols = _list(facts.get(SYMBOLS, []), SYMBOLS, op.span)
        places = _list(facts.get(SYMBOLS_AT, []), SYMBOLS_AT, op.span)
        if len(symbols) != len(places):
            fail("bad-mlir", f"'{SYMBOLS}' and '{SYMBOLS_AT}' are of different lengths", op.span)
        for symbol, at in zip(symbols, places, strict=True):
            name = symbol.name if isinstance(symbol, SymbolName) else ""
            operands.insert(_whole(at, SYMBOLS_AT, op.span), f"@{_symbol_name(name, op.span)}")
        arguments = self._arguments(op, len(op.bodies))
        names, types = self._names(op), self._typed(op.types, op.span)
        text = f"{', '.join(names)} = " if names else ""
        text += _word(op.name.removeprefix(_PREFIX), "op", op.span)
        text += f" {', '.join(operands)}" if operands else ""
        text += self._braced({k: v for k, v in facts.items() if k not in _OF_OURS}, op.span)
        text += f" : {', '.join(types)}" if names else ""
        for body, own in zip(op.bodies, arguments, strict=True):
            shown = f" ({', '.join(own)})" if own else ""
            self._line(f"{text}{shown} {{", op.span)
            self._block(body, own)
            text = ""
            self._line("}", op.span)
        if text:
            self._line(text, op.span)
        for result, name in zip(op.results, names, strict=True):  # bodies may call their own so
            self._define(result, name, op.span)

    def _view(self, op: MlirOp) -> None:
        """A window is written where the value that stands for it is read."""
        if len(op.operands) != 1 or len(op.results) != 1:
            fail("bad-mlir", "a view is of one buffer", op.span)
        window = _text(op.attributes.get("window"), "window", op.span)
        if "\n" in window or window[:1] not in ("[", "a", "o"):
            fail("bad-mlir", "a window is such as '[i, 0 +: 4, :]'", op.span)
        space = "" if window.startswith("[") else " "
        buffer = self._value(op.operands[0], op.span)
        self._define(op.results[0], f"{buffer}{space}{window}", op.span)

    def _body(self, op: MlirOp, arguments: Sequence[str]) -> None:
        if len(op.bodies) != 1:
            fail("bad-mlir", f"'{op.name}' has one body", op.span)
        self._block(op.bodies[0], arguments)
        self._line("}", op.span)

    def _block(self, body: Body, arguments: Sequence[str]) -> None:
        self.scopes.append({})
        for one, text in zip(body.arguments, arguments, strict=True):
            self._define(one.value, text.partition(":")[0], one.span)
        for op in body.ops:
            self._inner(op)
        self.scopes.pop()

    def _arguments(self, op: MlirOp, count: int) -> list[list[str]]:
        """The arguments of each of ``count`` bodies, with their types."""
        if len(op.bodies) != count:
            fail("bad-mlir", f"'{op.name}' has {count} bodies", op.span)
        kept = _list(op.attributes.get(ARGUMENTS, []), ARGUMENTS, op.span)
        found = []
        for number, body in enumerate(op.bodies):
            names = _list(kept[number], ARGUMENTS, op.span) if number < len(kept) else []
            own = []
            for at, one in enumerate(body.arguments):
                kept_name = _text(names[at], ARGUMENTS, op.span) if at < len(names) else None
                (kind,) = self._typed([one.kind], one.span)
                name = _value_name(kept_name or one.value[1:], one.span)
                own.append(f"{name}: {kind}")
            found.append(own)
        return found

    def _names(self, op: MlirOp) -> list[str]:
        """What the results are called."""
        kept = _list(op.attributes.get(NAMES, []), NAMES, op.span)
        if len(op.results) != len(op.types) or (kept and len(kept) != len(op.results)):
            fail("bad-mlir", f"'{op.name}' has other results than types or names", op.span)
        names = [_text(one, NAMES, op.span) for one in kept] or [v[1:] for v in op.results]
        return [_value_name(name, op.span) for name in names]

    def _define(self, value: str, name: str, span: Span) -> None:
        if any(value in scope for scope in self.scopes):
            fail("bad-mlir", f"{value} is defined twice", span)
        self.scopes[-1][value] = name

    def _value(self, value: str, span: Span) -> str:
        found = next((one[value] for one in reversed(self.scopes) if value in one), None)
        if found is None:
            fail("bad-mlir", f"{value} is not defined above", span)
        return found

    def _called(self, op: MlirOp) -> str:
        return _symbol_name(_text(op.attributes.get(NAME), NAME, op.span), op.span)

    def _symbol(self, op: MlirOp) -> str:
        given = op.attributes.get("sym_name")
        name = given.name if isinstance(given, SymbolName) else _text(given, "sym_name", op.span)
        return _symbol_name(name, op.span)

    def _typed(self, types: Sequence[TypeText], span: Span) -> list[str]:
        return [self._of_type(one, "type", span) for one in types]

    def _of_type(self, kind: object, what: str, span: Span) -> str:
        """A type as modules spell it."""
        if not isinstance(kind, TypeText):
            fail("bad-mlir", f"'{what}' is no type", span)
        if kind.text == TOKEN:
            return "token"
        layout = _LAYOUT.search(kind.text)
        if layout is not None:
            self.given.append((kind, span))
            text = unquoted(layout[1])
            if not re.fullmatch(r"\w+\[[\w, ]*\](<[^\n\"{}]*>)?", text):
                fail("bad-mlir", f"no tensor is laid out as {text}", span)
            return text
        shape = _SHAPE.match(kind.text)
        if shape is None or shape[2] not in _DTYPES or not kind.text.startswith("memref"):
            fail(
                "bad-mlir",
                f"{kind.text} is no type of a module",
                span,
                help="tensors have a #meshc.layout, buffers are memrefs",
            )
        return f"{_DTYPES[shape[2]]}[{', '.join(_EXTENT.findall(shape[1]))}]"

    def _braced(self, facts: Mapping[str, object], span: Span) -> str:
        pairs = (f"{_word(k, 'attribute', span)} = {_attribute(v, span)}" for k, v in facts.items())
        text = ", ".join(pairs)
        return f" {{{text}}}" if text else ""

    def _line(self, text: str, span: Span) -> None:
        self.lines.append(text)
        self.spans.append(span)


def _attribute(value: object, span: Span) -> str:
    """An attribute as modules spell it."""
    if isinstance(value, SymbolName | TypeText | dict) or value is None:
        fail("bad-mlir", "no attribute of a module is a symbol, a type or a mapping", span)
    if isinstance(value, list):
        return f"[{', '.join(_attribute(one, span) for one in value)}]"
    return attribute_text(value)


def _list(value: object, what: str, span: Span) -> list[object]:
    if not isinstance(value, list):
        fail("bad-mlir", f"'{what}' is no list", span)
    return value


def _text(value: object, what: str, span: Span) -> str:
    if not isinstance(value, str):
        fail("bad-mlir", f"'{what}' is no string", span)
    return value


def _whole(value: object, what: str, span: Span) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        fail("bad-mlir", f"'{what}' is no whole number", span)
    return value


def _word(value: object, what: str, span: Span) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        fail("bad-mlir", f"'{what}' is no name: {str(value)[:40]!r}", span)
    return value


def _value_name(name: str, span: Span) -> str:
    safe = re.sub("[#$-]", "_", name)
    if not _NAME.fullmatch(safe):
        fail("bad-mlir", f"no value can be called '{name[:40]}'", span)
    return f"%{safe}"


def _symbol_name(name: str, span: Span) -> str:
    if not _SYMBOL.fullmatch(name):
        fail("bad-mlir", f"'{name[:40]}' is no name of a symbol", span)
    return name

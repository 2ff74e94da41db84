"""MLIR's generic form as a tree of ops."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from meshc.support.diagnostics import fail
from meshc.support.grammar import Grammar, Leaf, Node
from meshc.support.spans import Source, Span

_GRAMMAR = Grammar(
    "meshc.mlir",
    "mlir.lark",
    "bad-mlir",
    "bad-mlir",
    "bad-mlir",
    words={
        "STRING": "a string",
        "VALUE": "a %value",
        "WORD": "a name",
        "SHAPED": "a tensor or memref",
        "TOKEN": "'!meshc.token'",
        "BLOCK": "a ^block",
        "INTEGER": "a number",
        "FLOAT": "a number",
        "BITS": "a number",
        "LOCATION": "a location",
    },
    max_characters=8 << 20,
    max_depth=64,
    comment="//",
)
_SHORT_FORM = re.compile(r"(?:\s|//[^\n]*\n)*((?:builtin\.)?module\b)")
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)


@dataclass(frozen=True)
class SymbolName:
    """A reference to what is called ``name``."""

    name: str


@dataclass(frozen=True)
class TypeText:
    """A type, or a word that may be one."""

    text: str


@dataclass(frozen=True)
class Argument:
    """An argument of a body: its value and its type."""

    value: str
    kind: TypeText
    span: Span


@dataclass(frozen=True)
class Body:
    """The one block of a region."""

    arguments: tuple[Argument, ...]
    ops: tuple[MlirOp, ...]


@dataclass(frozen=True)
class MlirOp:
    """An op as it stands in a text: values by their names there, the ``types`` of its results."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    types: tuple[TypeText, ...]
    attributes: dict[str, object]
    bodies: tuple[Body, ...]
    span: Span


def parse_mlir(source: Source) -> MlirOp:
    """The only op of ``source``, all others in its bodies. Fails with ``bad-mlir`` at its place."""
    short = _SHORT_FORM.match(source.text)
    if short is not None:
        start = source.text.rfind("\n", 0, short.start(1)) + 1
        line = source.text.count("\n", 0, start) + 1
        fail(
            "bad-mlir",
            "this is MLIR in its short form; what is read is the generic form",
            Span(source, line, short.start(1) - start + 1, len(short[1])),
            help="mlir-opt prints it with --mlir-print-op-generic, xdsl-opt --print-op-generic",
        )
    return _op(_GRAMMAR.parse(source).node(0))


def _op(node: Node) -> MlirOp:
    results, name, operands, properties, regions, mapping, signature = node.children[:7]
    assert isinstance(name, Leaf) and isinstance(signature, Node)
    attributes: dict[str, object] = {}
    for part in (properties.node(0) if isinstance(properties, Node) else None, mapping):
        if isinstance(part, Node):
            attributes |= _mapping(part)
    return MlirOp(
        unquoted(name.text),
        tuple(leaf.text for leaf in operands.leaves()) if isinstance(operands, Node) else (),
        tuple(_results(results)) if isinstance(results, Node) else (),
        tuple(map(TypeText, _result_types(signature))),
        attributes,
        tuple(map(_body, regions.nodes())) if isinstance(regions, Node) else (),
        name.span,
    )


def _body(region: Node) -> Body:
    blocks = [one for one in region.nodes() if one.rule == "block"]
    direct = [one for one in region.nodes() if one.rule == "op"]
    if len(blocks) + bool(direct) > 1:
        fail("bad-mlir", "bodies of several blocks have no meaning here", region.span)
    parts = [part for block in blocks for part in block.nodes()]
    arguments = [one for part in parts if part.rule == "arguments" for one in part.nodes()]
    ops = direct or [part for part in parts if part.rule == "op"]
    return Body(
        tuple(Argument(n.leaf(0).text, TypeText(_type_of(n.node(1))), n.span) for n in arguments),
        tuple(map(_op, ops)),
    )


def _results(node: Node) -> Iterator[str]:
    for result in node.nodes():
        count = result.children[1]
        if isinstance(count, Leaf):
            yield from (f"{result.leaf(0).text}#{n}" for n in range(int(count.text[:3])))
        else:
            yield result.leaf(0).text


def _result_types(signature: Node) -> list[str]:
    result = signature.children[-1]
    if not isinstance(result, Node):
        return []
    return [_type_of(result)] if result.rule == "type" else [_type_of(n) for n in result.nodes()]


def _type_of(node: Node) -> str:
    return node.leaf(0).text


def _mapping(node: Node) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in node.nodes():
        key = pair.leaf(0).text
        name = unquoted(key) if key.startswith('"') else key
        if name in found:
            fail("bad-mlir", f"'{name}' is given twice", pair.span)
        value = pair.maybe(1)
        found[name] = True if value is None else _given(value)
    return found


def _given(node: Node) -> object:
    """The value of an attribute."""
    if node.rule in ("list", "list_of"):
        return [_given(one) for one in node.nodes()]
    if node.rule == "nested":
        return _mapping(node.node(0))
    text = node.leaf(0).text
    if node.rule == "text":
        return unquoted(text)
    if node.rule == "symbol":
        return SymbolName(unquoted(text) if text.startswith('"') else text)
    if node.rule == "of_type":
        return TypeText(text)
    if node.rule == "word":
        return {"true": True, "false": False}.get(text, TypeText(text))
    if node.rule == "number":
        return float(text)
    if len(text) > 30:
        fail("bad-mlir", "this number is too long", node.span)
    if node.rule == "whole":
        return int(text)
    if node.leaf(1).text != "f64" or len(text) != 18:
        fail("bad-mlir", "bits are those of an f64", node.span)
    (number,) = struct.unpack(">d", bytes.fromhex(text[2:]))
    return float(number)


def unquoted(text: str) -> str:
    """What a string of MLIR says; bytes are hexadecimal."""
    plain = {"n": b"\n", "t": b"\t"}
    found = b""
    at = 1
    for match in _ESCAPE.finditer(text, 1, len(text) - 1):
        found += text[at : match.start()].encode()
        found += (
            bytes.fromhex(match[1])
            if len(match[1]) == 2
            else plain.get(match[1], match[1].encode())
        )
        at = match.end()
    return (found + text[at:-1].encode()).decode("utf-8", "replace")

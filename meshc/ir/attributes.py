"""Attribute values and their text: what stands between the braces of an op."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import get_type_hints

from meshc.ir.affine import Cond, Expr, parse_cond, parse_expr
from meshc.ir.core import OP_CLASSES, Op
from meshc.ir.kernels import KERNELS
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

Raw = int | float | bool | str | list["Raw"]

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_KIND_TYPES: dict[str, object] = {
    "affine": Expr,
    "int": int,
    "float": float,
    "bool": bool,
    "name": str,
}


def attribute_text(value: object) -> str:
    """Canonical text of one attribute value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Expr) and value.is_const:
        return str(value)
    if isinstance(value, (Expr, Cond)):
        return quoted(str(value))
    if isinstance(value, str):
        bare = _BARE.match(value) and value not in ("true", "false", "inf", "nan")
        return value if bare else quoted(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(attribute_text(v) for v in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"no text for {value!r}")


def quoted(text: str) -> str:
    """``text`` in double quotes, with backslash escapes for quotes, backslashes and controls."""
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in body) + '"'


def unquoted(text: str) -> str:
    """The inverse of :func:`quoted`; ``text`` includes the quotes."""
    pattern = re.compile(r"\\(u[0-9a-f]{4}|.)")
    return pattern.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else m[1], text[1:-1])


def attribute_types(cls: type[Op]) -> dict[str, object]:
    """Declared attribute fields of an op class with their types."""
    return _attribute_types(cls.NAME)


@cache
def _attribute_types(name: str) -> dict[str, object]:
    hints = get_type_hints(OP_CLASSES[name])
    base = {f.name for f in fields(Op)}
    return {f.name: hints[f.name] for f in fields(OP_CLASSES[name]) if f.name not in base}


def decode_attributes(cls: type[Op], raw: dict[str, Raw], span: Span) -> dict[str, object]:
    """Typed field values for ``cls`` from parsed attributes; fails on unknown or ill-typed ones."""
    types = attribute_types(cls)
    return {
        name: _decoded(name, value, _type_of(cls.NAME, types, name, span), span)
        for name, value in raw.items()
    }


def decode_params(kernel: str, raw: dict[str, Raw], span: Span) -> dict[str, object]:
    """Typed parameters of a microkernel; all of them must be given."""
    types = {a.name: _KIND_TYPES[a.kind] for a in KERNELS[kernel].attributes}
    for name in types:
        if name not in raw:
            fail("invalid-ir", f"tile.{kernel} lacks the attribute '{name}'", span)
    return {
        name: _decoded(name, value, _type_of(f"tile.{kernel}", types, name, span), span)
        for name, value in raw.items()
    }


def decode_condition(raw: Raw, span: Span) -> Cond:
    """The guard of an op."""
    value = _decoded("when", raw, Cond, span)
    assert isinstance(value, Cond)
    return value


def decode_way(raw: Raw, span: Span) -> str:
    """In which way a target writes a call of a microkernel."""
    value = _decoded("way", raw, str, span)
    assert isinstance(value, str)
    return value


def decode_dsr(raw: Raw, span: Span) -> int:
    """Which descriptor registers a call of a microkernel takes."""
    value = _decoded("dsr", raw, int, span)
    assert isinstance(value, int)
    return value


def _type_of(owner: str, types: dict[str, object], name: str, span: Span) -> object:
    if name not in types:
        known = ", ".join(types) or "none"
        fail("invalid-ir", f"{owner} has no attribute '{name}'", span, help=f"it has: {known}")
    return types[name]


def _decoded(name: str, raw: Raw, kind: object, span: Span) -> object:
    if kind == Expr | None:
        kind = Expr
    if kind is bool and isinstance(raw, bool):
        return raw
    if kind is int and isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if kind is float and isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return float(raw)
    if kind is str and isinstance(raw, str):
        return raw
    if kind is Expr and isinstance(raw, str):
        return parse_expr(raw, span)
    if kind is Expr and isinstance(raw, int):
        return Expr.const(raw)
    if kind is Cond and isinstance(raw, str):
        return parse_cond(raw, span)
    if kind == tuple[str, ...] and _all(raw, str):
        return tuple(raw)  # type: ignore[arg-type]
    if kind == tuple[int, ...] and _all(raw, int):
        return tuple(raw)  # type: ignore[arg-type]
    if kind == tuple[float, ...] and _all(raw, (int, float)):
        return tuple(map(float, raw))  # type: ignore[arg-type]
    fail("invalid-ir", f"the attribute '{name}' has a value of the wrong kind", span)


def _all(raw: Raw, kind: type | tuple[type, ...]) -> bool:
    return isinstance(raw, list) and all(isinstance(v, kind) for v in raw)

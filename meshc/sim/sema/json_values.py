"""JSON data as compile-time values: ``@import_comptime_value``."""

from __future__ import annotations

from typing import Any

from meshc.sim.lang.statement_parser import parse_type
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.analysing import Core
from meshc.sim.sema.convert import coerce
from meshc.sim.sema.csl_types import Array, Type
from meshc.sim.sema.values import Frame, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Source, Span


def json_value(an: Core, data: Any, kind: Type, frame: Frame, span: Span) -> Val:
    """``data`` as a value of ``kind``; fields of objects are named ``name:type``.

    Raises MeshcError ``csl-json`` for data that has no such value.
    """
    if kind == ty.STRUCT and isinstance(data, dict):
        return Val(ty.STRUCT, dict(_field(an, k, v, frame, span) for k, v in data.items()))
    if isinstance(kind, Array) and isinstance(data, list):
        if len(data) != kind.count:
            fail("csl-json", f"{len(data)} elements in JSON for '{kind}'", span)
        return Val(kind, [json_value(an, v, kind.element, frame, span).v for v in data])
    plain = {bool: ty.BOOL, int: ty.COMPTIME_INT, float: ty.COMPTIME_FLOAT, str: ty.STRING}
    found = plain.get(type(data))
    if found is None:
        fail("csl-json", f"JSON has {_words(data)} where '{kind}' is wanted", span)
    return coerce(Val(found, data), kind, span)


def _field(an: Core, label: str, data: Any, frame: Frame, span: Span) -> tuple[str, Val]:
    name, colon, spelled = label.partition(":")
    if not colon:
        fail("csl-json", f"the JSON field '{label}' has no type; write 'name:type'", span)
    kind = an.type_from(parse_type(Source("<JSON label>", spelled.strip())), frame)
    return name.strip(), json_value(an, data, kind, frame, span)


def _words(data: Any) -> str:
    return {list: "an array", dict: "an object", type(None): "null"}.get(type(data), "a value")

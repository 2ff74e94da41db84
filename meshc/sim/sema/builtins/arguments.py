"""Checks of what builtins are given: each field of a struct has a name, a type and a range."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Type
from meshc.sim.sema.values import FnVal, Val
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

FABRIC_COLORS = 24


def routable(color: int, span: Span) -> int:
    """``color`` when wavelets can have it. Raises MeshcError ``csl-range``."""
    if not 0 <= color < FABRIC_COLORS:
        fail("csl-range", f"{color} is no color of the fabric; they are 0 to 23", span)
    return color


def fields_of(value: Val | None, span: Span) -> dict[str, Val]:
    """The fields of a struct, or none."""
    if value is None:
        return {}
    if value.type != ty.STRUCT:
        fail("csl-type", f"expected a struct, found '{value.type}'", span)
    fields: dict[str, Val] = value.v
    return fields


def check_names(fields: Mapping[Any, Val], allowed: Collection[str], what: str, span: Span) -> None:
    """An error for the first field that ``what`` does not have."""
    for name in fields:
        if name not in allowed:
            fail("csl-unknown-name", f"{what} has no field '.{name}'", span)


def flag(fields: Mapping[Any, Val], name: str, span: Span) -> bool:
    """A field that is true or false at compile time; false when it is not there."""
    value = fields.get(name)
    if value is None:
        return False
    if value.type != ty.BOOL or not value.known:
        fail("csl-type", f"'.{name}' is true or false at compile time, not '{value.type}'", span)
    return bool(value.v)


def chosen(value: Val, names: Collection[str], default: str, what: str, span: Span) -> str:
    """The option that an enum literal or a struct of one true field names."""
    if value.type == ty.ENUM_LITERAL:
        options = [str(value.v)]
    else:
        fields = fields_of(value, span)
        options = [str(name) for name in fields if flag(fields, name, span)]
        options += [str(name) for name in fields if name not in names]
    for name in options:
        if name not in names:
            fail("csl-unknown-name", f"unknown {what} '.{name}'", span)
    if len(options) > 1:
        fail("csl-type", f"'.{options[0]}' and '.{options[1]}': one {what} is chosen", span)
    return options[0] if options else default


def number_in(value: Val, low: int, high: int, what: str, span: Span) -> int:
    """A known integer from ``low`` to ``high``."""
    if not value.known or not ty.is_int(value.type):
        fail("csl-type", f"{what} must be an integer known at compile time", span)
    if not low <= value.v <= high:
        fail("csl-range", f"{what} is {value.v}; it is {low} to {high}", span)
    return int(value.v)


def color_of(value: Val, what: str, span: Span) -> int:
    """The number of a known color; older programs write the number itself."""
    if not value.known or not (value.type == ty.COLOR or ty.is_int(value.type)):
        fail("csl-type", f"{what} must be a color known at compile time, not '{value.type}'", span)
    return routable(int(value.v), span)


def check_id(value: Val, kind: Type, count: int, what: str, span: Span) -> None:
    """An error unless ``value`` is an id of a kind or an integer; known ones are below a count."""
    if not (value.type == kind or ty.is_int(value.type)):
        fail("csl-type", f"{what} must be a '{kind}', not '{value.type}'", span)
    if value.known and not 0 <= value.v < count:
        fail("csl-range", f"{value.v} is no {kind}; the largest is {count - 1}", span)


def task_of(value: Val, what: str, span: Span) -> FnVal:
    """The task that a value is."""
    if not isinstance(value.v, FnVal) or not value.v.decl.task:
        fail("csl-type", f"{what} needs a task, found '{value.type}'", span)
    return value.v


PRIORITIES = {"low": 0, "medium": 1, "high": 2}


def priority_level(value: Val, span: Span) -> int:
    """The number of a priority: low 0, medium 1, high 2."""
    return PRIORITIES[chosen(value, PRIORITIES, "low", "priority", span)]

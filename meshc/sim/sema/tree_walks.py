"""Walks over syntax trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from meshc.sim.lang import tree as t
from meshc.sim.sema.values import FnVal


@cache
def _parts(kind: Any) -> tuple[str, ...]:
    """The fields of a node, the last one first."""
    return tuple(f.name for f in reversed(fields(kind)) if f.name != "span")


def _kind(root: t.Node) -> Any:
    return type(root)


def nodes(root: Any) -> Iterator[t.Node]:
    """Every node below and including ``root``, in the order of the text."""
    left = [root]
    while left:
        found = left.pop()
        if isinstance(found, t.Node):
            yield found
            left += [getattr(found, name) for name in _parts(_kind(found))]
        elif isinstance(found, list | tuple):
            left += reversed(found)


def named(root: Any) -> frozenset[str]:
    """All names that occur below a node, or below several."""
    return frozenset(node.name for node in nodes(root) if isinstance(node, t.Name))


def addressed_names(body: t.Node) -> frozenset[str]:
    """Names of variables whose address is taken, or that are written by index or field."""
    found = set()
    for node in nodes(body):
        if isinstance(node, t.AddressOf):
            inner = node.operand
            while isinstance(inner, t.Index | t.Field):
                inner = inner.base
            if isinstance(inner, t.Name):
                found.add(inner.name)
    return frozenset(found)


_PURE = frozenset(
    (
        "as",
        "bitcast",
        "field",
        "get_int",
        "has_field",
        "is_arch",
        "is_same_type",
        "range",
        "type_of",
    )
)


def has_effects(fn: FnVal) -> bool:
    """Whether running a function at compile time might do more than give its value. Functions that
    it calls are looked at when they stand in the same file."""
    seen, left = set[str](), [fn]
    while left:
        one = left.pop()
        seen.add(one.name)
        for node in nodes(one.decl.body):
            if isinstance(node, t.Builtin) and node.name not in _PURE:
                return True
            if isinstance(node, t.Call):
                name = node.callee.name if isinstance(node.callee, t.Name) else ""
                called = fn.module.names.get(name)
                if not isinstance(called, FnVal):
                    return True
                if name not in seen:
                    left.append(called)
    return False


def imports_module(root: t.Node | None) -> bool:
    """Whether an expression imports a module."""
    return any(isinstance(n, t.Builtin) and n.name == "import_module" for n in nodes(root))

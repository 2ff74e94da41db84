"""Who calls whom among the blocks of a model, and what follows from it."""

from __future__ import annotations

from collections.abc import Container, Iterator

from meshc.frontend.language.ast import Block, Call, Model, expressions_of, parts, statements
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Span


def calls_of(block: Block) -> Iterator[Call]:
    """Every call in the body of ``block``, in text order."""
    for statement in statements(block.body):
        for expression in expressions_of(statement):
            for part in parts(expression):
                if isinstance(part, Call):
                    yield part


def reachable(model: Model) -> tuple[Block, ...]:
    """``main`` and the blocks it calls, directly or not."""
    found = {model.main.span: model.main}
    pending = [model.main]
    while pending:
        for callee in _callees(model, pending.pop()):
            if callee.span not in found:
                found[callee.span] = callee
                pending.append(callee)
    return tuple(found.values())


def phases(model: Model) -> tuple[str, ...]:
    """``prefill`` and ``decode`` for a model that appends to caches, else only ``main``."""
    caches = any(call.name == "append" for b in reachable(model) for call in calls_of(b))
    return ("prefill", "decode") if caches else ("main",)


def check_recursion(model: Model, diagnostics: Diagnostics) -> None:
    """Report a cycle of calls, if there is one: a graph has no end that way."""
    left = {b.span: b for b in model.blocks()}
    while True:
        leaves = [k for k, b in left.items() if not any(c.span in left for c in _callees(model, b))]
        if not leaves:
            break
        for key in leaves:
            del left[key]
    if left:
        cycle = _cycle(model, next(iter(left.values())), left.keys())
        path = " -> ".join(b.name for b in [*cycle, cycle[0]])
        message = f"block '{cycle[0].name}' calls itself: {path}"
        diagnostics.error("recursive-block", message, cycle[0].span)


def _callees(model: Model, block: Block) -> list[Block]:
    scope = model.visible.get(block.scope, {})
    return [scope[call.name] for call in calls_of(block) if call.name in scope]


def _cycle(model: Model, start: Block, left: Container[Span]) -> list[Block]:
    """Blocks that call each other in a ring, found by following calls among ``left``."""
    path = [start]
    while True:
        callee = next(c for c in _callees(model, path[-1]) if c.span in left)
        if callee in path:
            return path[path.index(callee) :]
        path.append(callee)

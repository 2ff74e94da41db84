"""Who calls whom among the blocks of a model, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshc.frontend.language.ast import Block, Call, Model, expressions_of, parts, statements
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Span

_SHOWN_CALLS = 8


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
    """Report the first cycle of calls, if there is one: expanding it would have no end."""
    blocks = {b.span: b for b in model.blocks()}
    callees = {b.span: [c.span for c in _callees(model, b)] for b in blocks.values()}
    finished: set[Span] = set()
    for start in blocks:
        cycle = _cycle_from(start, callees, finished)
        if cycle:
            names = [blocks[span].name for span in cycle]
            ring = [*names, names[0]]
            shown = ring if len(ring) <= _SHOWN_CALLS else [*ring[:3], "...", *ring[-2:]]
            message = f"block '{names[0]}' calls itself: {' -> '.join(shown)}"
            diagnostics.error("recursive-block", message, cycle[0])
            return


def _callees(model: Model, block: Block) -> list[Block]:
    scope = model.visible.get(block.scope, {})
    return [scope[call.name] for call in calls_of(block) if call.name in scope]


def _cycle_from(start: Span, callees: Mapping[Span, list[Span]], finished: set[Span]) -> list[Span]:
    """A ring of calls that ``start`` leads into, by a depth-first search without recursion."""
    path: list[Span] = []
    open_calls = [iter([start])]
    while open_calls:
        callee = next(open_calls[-1], None)
        if callee is None:
            open_calls.pop()
            if path:
                finished.add(path.pop())
        elif callee in path:
            return path[path.index(callee) :]
        elif callee not in finished:
            path.append(callee)
            open_calls.append(iter(callees[callee]))
    return []

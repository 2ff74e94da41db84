"""What can be said about a model before its parameters have values: places, names, calls."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from meshc.frontend.language.ast import (
    Assign,
    Block,
    Choice,
    Dtype,
    Heads,
    Model,
    Name,
    Parameter,
    Params,
    Repeat,
    Return,
    Statement,
    Tensor,
    statements,
)
from meshc.frontend.language.block_calls import check_recursion, phases
from meshc.frontend.language.dims import BATCH, CAPACITY, ROWS
from meshc.frontend.language.names import PHASES, check_names
from meshc.support.diagnostics import Diagnostic, Diagnostics
from meshc.support.spans import Span

_BLOCK_PLACES: tuple[type, ...] = (Heads, Assign, Return, Choice)
_MODEL_PLACES: tuple[type, ...] = (Dtype, Heads, Params, Choice)
_MAIN_PLACES: tuple[type, ...] = (Heads, Params, Assign, Return, Repeat, Choice)
_REPEAT_PLACES: tuple[type, ...] = (Params, Assign, Choice)

_WORDS: dict[type, str] = {
    Dtype: "a dtype",
    Heads: "'heads'",
    Params: "'param'",
    Assign: "an assignment",
    Return: "'return'",
    Repeat: "'repeat'",
    Block: "a block",
}


def check_model(model: Model, diagnostics: Diagnostics) -> None:
    """Report what is wrong whatever the parameters are, and warn of what is surely not meant."""
    _check_places(model.body, _MODEL_PLACES, "the model", diagnostics)
    _check_places(model.main.body, _MAIN_PLACES, "main", diagnostics)
    pieces = (model.main, *model.blocks())
    for block in model.blocks():
        _check_places(block.body, _BLOCK_PLACES, f"block '{block.name}'", diagnostics)
    for piece in pieces:
        _check_returns(piece, diagnostics)
        _check_formals(piece, diagnostics)
    check_recursion(model, diagnostics)
    if not diagnostics.errors:
        _check_duplicates(model, diagnostics)
        for piece in pieces:
            _check_targets(model, piece, diagnostics)
        check_names(model, diagnostics)


def weights_of(model: Model) -> tuple[Tensor, ...]:
    """Every ``param`` of the model in text order, whichever branch it is in."""
    everywhere = (*statements(model.body), *statements(model.main.body))
    return tuple(t for s in everywhere if isinstance(s, Params) for t in s.tensors)


def _check_places(
    body: Iterable[Statement], allowed: tuple[type, ...], where: str, diagnostics: Diagnostics
) -> None:
    for statement in body:
        if not isinstance(statement, allowed):
            word = "'main'" if _is_main(statement) else _WORDS[type(statement)]
            diagnostics.error(
                "misplaced-statement", f"{word} cannot stand in {where}", statement.span
            )
        elif isinstance(statement, Repeat):
            _check_places(statement.body, _REPEAT_PLACES, "a repeat", diagnostics)
        elif isinstance(statement, Choice):
            for _, branch in statement.branches:
                _check_places(branch, allowed, where, diagnostics)
            _check_places(statement.otherwise, allowed, where, diagnostics)


def _is_main(statement: Statement) -> bool:
    return isinstance(statement, Block) and statement.name == "main"


def _check_returns(piece: Block, diagnostics: Diagnostics) -> None:
    """A piece returns; nothing follows a return that has no condition."""
    if not any(isinstance(s, Return) for s in statements(piece.body)):
        what = "main" if piece.name == "main" else f"block '{piece.name}'"
        diagnostics.error(
            "missing-return", f"{what} returns nothing", piece.span, help="end it with: return x"
        )
    for body in _bodies(piece.body):
        for statement, following in pairwise(body):
            if isinstance(statement, Return) and statement.when is None:
                message = "this is never reached: there is a return above it"
                diagnostics.add(Diagnostic("warning", "unreachable", message, following.span))


def _bodies(body: tuple[Statement, ...]) -> list[tuple[Statement, ...]]:
    """``body`` and the bodies of the choices in it."""
    found = [body]
    for statement in statements(body):
        if isinstance(statement, Choice):
            found += [branch for _, branch in statement.branches] + [statement.otherwise]
    return found


def _check_formals(piece: Block, diagnostics: Diagnostics) -> None:
    seen: dict[str, Span] = {}
    for formal in piece.formals:
        _once(formal.name, formal.span, seen, diagnostics)
        if piece.name == "main" and isinstance(formal, Parameter):
            message = f"main takes tensors; '{formal.name}' has no dims"
            diagnostics.error("misplaced-statement", message, formal.span)
        if isinstance(formal, Tensor):
            check_dims_differ(formal.dims or (), diagnostics)
    dims = {d.text for f in piece.formals if isinstance(f, Tensor) for d in f.dims or ()}
    for formal in piece.formals:
        if formal.name in dims:
            message = f"'{formal.name}' is also the name of a dim"
            diagnostics.error("duplicate-name", message, formal.span)


def check_dims_differ(dims: Iterable[Name], diagnostics: Diagnostics) -> None:
    """Report a dim that one tensor has twice."""
    seen: set[str] = set()
    for dim in dims:
        if dim.text in seen:
            diagnostics.error(
                "duplicate-name",
                f"dim '{dim.text}' stands twice in one tensor",
                dim.span,
                help=f"give it a second name in the model's head: {dim.text}2={dim.text}",
            )
        seen.add(dim.text)


def _check_duplicates(model: Model, diagnostics: Diagnostics) -> None:
    """Names of parameters, params and inputs do not clash; each dtype is declared once."""
    seen = dict.fromkeys((*PHASES, "cache"), model.span)
    if "main" not in phases(model):
        seen.update(dict.fromkeys((ROWS, CAPACITY), model.span))
    for parameter in model.parameters:
        _once(parameter.name, parameter.span, seen, diagnostics)
    seen.update(dict.fromkeys((BATCH, ROWS, CAPACITY), model.span))
    inside = _params_once(model.body, seen, diagnostics)
    _params_once(model.main.body, inside, diagnostics)
    for formal in model.main.formals:
        _once(formal.name, formal.span, dict(inside), diagnostics)
    roles: dict[str, Span] = {}
    for statement in model.body:
        if isinstance(statement, Dtype):
            _once(statement.role, statement.span, roles, diagnostics)


def _params_once(
    body: Iterable[Statement], seen: dict[str, Span], diagnostics: Diagnostics
) -> dict[str, Span]:
    """Check the params of ``body``; two branches of a choice may use one name. All names seen."""
    seen = dict(seen)
    for statement in body:
        if isinstance(statement, Params):
            for tensor in statement.tensors:
                _once(tensor.name, tensor.span, seen, diagnostics)
                check_dims_differ(tensor.dims or (), diagnostics)
        elif isinstance(statement, Repeat):
            seen = _params_once(statement.body, seen, diagnostics)
        elif isinstance(statement, Choice):
            branches = [b for _, b in statement.branches] + [statement.otherwise]
            for found in [_params_once(branch, seen, diagnostics) for branch in branches]:
                seen = {**found, **seen}
    return seen


def _check_targets(model: Model, piece: Block, diagnostics: Diagnostics) -> None:
    """What is assigned is no constant, dim or param, and no target stands twice."""
    fixed = {f.name: f.span for f in piece.formals if isinstance(f, Parameter)}
    if piece.scope == model.scope:
        fixed.update((p.name, p.span) for p in model.parameters)
    if piece.name == "main":
        fixed.update((t.name, t.span) for t in weights_of(model))
    reserved = (*PHASES, "cache", BATCH, ROWS, CAPACITY)
    fixed.update((name, piece.span) for name in reserved)
    for statement in statements(piece.body):
        if isinstance(statement, Assign):
            seen: dict[str, Span] = {}
            for target in statement.targets:
                _once(target.name, target.span, seen, diagnostics)
                if target.name in fixed:
                    message = f"'{target.name}' cannot be assigned; it has a meaning already"
                    diagnostics.error("duplicate-name", message, target.span)


def _once(name: str, span: Span, seen: dict[str, Span], diagnostics: Diagnostics) -> None:
    other = seen.get(name)
    if other is not None and other != span:
        reserved = name in (*PHASES, "cache", BATCH, ROWS, CAPACITY)
        message = f"'{name}' has a meaning already" if reserved else f"'{name}' is declared twice"
        notes = [] if reserved else [f"the other one is at {other}"]
        diagnostics.error("duplicate-name", message, span, notes)
    seen.setdefault(name, span)

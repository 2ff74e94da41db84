"""Which names each piece of a model knows; unknown ones are errors, unused ones warnings."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.frontend.language.ast import (
    Argument,
    Assign,
    Block,
    Call,
    Chain,
    Dtype,
    Expression,
    Heads,
    Literal,
    Model,
    Name,
    Parameter,
    Params,
    Reference,
    Repeat,
    Statement,
    Tensor,
    Unary,
    expressions_of,
    statements,
)
from meshc.frontend.language.builtin_signatures import (
    BUILTINS,
    Formal,
    Signature,
    bind,
    built_in,
    did_you_mean,
    signature_of,
)
from meshc.frontend.language.dims import BATCH, CAPACITY, ROWS
from meshc.ir.types import DType
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError
from meshc.support.spans import Span

PHASES = ("prefill", "decode")
DTYPES = tuple(d.value for d in DType if d.floats)

# On the call of a block: the name under which its caches are kept apart.
CACHE_OPTION = "cache"


def check_names(model: Model, diagnostics: Diagnostics) -> None:
    """Report unknown names, dims, functions and options in every piece; warn of unused names."""
    parameters = {p.name: p.span for p in model.parameters}
    head = _Piece(model, diagnostics, dict(parameters), dict(parameters))
    for parameter in model.parameters:
        if parameter.default is not None:
            head.visit(parameter.default)
    main = _main_piece(model, diagnostics, parameters)
    for statement in statements(model.body):
        main.statement(statement)
    main.run(model.main)
    used = head.used | main.used
    for block in model.blocks():
        piece = _block_piece(model, block, diagnostics, parameters)
        piece.run(block)
        piece.warn_unused()
        used |= piece.used
    main.warn_unused()
    for name, span in parameters.items():
        if name not in used:
            _warn_unused(f"parameter '{name}'", span, diagnostics)


def _main_piece(model: Model, diagnostics: Diagnostics, parameters: dict[str, Span]) -> _Piece:
    everywhere = (*statements(model.body), *statements(model.main.body))
    weights = [t for s in everywhere if isinstance(s, Params) for t in s.tensors]
    tensors = {t.name: t.span for t in weights}
    tensors.update((f.name, f.span) for f in model.main.formals)
    return _Piece(
        model, diagnostics, dict(parameters), dict(parameters), tensors, scope=model.scope
    )


def _block_piece(
    model: Model, block: Block, diagnostics: Diagnostics, parameters: dict[str, Span]
) -> _Piece:
    outer = parameters if block.scope == model.scope else {}
    constants = {**outer, **{f.name: f.span for f in block.formals if isinstance(f, Parameter)}}
    tensors = {f.name: f.span for f in block.formals if isinstance(f, Tensor)}
    dims = dict(outer)
    for formal in block.formals:
        if isinstance(formal, Tensor):
            dims.update((d.text, d.span) for d in formal.dims or ())
    own = {f.name: f.span for f in block.formals}
    return _Piece(model, diagnostics, constants, dims, tensors, own, scope=block.scope)


@dataclass
class _Piece:
    """One body being checked: what it knows and what it has used so far."""

    model: Model
    diagnostics: Diagnostics
    constants: dict[str, Span]
    dims: dict[str, Span]
    tensors: dict[str, Span] = field(default_factory=dict)
    own: dict[str, Span] = field(default_factory=dict)
    scope: str = ""
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        here = self.model.span
        self.dims.update((d, self.dims.get(d, here)) for d in (BATCH, ROWS, CAPACITY))
        self.constants.update((p, here) for p in PHASES)
        self.own = {**self.tensors, **self.own}

    def run(self, piece: Block) -> None:
        """Check the body of a block or of main."""
        for formal in piece.formals:
            if isinstance(formal, Parameter) and formal.default is not None:
                self.visit(formal.default)
            elif isinstance(formal, Tensor):
                self._dims(formal.dims)
        for dims in piece.results:
            self._dims(dims)
        for statement in statements(piece.body):
            if isinstance(statement, Assign):
                for target in statement.targets:
                    self.tensors.setdefault(target.name, target.span)
                    self.own.setdefault(target.name, target.span)
        for statement in statements(piece.body):
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        """Check the names one statement uses."""
        match statement:
            case Heads(many=many, few=few):
                self._dims((many, few))
            case Repeat(dim=dim):
                self._dims((dim,))
            case Params(tensors=tensors) | Assign(targets=tensors):
                for tensor in tensors:
                    self._dims(tensor.dims)
            case Dtype(name=name):
                self._dtype(name)
            case _:
                pass
        for expression in expressions_of(statement):
            self.visit(expression)

    def visit(self, expression: Expression) -> None:
        """Check the names of an expression."""
        match expression:
            case Reference():
                self._reference(expression)
            case Unary(operand=operand):
                self.visit(operand)
            case Chain(operands=operands):
                for operand in operands:
                    self.visit(operand)
            case Call():
                self._call(expression)
            case Literal():
                pass

    def warn_unused(self) -> None:
        """Warn of tensors and constants of this piece that nothing reads."""
        for name, span in self.own.items():
            if name not in self.used:
                _warn_unused(f"'{name}'", span, self.diagnostics)

    def _reference(self, reference: Reference) -> None:
        name = reference.path[0]
        if len(reference.path) > 1:
            self._refuse_path(reference)
        elif name in self.tensors or name in self.constants or name in self.dims:
            self.used.add(name)
        else:
            everything = [*self.tensors, *self.constants, *self.dims]
            help_line = did_you_mean(name, everything)
            message = f"'{name}' is not known here"
            self.diagnostics.error("unknown-name", message, reference.span, help=help_line)

    def _refuse_path(self, reference: Reference) -> None:
        if reference.path[0] == "cache":
            self.diagnostics.error(
                "not-a-cache",
                f"'{reference.name}' can only be appended to",
                reference.span,
                help=f"use the value of append({reference.name}, ...)",
            )
        else:
            message = f"'{reference.name}' is not known: only 'cache' has parts"
            self.diagnostics.error("unknown-name", message, reference.span)

    def _call(self, call: Call) -> None:
        signature = self._signature(call)
        if signature is None:
            for argument in call.arguments:
                self.visit(argument.value)
            return
        try:
            bound = bind(without_cache_option(call, signature), signature)
        except MeshcError as error:
            for message in error.diagnostics:
                self.diagnostics.add(message)
            return
        for name, argument in bound.items():
            formal = signature.formal(name)
            assert formal is not None
            self._argument(formal, argument)

    def _signature(self, call: Call) -> Signature | None:
        blocks = self.model.visible.get(self.scope, {})
        if call.name in blocks:
            return signature_of(blocks[call.name])
        if (found := built_in(call.name, call.span)) is not None:
            return found
        self.diagnostics.error(
            "unknown-function",
            f"there is no function or block '{call.name}'",
            call.span,
            help=did_you_mean(call.name, [*blocks, *BUILTINS]),
        )
        return None

    def _argument(self, formal: Formal, argument: Argument) -> None:
        value = argument.value
        if formal.kind == "cache":
            if not is_cache(value):
                self.diagnostics.error(
                    "not-a-cache",
                    "append needs a cache as its first argument",
                    argument.span,
                    help="write append(cache.k, value)",
                )
        elif formal.kind == "dim":
            self._dim_argument(argument)
        elif formal.kind == "word":
            self._word_argument(formal, value)
        else:
            self.visit(value)

    def _word_argument(self, formal: Formal, value: Expression) -> None:
        """A bare word of the option, or a constant with such a text."""
        if isinstance(value, Reference) and value.name not in self.constants:
            check_word(value.name, formal, value.span, self.diagnostics)
        else:
            self.visit(value)

    def _dim_argument(self, argument: Argument) -> None:
        if isinstance(argument.value, Reference) and len(argument.value.path) == 1:
            self._dims((Name(argument.value.name, argument.value.span),))
        else:
            self.diagnostics.error(
                "unknown-dim", "the name of a dim is needed", argument.value.span
            )

    def _dims(self, dims: tuple[Name, ...] | None) -> None:
        for dim in dims or ():
            if dim.text in self.dims:
                self.used.add(dim.text)
                continue
            self.diagnostics.error(
                "unknown-dim",
                f"there is no dim '{dim.text}'",
                dim.span,
                help=did_you_mean(dim.text, self.dims)
                or f"declare it in the model's head: {dim.text}=64",
            )

    def _dtype(self, name: Name) -> None:
        if name.text in self.constants:
            self.used.add(name.text)
        elif name.text not in DTYPES:
            message = f"there is no dtype '{name.text}'"
            help_line = f"dtypes are {', '.join(DTYPES)}"
            self.diagnostics.error("bad-dtype", message, name.span, help=help_line)


def is_cache(value: Expression) -> bool:
    """Whether ``value`` is ``cache.name``."""
    return isinstance(value, Reference) and len(value.path) == 2 and value.path[0] == "cache"


def check_word(word: str, formal: Formal, span: Span, diagnostics: Diagnostics) -> None:
    """Report a word that the option ``formal`` does not know."""
    if word not in formal.words:
        diagnostics.error(
            "bad-option",
            f"'{word}' is no {formal.name}",
            span,
            help=f"it can be {', '.join(formal.words)}",
        )


def without_cache_option(call: Call, signature: Signature) -> Call:
    """``call`` of a block without ``cache = name``, which is no parameter of it."""
    if signature.name in BUILTINS:
        return call
    kept = tuple(a for a in call.arguments if a.name != CACHE_OPTION)
    return Call(call.name, kept, call.span)


def _warn_unused(what: str, span: Span, diagnostics: Diagnostics) -> None:
    diagnostics.add(Diagnostic("warning", "unused-name", f"{what} is never used", span))

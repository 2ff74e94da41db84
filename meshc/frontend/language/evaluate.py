"""Expressions to ops: operators, calls of built-in functions, blocks expanded in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from meshc.frontend.language.ast import (
    Argument,
    Block,
    Call,
    Chain,
    Constant,
    Expression,
    Literal,
    Model,
    Name,
    Parameter,
    Reference,
    Tensor,
    Unary,
)
from meshc.frontend.language.builtin_signatures import Formal, bind, built_in, signature_of
from meshc.frontend.language.constants import binary, fold, numeric, square_root, unary
from meshc.frontend.language.dims import HeadPair, show
from meshc.frontend.language.found import Found, Stopped
from meshc.frontend.language.functions import (
    Applied,
    append,
    applied_to,
    dims_of,
    elementwise,
    matmul,
    scale,
)
from meshc.frontend.language.graph_function import Emitter
from meshc.frontend.language.names import CACHE_OPTION, check_word, without_cache_option
from meshc.frontend.language.parameters import Extents
from meshc.frontend.language.scope import PREDECLARED, Poisoned, Scope, phase_constants
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.support.spans import Span

MAX_DEPTH = 100

Result = Value | Constant


class Evaluator:
    """Evaluates expressions of one model in one phase; statements are the subclass's."""

    def __init__(
        self, model: Model, phase: str, emitter: Emitter, extents: Extents, found: Found
    ) -> None:
        self.model = model
        self.phase = phase
        self.emitter = emitter
        self.extents = extents
        self.diagnostics = found
        self.depth = 0

    def run(self, block: Block, scope: Scope) -> list[Value]:
        """Execute the body of ``block`` in ``scope``; what it returns."""
        raise NotImplementedError

    def evaluate(self, expression: Expression, scope: Scope) -> Result:
        """The one value of an expression."""
        with self._deeper(expression.span):
            match expression:
                case Literal(value=value):
                    return value
                case Reference():
                    return scope.read(expression)
                case Unary():
                    return self._unary(expression, scope)
                case Chain():
                    return self._chain(expression, scope)
                case Call():
                    return self._single(expression, self.results(expression, scope))

    def results(self, call: Call, scope: Scope) -> list[Result]:
        """All values of a call; a block may have several."""
        if call.name in scope.blocks:
            return [*self._block(call, scope.blocks[call.name], scope)]
        return [self._builtin(call, scope)]

    def tensor(self, expression: Expression, scope: Scope) -> Value:
        """The value of an expression that must be a tensor."""
        value = self.evaluate(expression, scope)
        if not isinstance(value, Value):
            fail("bad-operand", "a tensor is needed here, not a constant", expression.span)
        return value

    @contextmanager
    def recovering(self, scope: Scope) -> Iterator[None]:
        """Report an error of the statement inside and go on behind it."""
        try:
            yield
        except Poisoned:
            pass
        except Stopped:
            raise
        except MeshcError as error:
            for found in error.diagnostics:
                self.diagnostics.add(replace(found, notes=(*found.notes, *scope.trace)))

    def model_scope(self, constants: dict[str, Constant]) -> Scope:
        """The names that main and the model's own blocks start from."""
        dims = {name: name for name in (*PREDECLARED, *constants)}
        known = {**constants, **phase_constants(self.phase)}
        return Scope(self.extents, self.model.visible[self.model.scope], known, dims)

    def pair(self, many: Name, few: Name, scope: Scope) -> HeadPair:
        """A ``heads`` statement as the module's dims."""
        pair = scope.dim(many), scope.dim(few)
        extents = [self.extents.use(d, many.span) for d in pair]
        if extents[0] % extents[1]:
            fail(
                "bad-heads",
                f"{many.text} = {extents[0]} is no multiple of {few.text} = {extents[1]}",
                many.span,
                help=f"each of the {few.text} heads serves the same number of {many.text} heads",
            )
        return pair

    @contextmanager
    def _deeper(self, span: Span) -> Iterator[None]:
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                fail("source-nesting", "blocks and brackets are nested too deeply here", span)
            yield
        finally:
            self.depth -= 1

    def _single(self, call: Call, results: list[Result]) -> Result:
        if len(results) != 1:
            message = f"'{call.name}' gives {len(results)} values; one is needed here"
            fail("wrong-result-count", message, call.span, help="assign them to names: a, b = ...")
        return results[0]

    def _unary(self, expression: Unary, scope: Scope) -> Result:
        value = self.evaluate(expression.operand, scope)
        if not isinstance(value, Value):
            return unary(expression.operator, value, expression.span)
        if expression.operator == "not":
            fail("bad-operand", "'not' needs a truth value, not a tensor", expression.span)
        if expression.operator == "-":
            return scale(self.emitter, value, -1.0, expression.span)
        return value

    def _chain(self, chain: Chain, scope: Scope) -> Result:
        value = self.evaluate(chain.operands[0], scope)
        for operator, operand in zip(chain.operators, chain.operands[1:], strict=True):
            right = self.evaluate(operand, scope)
            if operator.text == "@" and isinstance(value, Value) and isinstance(right, Value):
                text = _short_text(operand.span)
                value = matmul(self.emitter, value, right, scope.heads, operator.span, text)
            else:
                value = self._operate(operator, value, right)
        return value

    def _operate(self, operator: Name, left: Result, right: Result) -> Result:
        if not isinstance(left, Value) and not isinstance(right, Value):
            return binary(operator.text, left, right, operator.span)
        if operator.text not in ("+", "-", "*", "/", "@"):
            message = f"'{operator.text}' is decided at compile time and takes no tensors"
            fail("bad-operand", message, operator.span)
        if isinstance(left, Value) and isinstance(right, Value):
            return elementwise(self.emitter, operator.text, left, right, operator.span)
        return self._scaled(operator, left, right)

    def _scaled(self, operator: Name, left: Result, right: Result) -> Value:
        """A tensor times or over a constant, or a constant times a tensor."""
        if isinstance(left, Value) and not isinstance(right, Value) and operator.text in "*/":
            factor = right
            if operator.text == "/":
                factor = binary("/", 1.0, right, operator.span)
            return scale(self.emitter, left, float(numeric(factor, operator.span)), operator.span)
        if isinstance(right, Value) and not isinstance(left, Value) and operator.text == "*":
            return scale(self.emitter, right, float(numeric(left, operator.span)), operator.span)
        fail(
            "bad-operand",
            f"'{operator.text}' cannot join a tensor and a constant this way",
            operator.span,
            help="a tensor can be multiplied by a constant, or divided by one",
        )

    def _builtin(self, call: Call, scope: Scope) -> Result:
        signature = built_in(call.name)
        assert signature is not None  # names have been checked
        bound = bind(call, signature)
        values: dict[str, Result] = {}
        for formal in signature.formals:
            if formal.name in bound:
                values[formal.name] = self._argument(formal, bound[formal.name], scope)
            elif formal.default != "":
                values[formal.name] = formal.default
        applied = Applied(call, values, {name: a.span for name, a in bound.items()})
        if call.name == "sqrt":
            return square_root(applied.constant("number"), call.span)
        if call.name == "append":
            name = f"cache_{scope.caches}{applied.constant('cache')}"
            return append(self.emitter, name, applied.tensor("value"), applied)
        return applied_to(self.emitter, applied)

    def _argument(self, formal: Formal, argument: Argument, scope: Scope) -> Result:
        value = argument.value
        if formal.kind == "dim":
            assert isinstance(value, Reference)
            return scope.dim(Name(value.name, value.span))
        if formal.kind == "cache":
            assert isinstance(value, Reference)
            return value.path[1]
        if formal.kind == "word":
            return self._word(formal, value, scope)
        return self.evaluate(value, scope)

    def _word(self, formal: Formal, value: Expression, scope: Scope) -> str:
        """A bare word, or a constant whose text is one of the words."""
        word = value.name if isinstance(value, Reference) else ""
        if word not in formal.words or word in scope.constants:
            word = str(fold(value, scope.constant))
        found = Diagnostics()
        check_word(word, formal, value.span, found)
        found.raise_errors()
        return word

    def _block(self, call: Call, block: Block, scope: Scope) -> list[Value]:
        """A block's results, its body expanded here."""
        self.emitter.count(call.span)
        signature = signature_of(block)
        bound = bind(without_cache_option(call, signature), signature)
        inner = self._inner_scope(call, block, scope)
        arguments = {name: self.evaluate(a.value, scope) for name, a in bound.items()}
        for formal in block.formals:
            if isinstance(formal, Tensor):
                argument = bound[formal.name]
                self._take_tensor(formal, arguments[formal.name], argument, inner, block)
        for formal in block.formals:
            if isinstance(formal, Parameter):
                self._take_constant(formal, arguments, bound, inner)
        with self._deeper(call.span):
            results = self.run(block, inner)
        return results

    def _inner_scope(self, call: Call, block: Block, scope: Scope) -> Scope:
        """The names a block starts with: the model's constants if it is the model's own."""
        own = block.scope == self.model.scope
        base = self.model_scope(dict(self.extents.parameters) if own else {})
        base.blocks = self.model.visible[block.scope]
        base.heads = list(scope.heads)
        base.caches = scope.caches + _cache_prefix(call)
        called = f"in block '{block.name}', called at {call.span}"
        base.trace = (called, *scope.trace)
        return base

    def _take_tensor(
        self, formal: Tensor, value: Result, argument: Argument, inner: Scope, block: Block
    ) -> None:
        """Bind a tensor argument, and the block's names of its dims."""
        if not isinstance(value, Value):
            message = f"'{formal.name}' of {block.name} is a tensor, not a constant"
            fail("bad-operand", message, argument.span)
        wanted = tuple(d.text for d in formal.dims or ())
        actual = dims_of(value)
        meant = tuple(inner.bound.get(w, a) for w, a in zip(wanted, actual, strict=False))
        if len(wanted) != len(actual) or meant != actual:
            message = f"'{formal.name}' of {block.name} is {show(wanted)}, not {show(actual)}"
            others = [f"{w} is {inner.bound[w]} here" for w in wanted if inner.bound.get(w, w) != w]
            fail("dims-mismatch", message, argument.span, [", ".join(others)] if others else [])
        inner.bind(wanted, actual)
        inner.values[formal.name] = value

    def _take_constant(
        self,
        formal: Parameter,
        arguments: dict[str, Result],
        bound: dict[str, Argument],
        inner: Scope,
    ) -> None:
        if formal.name not in arguments:
            assert formal.default is not None
            inner.constants[formal.name] = fold(formal.default, inner.constant)
            return
        value = arguments[formal.name]
        if isinstance(value, Value):
            message = f"'{formal.name}' is a constant; this is a tensor"
            fail("bad-operand", message, bound[formal.name].span)
        inner.constants[formal.name] = value


def _short_text(span: Span) -> str:
    """What stands at ``span`` if it is short and whole, else dots."""
    text = span.source.line(span.line)[span.column - 1 :][: span.length]
    return text if len(text) <= 24 and text.count("(") == text.count(")") else "..."


def _cache_prefix(call: Call) -> str:
    """``name_`` from ``cache = name`` on the call of a block."""
    for argument in call.arguments:
        if argument.name == CACHE_OPTION:
            if not isinstance(argument.value, Reference) or len(argument.value.path) != 1:
                fail("bad-option", "cache = name takes a bare name", argument.span)
            return f"{argument.value.name}_"
    return ""

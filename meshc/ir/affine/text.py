"""Reads the text of affine objects: one recursive-descent parser, linear in the text.

Grammar (loosest first)::

    map       = "{" (piece (";" piece)* | tuple) "}"     piece = tuple "->" tuple [":" cond]
    piecewise = sum | "{" [sum [":" cond] (";" sum [":" cond])*] "}"
    cond      = and ("or" and)*            and  = not ("and" not)*
    not       = "not" not | comparison     comparison = sum (("="|"!="|"<"|"<="|">"|">=") sum)*
    sum       = ["-"] term (("+"|"-") term)*
    term      = factor (("*" | "mod" | "%" | "//") factor)*
    factor    = int | name | name "(" sum ")" | "floor" "(" ["-"] term "/" int ")" | "(" cond ")"

Everything the printers of this package write is accepted; so are ``%``, ``//``, ``!=``, ``not``,
chained comparisons and parentheses anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

from meshc.ir.affine.cond import Cond
from meshc.ir.affine.expr import MAX_DEPTH, RESERVED, Atom, Expr
from meshc.ir.affine.piecewise import AffineMap, Piecewise
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.shared import shared
from meshc.support.spans import Span

MAX_TEXT = 8192

_TOKEN = re.compile(
    r"\s*(?:(?P<int>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<op>->|//|!=|==|<=|>=|[-+*%/()<>=\[\]{},:;])|(?P<bad>\S))"
)
_COMPARE: dict[str, Callable[[Expr, Expr], Cond]] = {
    "=": Cond.eq,
    "==": Cond.eq,
    "!=": Cond.ne,
    "<": Cond.lt,
    "<=": Cond.le,
    ">": Cond.gt,
    ">=": Cond.ge,
}

_T = TypeVar("_T")


def parse_expr(text: str, span: Span | None = None) -> Expr:
    """Read an expression such as ``2*x + floor(y/3) - 1``.

    ``span`` is where ``text`` begins in a source, for messages. Raises ``bad-affine``.
    """
    return _parsed(text, span, _Parser.sum)


def parse_cond(text: str, span: Span | None = None) -> Cond:
    """Read a condition such as ``x mod 2 = 1 and y >= 3 or x < pos``. Raises ``bad-affine``."""
    return _parsed(text, span, _Parser.cond)


def parse_piecewise(text: str, span: Span | None = None) -> Piecewise:
    """Read ``{ floor(x/2) : x mod 2 = 0; 5 : x mod 2 = 1 }`` or a single expression.

    Raises ``bad-affine``.
    """
    return _parsed(text, span, _Parser.piecewise)


def parse_map(text: str, span: Span | None = None) -> AffineMap:
    """Read a map such as ``{ [y, x] -> [y, x - 1] : x >= 1 }``. Raises ``bad-affine``."""
    return _parsed(text, span, _Parser.map)


def _parsed(text: str, span: Span | None, rule: Callable[[_Parser], _T]) -> _T:
    try:
        return _read(text, rule)
    except MeshcError:
        pass  # it is read again, for the place of what is wrong
    try:
        return _whole(_Parser(text, span), rule)
    except MeshcError as error:
        # Errors of the constructors do not know where the text stands.
        raise MeshcError(
            d if d.span or span is None else replace(d, span=span) for d in error.diagnostics
        ) from None


@shared
def _read(text: str, rule: Callable[[_Parser], _T]) -> _T:
    """What ``text`` says, which a module says in many places, and one behind each pass again."""
    return _whole(_Parser(text, None), rule)


def _whole(parser: _Parser, rule: Callable[[_Parser], _T]) -> _T:
    result = rule(parser)
    parser.expect_end()
    return result


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    offset: int


class _Parser:
    def __init__(self, text: str, span: Span | None) -> None:
        self.text, self.span = text, span
        if len(text) > MAX_TEXT:
            fail(
                "bad-affine",
                f"affine text of {len(text)} characters; {MAX_TEXT} is the limit",
                span,
            )
        self.tokens = self._tokens()
        self.position = 0
        self.nesting = 0

    def _tokens(self) -> list[_Token]:
        tokens = []
        for match in _TOKEN.finditer(self.text):
            kind = match.lastgroup or "bad"
            token = _Token(kind, match.group(kind), match.start(kind))
            if kind == "bad":
                self.error(f"unexpected character '{token.text}'", token)
            tokens.append(token)
        return [*tokens, _Token("end", "", len(self.text.rstrip()))]

    # -- token helpers --------------------------------------------------------------------------
    @property
    def here(self) -> _Token:
        return self.tokens[self.position]

    def take(self, *texts: str) -> str | None:
        """Consume the next token if it is one of ``texts``."""
        token = self.here
        if token.kind in ("op", "name") and token.text in texts:
            self.position += 1
            return token.text
        return None

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.unexpected(f"'{text}'")

    def expect_end(self) -> None:
        if self.here.kind != "end":
            self.unexpected("the end")

    def unexpected(self, wanted: str) -> NoReturn:
        found = f"'{self.here.text}'" if self.here.text else "the end"
        self.error(f"expected {wanted} but found {found}", self.here)

    def error(self, message: str, token: _Token, help: str | None = None) -> NoReturn:
        notes = [] if self.span else [f"in '{_shortened(self.text)}'"]
        place = self.place(token.offset, len(token.text))
        fail("bad-affine", f"affine text: {message}", place, notes, help)

    def place(self, offset: int, length: int) -> Span | None:
        if self.span is None:
            return None
        before = self.text[:offset].split("\n")
        column = len(before[-1]) + (self.span.column if len(before) == 1 else 1)
        return Span(self.span.source, self.span.line + len(before) - 1, column, max(1, length))

    # -- rules ----------------------------------------------------------------------------------
    def cond(self) -> Cond:
        return self.as_cond(self.either(), self.here)

    def sum(self) -> Expr:
        start = self.here
        return self.as_expr(self.linear(), start)

    def as_cond(self, value: Expr | Cond, token: _Token) -> Cond:
        if isinstance(value, Expr):
            self.unexpected("a comparison")
        return value

    def as_expr(self, value: Expr | Cond, token: _Token) -> Expr:
        if isinstance(value, Cond):
            self.error("a number is needed where a condition stands", token)
        return value

    def either(self) -> Expr | Cond:
        value = self.both()
        if self.here.text != "or":
            return value
        parts = [self.as_cond(value, self.here)]
        while self.take("or"):
            parts.append(self.as_cond(self.both(), self.here))
        return Cond.any(parts)

    def both(self) -> Expr | Cond:
        value = self.maybe_not()
        if self.here.text != "and":
            return value
        parts = [self.as_cond(value, self.here)]
        while self.take("and"):
            parts.append(self.as_cond(self.maybe_not(), self.here))
        return Cond.all(parts)

    def maybe_not(self) -> Expr | Cond:
        negations = 0
        while self.take("not"):
            negations += 1
        value = self.comparison()
        if not negations:
            return value
        cond = self.as_cond(value, self.here)
        return ~cond if negations % 2 else cond

    def comparison(self) -> Expr | Cond:
        start = self.here
        left = self.linear()
        if self.here.text not in _COMPARE:
            return left
        parts: list[Cond] = []
        side = self.as_expr(left, start)
        while operator := self.take(*_COMPARE):
            right = self.sum()
            parts.append(_COMPARE[operator](side, right))
            side = right
        return Cond.all(parts)

    def linear(self) -> Expr | Cond:
        start = self.here
        sign = -1 if self.take("-") else 1
        value = self.product()
        if sign > 0 and self.here.text not in ("+", "-"):
            return value
        first = self.as_expr(value, start)
        terms: list[tuple[Atom, int]] = [(a, sign * c) for a, c in first.terms]
        constant = sign * first.constant
        while operator := self.take("+", "-"):
            sign, start = (1 if operator == "+" else -1), self.here
            operand = self.as_expr(self.product(), start)
            terms += [(a, sign * c) for a, c in operand.terms]
            constant += sign * operand.constant
        return Expr.sum(terms, constant)

    def product(self) -> Expr | Cond:
        start = self.here
        value = self.factor()
        while operator := self.take("*", "mod", "%", "//"):
            left, at = self.as_expr(value, start), self.here
            right = self.as_expr(self.factor(), at)
            value = self.combined(left, operator, right, at)
        return value

    def combined(self, left: Expr, operator: str, right: Expr, at: _Token) -> Expr:
        if operator == "*":
            if not (left.is_const or right.is_const):
                self.error("a product needs an integer on one side", at)
            return left * right.constant if right.is_const else right * left.constant
        if not right.is_const or right.constant <= 0:
            self.error(f"'{operator}' needs a positive integer on its right", at)
        return left // right.constant if operator == "//" else left % right.constant

    def factor(self) -> Expr | Cond:
        token = self.here
        if token.kind == "int":
            self.position += 1
            return Expr.const(self.integer(token))
        if self.take("("):
            value = self.nested(self.either)
            self.expect(")")
            return value
        if token.kind == "name":
            return self.named(token)
        self.unexpected("a number, a name or '('")

    def named(self, token: _Token) -> Expr | Cond:
        self.position += 1
        if token.text in ("true", "false"):
            return Cond.true() if token.text == "true" else Cond.false()
        if token.text == "floor":
            return self.nested(self.floor)
        if token.text in RESERVED:
            self.position -= 1
            self.unexpected("a number, a name or '('")
        if token.text != token.text.lower():
            self.error(f"'{token.text}' has upper-case letters", token, "names are lower-case")
        if self.take("("):
            argument = self.nested(self.sum)
            self.expect(")")
            return Expr.call(token.text, argument)
        return Expr.var(token.text)

    def floor(self) -> Expr:
        self.expect("(")
        start = self.here
        sign = -1 if self.take("-") else 1
        numerator = self.as_expr(self.product(), start) * sign
        if not self.take("/"):
            self.error(
                "floor needs one numerator and a '/'",
                self.here,
                "put a sum in parentheses: floor((x + 1)/2)",
            )
        divisor = self.here
        if divisor.kind != "int" or self.integer(divisor) == 0:
            self.unexpected("a positive integer")
        self.position += 1
        self.expect(")")
        return numerator // self.integer(divisor)

    def nested(self, rule: Callable[[], _T]) -> _T:
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            self.error(f"parentheses nest deeper than {MAX_DEPTH}", self.here)
        result = rule()
        self.nesting -= 1
        return result

    def integer(self, token: _Token) -> int:
        if len(token.text) > 15:
            self.error("integer too large", token, "affine integers have at most 15 digits")
        return int(token.text)

    def guarded(self) -> Cond:
        return self.cond() if self.take(":") else Cond.true()

    def piecewise(self) -> Piecewise:
        if not self.take("{"):
            return Piecewise.single(self.sum())
        pieces: list[tuple[Cond, Expr]] = []
        while not (self.take("}") and not pieces):
            value = self.sum()
            pieces.append((self.guarded(), value))
            if not self.take(";"):
                self.expect("}")
                break
        return Piecewise.of(pieces)

    def map(self) -> AffineMap:
        self.expect("{")
        inputs = self.input_names()
        pieces: list[tuple[list[Expr], Cond]] = []
        while self.take("->"):
            outputs = self.items(self.sum)
            pieces.append((outputs, self.guarded()))
            if not self.take(";"):
                break
            at = self.here
            if self.input_names() != inputs:
                self.error("every piece of a map repeats the same input names", at)
        self.expect("}")
        return AffineMap.of(inputs, pieces)

    def input_names(self) -> list[str]:
        names: list[str] = []
        for value, token in self.items(lambda: (self.sum(), self.here)):
            if len(value.free_vars) != 1 or value != Expr.var(min(value.free_vars)):
                self.error("the inputs of a map are names", token)
            names += value.free_vars
        return names

    def items(self, rule: Callable[[], _T]) -> list[_T]:
        """``[ rule, rule, ... ]``, possibly empty."""
        self.expect("[")
        found: list[_T] = []
        while not (self.take("]") and not found):
            found.append(rule())
            if not self.take(","):
                self.expect("]")
                break
        return found


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."

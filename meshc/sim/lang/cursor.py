"""A token stream with look-ahead and errors, the base of the parser."""

from __future__ import annotations

from typing import NoReturn

from meshc.sim.lang.lexer import LineMap, Token, tokenize
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source, Span


class SyntaxProblem(Exception):
    """Unwinds to the point where parsing can go on; already reported."""


class Cursor:
    """The tokens of one source and a position among them."""

    def __init__(self, source: Source, diagnostics: Diagnostics) -> None:
        self.lines = LineMap(source)
        self.diagnostics = diagnostics
        self.tokens = tokenize(source, self.lines, diagnostics)
        self.at = 0
        self.kind = self.tokens[0].kind

    def peek(self, ahead: int = 1) -> str:
        """The kind of a token ahead of the current one."""
        index = self.at + ahead
        return self.tokens[index].kind if index < len(self.tokens) else "eof"

    def advance(self) -> Token:
        """The current token; moves on unless at the end."""
        token = self.tokens[self.at]
        if token.kind != "eof":
            self.at += 1
            self.kind = self.tokens[self.at].kind
        return token

    def seek(self, position: int) -> None:
        """Go back to a token seen before."""
        self.at = position
        self.kind = self.tokens[position].kind

    def at_kind(self, kind: str) -> bool:
        """Whether the current token is ``kind``."""
        return self.kind == kind

    def accept(self, kind: str) -> bool:
        """Skip the current token when it is ``kind``."""
        if self.kind != kind:
            return False
        self.advance()
        return True

    def expect(self, kind: str, what: str = "") -> Token:
        """The current token, which must be ``kind``; otherwise an error is reported."""
        if self.kind != kind:
            self.problem(f"expected {what or repr(kind)}, found {self.found()}")
        return self.advance()

    def found(self) -> str:
        """The current token in words."""
        token = self.tokens[self.at]
        return "the end of the file" if token.kind == "eof" else f"'{token.text}'"

    def span(self) -> Span:
        """The place of the current token."""
        token = self.tokens[self.at]
        return self.lines.span(token.offset, len(token.text))

    def problem(self, message: str, code: str = "csl-syntax") -> NoReturn:
        """Report a syntax error at the current token and unwind."""
        self.diagnostics.error(code, message, self.span())
        raise SyntaxProblem

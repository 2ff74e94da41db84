"""Tokens of ``.meshir`` text, and the attribute values that are written with them.

One compiled pattern finds them: dumps of large models are read back in a fraction of a second, and
each mistake has its place. Nesting is bounded.
"""

from __future__ import annotations

import re
from typing import NoReturn

from meshc.ir.attributes import Raw, unquoted
from meshc.support.diagnostics import fail
from meshc.support.spans import Source, Span

_MAX_DEPTH = 24

_TOKEN = re.compile(
    r"(?P<space>(?:\s+|\#[^\n]*)+)"
    r"|(?P<value>%[A-Za-z0-9_.]+)"
    r"|(?P<symbol>@[A-Za-z0-9_.\-]+)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<number>-?(?:\d+\.(?!\.)\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf\b))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<layout><(?:>>|[^<>\n])*>)"
    r"|(?P<punct>->|\+:|\.\.|[{}()\[\]=,:])"
)
_BRACKET = re.compile(r"\[([^\[\]\n]*)\]")


class Tokens:
    """The text from one token on; ``fail`` with ``bad-meshir`` and its place for what is wrong."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.at = 0
        self.kind = ""
        self.token = ""
        self.start = 0
        self.depth = 0
        self._line, self._line_start, self._line_end = 0, 0, -1
        self.advance()

    def advance(self) -> str:
        """Move to the next token; returns the text of the one left behind."""
        left = self.token
        while True:
            if self.at >= len(self.text):
                self.kind, self.token, self.start = "end", "", len(self.text)
                return left
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                self.start = self.at
                self.wrong(f"unexpected character {self.text[self.at]!r}")
            self.start, self.at = match.start(), match.end()
            if match.lastgroup != "space":
                self.kind, self.token = str(match.lastgroup), match.group()
                return left

    def span(self) -> Span:
        """The place of the current token."""
        while self._line_end < self.start:  # the line that is known ends in front of it
            self._line, self._line_start = self._line + 1, self._line_end + 1
            end = self.text.find("\n", self._line_start)
            self._line_end = end if end >= 0 else len(self.text)
        column = self.start - self._line_start + 1
        return Span(self.source, self._line, column, max(1, len(self.token)))

    def wrong(self, message: str) -> NoReturn:
        """Fail at the current token."""
        fail("bad-meshir", message, self.span())

    def expect(self, text: str) -> None:
        """Move past ``text``, which must come."""
        if self.token != text or self.kind == "string":
            self.wrong(f"expected '{text}', found {shown(self.token)}")
        self.advance()

    def take(self, text: str) -> bool:
        """Move past ``text`` if it comes."""
        if self.token == text and self.kind != "string":
            self.advance()
            return True
        return False

    def of(self, kind: str, wanted: str) -> str:
        """Move past a token of ``kind``, which must come."""
        if self.kind != kind:
            self.wrong(f"expected {wanted}, found {shown(self.token)}")
        return self.advance()

    def name(self) -> str:
        """Move past a name."""
        return self.of("name", "a name")

    def symbol(self) -> str:
        """Move past an @name, given without its sign."""
        return self.of("symbol", "an @name")[1:]

    def integer(self) -> int:
        """Move past an integer."""
        text = self.of("number", "an integer")
        if not re.fullmatch(r"-?\d{1,18}", text):
            self.wrong("expected an integer")
        return int(text)

    def names_until(self, close: str) -> list[str]:
        """Names with commas between them up to and with ``close``."""
        found = []
        while not self.take(close):
            found.append(self.name())
            if self.token != close:
                self.expect(",")
        return found

    # --- attribute values

    def pairs(self) -> dict[str, Raw]:
        """Attributes, at least one."""
        found: dict[str, Raw] = {}
        while True:
            name = self.name()
            self.expect("=")
            found[name] = self.raw()
            if not self.take(","):
                return found

    def braced(self) -> dict[str, Raw]:
        """Attributes in braces, or none."""
        if not self.take("{"):
            return {}
        found = self.pairs()
        self.expect("}")
        return found

    def facts(self, *known: str) -> dict[str, Raw]:
        """Attributes in braces, all of them ``known``."""
        span = self.span()
        found = self.braced()
        for name in sorted(found.keys() - set(known)):
            fail("bad-meshir", f"no attribute '{name}' here; there are {', '.join(known)}", span)
        return found

    def raw(self) -> Raw:
        """The value of an attribute."""
        if self.kind == "string":
            return unquoted(self.advance())
        if self.kind == "number":
            text = self.advance()
            if re.fullmatch(r"-?\d+", text):
                if len(text) > 30:
                    self.wrong("this number is too long")
                return int(text)
            return float(text)
        if self.take("["):
            self.enter()
            items: list[Raw] = []
            while not self.take("]"):
                items.append(self.raw())
                if self.token != "]":
                    self.expect(",")
            self.depth -= 1
            return items
        word = self.name()
        return {"true": True, "false": False}.get(word, word)

    def enter(self) -> None:
        """One level deeper; who calls it counts down again."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.wrong("nested too deeply")

    def as_int(self, raw: Raw, span: Span) -> int:
        """A value that must be an integer."""
        if not isinstance(raw, int) or isinstance(raw, bool):
            fail("bad-meshir", "expected an integer here", span)
        return raw

    def as_bool(self, raw: Raw, span: Span) -> bool:
        """A value that must be true or false."""
        if not isinstance(raw, bool):
            fail("bad-meshir", "expected true or false here", span)
        return raw

    def as_scalar(self, raw: Raw, span: Span) -> int | float | bool | str:
        """A value that must not be a list."""
        if isinstance(raw, list):
            fail("bad-meshir", "expected a single value here, not a list", span)
        return raw

    def texts(self, raw: Raw, span: Span) -> list[str]:
        """A value that must be a list, as texts."""
        if not isinstance(raw, list):
            fail("bad-meshir", "expected a list", span)
        return [str(item) for item in raw]

    # --- lists that are read as text

    def raw_list(self) -> list[str]:
        """The bracketed texts after the current word."""
        gap = re.compile(r"\s*").match(self.text, self.at)
        self.at = gap.end() if gap else self.at
        parts = self.bracket()
        self.advance()
        return parts

    def bracket(self) -> list[str]:
        """The texts of a bracket that starts behind the current token."""
        match = _BRACKET.match(self.text, self.at)
        if match is None:
            self.wrong("expected a list in brackets")
        self.at = match.end()
        return [p.strip() for p in match[1].split(",")] if match[1].strip() else []


def shown(token: str) -> str:
    """A token as messages name it."""
    return f"'{token}'" if token else "the end of the text"

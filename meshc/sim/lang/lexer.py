"""The lexer: CSL text to tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source, Span

KEYWORDS = frozenset(
    [
        "align",
        "and",
        "anytype",
        "break",
        "comptime",
        "const",
        "continue",
        "else",
        "enum",
        "export",
        "extern",
        "false",
        "fn",
        "for",
        "if",
        "inline",
        "layout",
        "linkname",
        "linksection",
        "noinline",
        "or",
        "packed",
        "param",
        "return",
        "struct",
        "switch",
        "task",
        "true",
        "union",
        "var",
        "void_",
        "while",
    ]
)

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+|//[^\n]*)
  | (?P<float>0[xX][0-9a-fA-F_]*\.[0-9a-fA-F_]*(?:[pP][+-]?\d+)?
        | \d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)? | \d[\d_]*[eE][+-]?\d+ | \d[\d_]*\.(?![\w.]))
  | (?P<int>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|\d[\d_]*)
  | (?P<builtin>@[A-Za-z_]\w*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<char>'(?:[^'\\\n]|\\x[0-9a-fA-F]{2}|\\.)')
  | (?P<op><<=|>>=|\.\.\.|=>|->|==|!=|<=|>=|<<|>>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|\.\*|\.\.|\+\+
        |[-+*/%&|^~!<>=.,;:(){}\[\]?])
    """,
    re.VERBOSE,
)

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


@dataclass(slots=True)
class Token:
    """``kind`` is int, float, string, char, builtin, name, or the text of a keyword or operator."""

    kind: str
    text: str
    offset: int


class LineMap:
    """Turns offsets of one source into spans."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._starts = [0] + [m.end() for m in re.finditer("\n", source.text)]

    def span(self, offset: int, length: int = 1) -> Span:
        """The span of ``length`` characters at ``offset``."""
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            if self._starts[middle] <= offset:
                low = middle
            else:
                high = middle
        return Span(self.source, low + 1, offset - self._starts[low] + 1, max(1, length))


def tokenize(source: Source, lines: LineMap, diagnostics: Diagnostics) -> list[Token]:
    """All tokens of ``source``, ending in one of kind ``eof``; bad characters are reported."""
    text, position, tokens = source.text, 0, list[Token]()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            diagnostics.error(
                "csl-syntax", f"unexpected character '{text[position]}'", lines.span(position)
            )
            position += 1
            continue
        kind = match.lastgroup or ""
        if kind != "space":
            word = match.group()
            if kind == "op" or (kind == "name" and word in KEYWORDS):
                kind = word
            tokens.append(Token(kind, word, position))
        position = match.end()
    tokens.append(Token("eof", "", len(text)))
    return tokens


def unescape(literal: str) -> str:
    """The text a string or character literal stands for; see :func:`text_bytes`."""
    return re.sub(
        r"\\(x[0-9a-fA-F]{2}|.)",
        lambda m: byte_text(int(m[1][1:], 16)) if len(m[1]) == 3 else _ESCAPES.get(m[1], m[1]),
        literal[1:-1],
    )


def byte_text(byte: int) -> str:
    """A string of one byte."""
    return bytes([byte]).decode("utf-8", "surrogateescape")


def text_bytes(text: str) -> bytes:
    """The bytes of a CSL string: UTF-8, with bytes that are no character as surrogates."""
    return text.encode("utf-8", "surrogateescape")

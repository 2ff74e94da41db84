"""Parsing with a grammar file; the only user of lark.

A :class:`Grammar` turns text into a tree of :class:`Node` and :class:`Leaf`, each with its span, so
that nobody else sees lark's types. Whatever is wrong with the text is a diagnosed error that says
what was expected in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from types import MappingProxyType
from typing import NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from meshc.support.diagnostics import fail
from meshc.support.spans import Source, Span

_SHOWN_ALTERNATIVES = 8
_TEXTS = 32
"""How many texts are remembered: the phases of a model begin with the same one."""
_REMEMBERED_CHARACTERS = 48 * 1024
"""Longer texts are not, since their trees would take much memory."""
_CLOSERS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class Leaf:
    """A token: its terminal's name, its text and where it stands."""

    kind: str
    text: str
    span: Span


@dataclass(frozen=True)
class Node:
    """A rule with its parts, None for an optional part that is absent.

    ``span`` runs from the first token to the last, or to the end of the first token's line.
    """

    rule: str
    children: tuple[Node | Leaf | None, ...]
    span: Span

    def leaf(self, index: int) -> Leaf:
        """The token at ``index``."""
        found = self.children[index]
        assert isinstance(found, Leaf)
        return found

    def node(self, index: int) -> Node:
        """The subtree at ``index``."""
        found = self.children[index]
        assert isinstance(found, Node)
        return found

    def maybe(self, index: int) -> Node | None:
        """The optional subtree at ``index``."""
        return None if self.children[index] is None else self.node(index)

    def nodes(self) -> tuple[Node, ...]:
        """The children that are subtrees."""
        return tuple(c for c in self.children if isinstance(c, Node))

    def leaves(self) -> tuple[Leaf, ...]:
        """The children that are tokens."""
        return tuple(c for c in self.children if isinstance(c, Leaf))


@dataclass(frozen=True)
class Grammar:
    """One language: where its grammar lies and how messages about it are worded.

    ``words`` names terminals in messages (``{"NAME": "a name"}``); ``hints`` gives a help line for
    an unexpected text (``{";": "a line end is enough"}``). ``code`` is the code of a syntax error;
    the texts ``too_large_code`` and ``nesting_code`` are those of the two limits. Comments run from
    ``comment`` to the line end and strings are double-quoted.
    """

    package: str
    file: str
    code: str
    too_large_code: str
    nesting_code: str
    words: Mapping[str, str]
    hints: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    max_characters: int = 48 * 1024
    max_depth: int = 32
    comment: str = "#"

    def parse(self, source: Source) -> Node:
        """The tree of ``source``; raises MeshcError for anything that is not of the language."""
        self._check_size(source)
        self._check_depth(source)
        try:
            if len(source.text) > _REMEMBERED_CHARACTERS:
                return _tree_of(self.package, self.file, source)
            return _remembered(self.package, self.file, source)
        except UnexpectedInput as error:
            self._explain(source, error)

    def _check_size(self, source: Source) -> None:
        if len(source.text) > self.max_characters:
            fail(
                self.too_large_code,
                f"the text has {len(source.text)} characters, more than {self.max_characters}",
                Span(source, 1, 1),
            )

    def _check_depth(self, source: Source) -> None:
        depth = 0
        for match in _brackets(self.comment).finditer(source.text):
            if match[0] in "([{":
                depth += 1
            elif match[0] in _CLOSERS:
                depth = max(0, depth - 1)
            if depth > self.max_depth:
                fail(
                    self.nesting_code,
                    f"brackets are nested more than {self.max_depth} deep",
                    _span_at(source, match.start()),
                    help="give the inner parts names of their own",
                )

    def _explain(self, source: Source, error: UnexpectedInput) -> NoReturn:
        """Raise the diagnosed form of a lark error."""
        span, found, hint = _place(source, error)
        notes = _brackets_left_open(source, span, self.comment)
        expected = self._expected(error)
        if expected:
            notes.insert(0, f"expected {expected}")
        fail(self.code, f"unexpected {found}", span, notes, self.hints.get(hint))

    def _expected(self, error: UnexpectedInput) -> str:
        names = _accepted(error)
        shown = sorted({self._word(name) for name in names})
        if len(shown) > _SHOWN_ALTERNATIVES:
            shown = [*shown[:_SHOWN_ALTERNATIVES], "..."]
        return " or ".join(shown) if len(shown) < 3 else ", ".join(shown[:-1]) + f" or {shown[-1]}"

    def _word(self, terminal: str) -> str:
        if terminal in self.words:
            return self.words[terminal]
        if terminal == "$END":
            return "the end of the text"
        return f"'{_lark(self.package, self.file).get_terminal(terminal).pattern.value}'"


@cache
def _lark(package: str, file: str) -> Lark:
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    return Lark(
        text, parser="lalr", lexer="basic", propagate_positions=True, maybe_placeholders=True
    )


def _tree_of(package: str, file: str, source: Source) -> Node:
    return _neutral(_lark(package, file).parse(source.text), source)


_remembered = lru_cache(_TEXTS)(_tree_of)


def _neutral(tree: Tree[Token], source: Source) -> Node:
    """The lark tree as nodes, built bottom-up without recursion."""
    done: dict[int, Node] = {}
    for subtree in tree.iter_subtrees():
        children = tuple(
            done[id(c)] if isinstance(c, Tree) else None if c is None else _leaf(c, source)
            for c in subtree.children
        )
        done[id(subtree)] = Node(str(subtree.data), children, _tree_span(subtree, source))
    return done[id(tree)]


def _leaf(token: Token, source: Source) -> Leaf:
    return Leaf(token.type, str(token), _token_span(token, source))


def _token_span(token: Token, source: Source) -> Span:
    return Span(source, token.line or 1, token.column or 1, max(1, len(token)))


def _tree_span(tree: Tree[Token], source: Source) -> Span:
    meta = tree.meta
    if meta.empty:
        return Span(source, 1, 1)
    if meta.line == meta.end_line:
        return Span(source, meta.line, meta.column, max(1, meta.end_column - meta.column))
    end = source.text.find("\n", meta.start_pos)
    stretch = source.text[meta.start_pos : end].split("#")[0].rstrip()
    return Span(source, meta.line, meta.column, max(1, len(stretch)))


def _place(source: Source, error: UnexpectedInput) -> tuple[Span, str, str]:
    """Where the error is, what stands there in words, and the key of its hint."""
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        text = str(error.token)
        shown = text if len(text) <= 40 else text[:37] + "..."
        return _token_span(error.token, source), f"'{shown}'", text
    if isinstance(error, UnexpectedCharacters):
        character = source.text[error.pos_in_stream]
        return Span(source, error.line, error.column), f"character '{character}'", character
    end = len(source.text.rstrip())
    return _span_at(source, end), "end of the text", ""


def _accepted(error: UnexpectedInput) -> Iterable[str]:
    """Names of the terminals that could have stood at the error."""
    if isinstance(error, UnexpectedToken):
        return error.accepts or error.expected or ()
    return ()


def _span_at(source: Source, offset: int) -> Span:
    start = source.text.rfind("\n", 0, offset) + 1
    return Span(source, source.text.count("\n", 0, offset) + 1, offset - start + 1)


@cache
def _brackets(comment: str) -> re.Pattern[str]:
    """Brackets, and what may hold some that are none."""
    return re.compile(rf'{re.escape(comment)}[^\n]*|"(?:\\.|[^"\\\n])*"?|[()\[\]{{}}]')


def _brackets_left_open(source: Source, span: Span, comment: str) -> list[str]:
    """A note on the innermost bracket still open at ``span``, if it stands on an earlier line."""
    open_at: list[int] = []
    line_start = sum(len(line) + 1 for line in source.text.split("\n")[: span.line - 1])
    for match in _brackets(comment).finditer(source.text, 0, line_start + span.column - 1):
        if match[0] in "([{":
            open_at.append(match.start())
        elif match[0] in _CLOSERS and open_at:
            open_at.pop()
    if not open_at or open_at[-1] >= line_start:
        return []
    where = _span_at(source, open_at[-1])
    return [f"'{source.text[open_at[-1]]}' of line {where.line} is still open"]

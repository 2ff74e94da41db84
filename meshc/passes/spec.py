"""Spec text of pipelines: ``canonicalize,partition{grid=4x4}`` to names and option texts and back.

Grammar: ``spec,spec,...`` where a spec is a kebab-case name and maybe ``{option=value,...}``;
a value is a word, a quoted string, or ``[value,...]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import NoReturn, TypeVar, get_type_hints

from meshc.passes.base import OptionValue, Pass, option_name
from meshc.support.diagnostics import fail
from meshc.support.shared import shared
from meshc.support.spans import Source, Span

_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z0-9_.][A-Za-z0-9_.+-]*|-[0-9][0-9.e+-]*)'
    r"|(?P<punct>[{}\[\],=]))"
)
_MAX_TEXT = 100_000

RawOption = str | tuple[str, ...]
P = TypeVar("P", bound=Pass)


@dataclass(frozen=True)
class PassSpec:
    """One pass as it was typed: its name, its options as text, and where it stands."""

    name: str
    options: tuple[tuple[str, RawOption], ...]
    span: Span


def parse_specs(text: str, source_name: str = "--passes") -> list[PassSpec]:
    """The specs that ``text`` spells; an empty text is no pass. Fails with ``bad-pipeline``."""
    return _Parser(Source(source_name, text)).pipeline()


def make_pass(cls: type[P], spec: PassSpec) -> P:
    """An instance of ``cls`` with the options of ``spec``; fails with ``bad-pass-option``."""
    kinds = _options_of(cls)
    values: dict[str, OptionValue] = {}
    for name, raw in spec.options:
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            fail(
                "bad-pass-option",
                f"{spec.name} has no option '{name}'",
                spec.span,
                help=f"its options: {known}",
            )
        field_name, kind = kinds[name]
        if field_name in values:
            words = f"{spec.name} has the option '{name}' twice, and one value would count"
            fail("bad-pass-option", words, spec.span)
        values[field_name] = _decoded(spec, name, raw, kind)
    return cls(**values)


@shared
def _options_of(cls: type[Pass]) -> Mapping[str, tuple[str, object]]:
    """The options of a pass: of each by its name the field that it sets, and the field's type."""
    hints = get_type_hints(cls)
    kinds = {option_name(f.name): (f.name, hints[f.name]) for f in fields(cls)}
    return MappingProxyType(kinds)


def _decoded(spec: PassSpec, name: str, raw: RawOption, kind: object) -> OptionValue:
    """``raw`` as a value of the option's declared type."""
    if kind == tuple[str, ...]:
        return raw if isinstance(raw, tuple) else (raw,)
    if isinstance(raw, str):
        if kind is str:
            return raw
        if kind is bool and raw in ("true", "false"):
            return raw == "true"
        if kind is int and re.fullmatch(r"-?\d{1,18}", raw):
            return int(raw)
        if kind is float and re.fullmatch(r"-?\d{1,18}(\.\d{0,18})?(e[+-]?\d{1,3})?", raw):
            return float(raw)
    words: Mapping[object, str] = {bool: "true or false", int: "an integer", float: "a number"}
    fail(
        "bad-pass-option",
        f"option '{name}' of {spec.name} takes {words.get(kind, 'a single value')}",
        spec.span,
    )


class _Parser:
    """Descent over the tokens of one pipeline text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        if len(source.text) > _MAX_TEXT:
            fail("bad-pipeline", "the pipeline text is too long")

    def pipeline(self) -> list[PassSpec]:
        specs: list[PassSpec] = []
        while self.peek():
            specs.append(self.spec())
            if not self.peek():
                break
            self.expect(",")
        return specs

    def spec(self) -> PassSpec:
        self.skip_space()
        start = self.at
        name = self.word("the name of a pass")
        span = Span(self.source, *self.place(start), len(name))
        options: list[tuple[str, RawOption]] = []
        if self.peek() == "{":
            self.expect("{")
            while self.peek() != "}":
                option = self.word("an option")
                self.expect("=")
                options.append((option, self.value()))
                if self.peek() != "}":
                    self.expect(",")
            self.expect("}")
        return PassSpec(name, tuple(options), span)

    def value(self) -> RawOption:
        if self.peek() != "[":
            return self.word("a value")
        self.expect("[")
        items: list[str] = []
        while self.peek() != "]":
            items.append(self.word("a value"))
            if self.peek() != "]":
                self.expect(",")
        self.expect("]")
        return tuple(items)

    def word(self, wanted: str) -> str:
        match = _TOKEN.match(self.source.text, self.at)
        if match is None or match["punct"]:
            self.wrong(f"expected {wanted}")
        self.at = match.end()
        if match["string"]:
            return self.unquoted(match["string"])
        return match["word"]

    def unquoted(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError:
            self.wrong("this string cannot be read")

    def peek(self) -> str:
        """The next token's text; empty at the end."""
        match = _TOKEN.match(self.source.text, self.at)
        if match is None:
            self.skip_space()
            if self.at < len(self.source.text):
                self.wrong(f"unexpected {self.source.text[self.at]!r}")
            return ""
        return match[match.lastgroup or 0]

    def expect(self, text: str) -> None:
        if self.peek() != text:
            self.wrong(f"expected '{text}'")
        match = _TOKEN.match(self.source.text, self.at)
        assert match is not None
        self.at = match.end()

    def skip_space(self) -> None:
        while self.at < len(self.source.text) and self.source.text[self.at].isspace():
            self.at += 1

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of the offset ``at``, both from 1."""
        before = self.source.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1

    def wrong(self, message: str) -> NoReturn:
        self.skip_space()
        fail(
            "bad-pipeline",
            message,
            Span(self.source, *self.place(self.at)),
            help="write passes as name,name{option=value}",
        )

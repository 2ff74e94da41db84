"""JSON objects from untrusted files: bounded, strict, and with the place of every key.

Stricter than the standard library: a key may not be given twice, numbers are finite, nesting is
limited, and the top level is an object.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

from meshc.frontend.checkpoints.bounded_files import read_bounded
from meshc.support.diagnostics import fail
from meshc.support.spans import Source, Span

MAX_DEPTH = 64

_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:]', re.DOTALL)


class _Key(NamedTuple):
    """A key in the text: its path, the offset of its object, its own offset and length."""

    path: tuple[str, ...]
    owner: int
    start: int
    length: int


@dataclass(frozen=True)
class JsonText:
    """A parsed object together with its text."""

    source: Source
    value: dict[str, object]

    def span(self, *path: str) -> Span | None:
        """Where the key at ``path`` stands, quotes included; None when it is not in the text."""
        key = self._places.get(path)
        return None if key is None else _span_at(self.source, key.start, key.length)

    @cached_property
    def _places(self) -> dict[tuple[str, ...], _Key]:
        places: dict[tuple[str, ...], _Key] = {}
        for key in _keys(self.source.text):
            places.setdefault(key.path, key)
        return places


def read_json_object(path: Path, limit_bytes: int, what: str) -> JsonText:
    """The JSON object in the file ``path``.

    Errors: ``checkpoint-unreadable``, ``json-invalid``.
    """
    return parse_json_object(read_bounded(path, limit_bytes, what), str(path))


def parse_json_object(raw: bytes, name: str) -> JsonText:
    """The JSON object in ``raw``; ``name`` is shown in messages. Errors: ``json-invalid``."""
    source = Source(name, _decode(raw, name))
    _check_depth(source)
    try:
        value = json.loads(
            source.text,
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        _invalid(source, error.msg, Span(source, error.lineno, error.colno))
    except _DuplicateKeyError as error:
        _invalid(source, f"key '{error.key}' is given twice", _second_span(source, error.key))
    except (ValueError, RecursionError) as error:
        _invalid(source, str(error), None)
    if not isinstance(value, dict):
        _invalid(source, "the top level is not an object", Span(source, 1, 1))
    return JsonText(source, value)


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


def _invalid(source: Source, reason: str, span: Span | None) -> NoReturn:
    message = f"'{source.name}' is not valid JSON: {reason}"
    fail("json-invalid", message, span, help="write the file again, or get it again")


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source = Source(name, raw.decode("utf-8", errors="replace"))
        # Every invalid byte became one character or part of one; the line is exact.
        line = raw[: error.start].count(b"\n") + 1
        before = raw[: error.start].rpartition(b"\n")[2].decode("utf-8", errors="replace")
        _invalid(source, f"byte {error.start} is not UTF-8", Span(source, line, len(before) + 1))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return table


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"'{text}' is not a JSON number")


def _check_depth(source: Source) -> None:
    depth = 0
    for token in _STRUCTURE.finditer(source.text):
        kind = token.group()[0]
        if kind in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                span = _span_at(source, token.start(), 1)
                _invalid(source, f"nested deeper than {MAX_DEPTH} levels", span)
        elif kind in "}]":
            depth -= 1


def _keys(text: str) -> Iterator[_Key]:
    """Every key of every object in text order; list elements add no step to a path."""
    frames: list[tuple[int, str | None]] = []
    word: re.Match[str] | None = None
    for token in _STRUCTURE.finditer(text):
        kind = token.group()[0]
        if kind == '"':
            word = token
        elif kind in "{[":
            frames.append((token.start(), None))
        elif kind in "}]" and frames:
            frames.pop()
        elif kind == ":" and frames and word is not None:
            owner = frames[-1][0]
            frames[-1] = (owner, json.loads(word.group(), strict=False))
            path = tuple(name for _, name in frames if name is not None)
            yield _Key(path, owner, word.start(), len(word.group()))


def _second_span(source: Source, name: str) -> Span | None:
    owners: set[int] = set()
    for key in _keys(source.text):
        if key.path[-1] == name:
            if key.owner in owners:
                return _span_at(source, key.start, key.length)
            owners.add(key.owner)
    return None


def _span_at(source: Source, offset: int, length: int) -> Span:
    line_start = source.text.rfind("\n", 0, offset) + 1
    line = source.text.count("\n", 0, line_start) + 1
    return Span(source, line, offset - line_start + 1, length)

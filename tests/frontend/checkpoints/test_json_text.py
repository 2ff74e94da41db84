"""JSON from untrusted files: places of keys, strictness, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_files import diagnosed

from meshc.frontend.checkpoints.json_text import MAX_DEPTH, parse_json_object, read_json_object
from meshc.support.spans import Span


def _place(span: Span | None) -> tuple[int, int, int]:
    assert span is not None
    return span.line, span.column, span.length


def test_span_of_keys_at_each_level() -> None:
    text = parse_json_object(b'{\n  "a": 1,\n  "b": {"a": [1, {"c\\"d": 2}]}\n}', "x.json")
    assert text.value == {"a": 1, "b": {"a": [1, {'c"d': 2}]}}
    assert _place(text.span("a")) == (2, 3, 3)
    assert _place(text.span("b", "a")) == (3, 9, 3)
    assert _place(text.span("b", "a", 'c"d')) == (3, 19, 6)
    assert text.span("c") is None


def test_strings_with_braces_and_colons_are_not_structure() -> None:
    text = parse_json_object(b'{"a": "{[:\\"", "b": 1}', "x.json")
    assert _place(text.span("b")) == (1, 16, 3)


def test_a_byte_order_mark_is_taken() -> None:
    assert parse_json_object(b'\xef\xbb\xbf{"a": 1}', "x.json").value == {"a": 1}


@pytest.mark.parametrize(
    ("raw", "words", "place"),
    [
        (b"", "Expecting value", (1, 1)),
        (b"[1]", "not an object", (1, 1)),
        (b'{"a": 1,\n "b" 2}', "delimiter", (2, 6)),
        (b'{"a": 1,\n "a": 2}', "'a' is given twice", (2, 2)),
        (b'{"x": {"a": 1}, "y": {"a": 1, "a": 2}}', "'a' is given twice", (1, 31)),
        (b'{"a":\n "\xff"}', "not UTF-8", (2, 3)),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "deeper", (1, 7 + MAX_DEPTH - 1)),
    ],
)
def test_faults_have_words_and_place(raw: bytes, words: str, place: tuple[int, int]) -> None:
    (found,) = diagnosed("json-invalid", lambda: parse_json_object(raw, "x.json"))
    assert words in found.message
    assert found.span is not None
    assert (found.span.line, found.span.column) == place


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_are_none(number: str) -> None:
    diagnosed("json-invalid", lambda: parse_json_object(f'{{"a": {number}}}'.encode(), "x"))


def test_extreme_nesting_is_refused_quickly() -> None:
    raw = b'{"a":' * 200_000
    diagnosed("json-invalid", lambda: parse_json_object(raw, "x.json"))


def test_file_size_limit(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(b'{"a": 1}')
    assert read_json_object(file, 8, "config").value == {"a": 1}
    diagnosed("checkpoint-unreadable", lambda: read_json_object(file, 7, "config"))


@pytest.mark.parametrize("name", ["absent.json", ".", "nul\0byte"])
def test_what_cannot_be_read(tmp_path: Path, name: str) -> None:
    diagnosed("checkpoint-unreadable", lambda: read_json_object(tmp_path / name, 9, "config"))

"""Traces of requests: CSV files of untrusted origin."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from meshc.serving.lengths import Prefix, Trace
from meshc.support.diagnostics import fail
from meshc.support.files import read_text

MAX_ROWS = 1_000_000
MAX_BYTES = 64 << 20
MAX_TOKENS = 10_000_000

_PROMPT = ("prompt_tokens", "num_prefill_tokens", "input_tokens", "ContextTokens")
_OUTPUT = ("output_tokens", "num_decode_tokens", "GeneratedTokens")
_PREFIX = ("prefix", "prefix_tokens")
_DATED = "TIMESTAMP"
_ARRIVAL = ("arrival_s", _DATED)
"""The last of each are those of Azure's traces of LLM inference."""
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
"""A date and a time of day, of the world's where no zone is given."""


def read_trace(path: Path) -> Trace:
    """The trace in the CSV file ``path``: columns of prompt tokens, output tokens and, if there are
    any, of arrivals, in seconds or as dates, and of what requests begin with, by the names in
    ``meshc explain trace-invalid``.

    Errors: ``unreadable`` (missing, too large, not UTF-8), ``trace-invalid``.
    """
    source = read_text(path, MAX_BYTES)
    rows = _rows(source.text, source.name)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    prompt, output = (_column(header, names, source.name) for names in (_PROMPT, _OUTPUT))
    arrival = _column(header, _ARRIVAL, source.name) if {*_ARRIVAL} & {*header} else None
    begins = None
    if {*_PREFIX} & {*header}:
        begins = [_column(header, (name,), source.name) for name in _PREFIX]
    prefixes: list[Prefix] = []
    pairs: list[tuple[int, int]] = []
    seconds: list[float] = []
    for line, row in rows:
        if len(pairs) == MAX_ROWS:
            _wrong(source.name, line, f"there are more than {MAX_ROWS} rows")
        if len(row) != len(header):
            _wrong(source.name, line, f"{len(row)} columns where the header has {len(header)}")
        pairs.append(
            (
                _tokens(row[prompt], header[prompt], source.name, line),
                _tokens(row[output], header[output], source.name, line),
            )
        )
        if begins is not None:
            named, shared = (row[at] for at in begins)
            prefixes.append(_prefix(named, shared, source.name, line))
        if arrival is not None:
            seconds.append(_seconds(row[arrival], header[arrival], seconds, source.name, line))
    if not pairs:
        fail("trace-invalid", f"'{source.name}' has no requests")
    known = None if begins is None else tuple(prefixes)
    if arrival is None:
        return Trace(tuple(pairs), None, known)
    start = seconds[0] if header[arrival] == _DATED else 0.0
    return Trace(tuple(pairs), tuple(second - start for second in seconds), known)


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, with their lines."""
    reader = csv.reader(text.splitlines())
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            _wrong(name, reader.line_num, str(error))
        if row is None:
            return
        if row:
            yield reader.line_num, row


def _column(header: Sequence[str], names: Sequence[str], name: str) -> int:
    found = [index for index, own in enumerate(header) if own in names]
    if len(found) != 1:
        what = "no column" if not found else "several columns"
        fail(
            "trace-invalid",
            f"'{name}' has {what} of {' or '.join(names)}",
            help="write a header such as prompt_tokens,output_tokens",
        )
    return found[0]


def _tokens(text: str, column: str, name: str, line: int) -> int:
    word = text.strip()
    plain = word.isascii() and word.isdigit() and len(word) <= 12
    if not plain or not 1 <= int(word) <= MAX_TOKENS:
        _wrong(name, line, f"{column} is '{word[:40]}', not a whole number from 1 to {MAX_TOKENS}")
    return int(word)


def _prefix(name: str, tokens: str, source: str, line: int) -> Prefix:
    """What a request begins with; nothing where both cells are empty."""
    name, tokens = name.strip(), tokens.strip()
    if not name and tokens in ("", "0"):
        return "", 0
    if not name:
        _wrong(source, line, f"prefix_tokens is '{tokens[:40]}', and prefix is empty")
    return name, _tokens(tokens, "prefix_tokens", source, line)


def _seconds(text: str, column: str, before: Sequence[float], name: str, line: int) -> float:
    dated = column == _DATED
    found = _instant(text.strip()) if dated else _number(text)
    if not math.isfinite(found) or abs(found) > 1e12:
        what = "date and time of day" if dated else "number of seconds"
        _wrong(name, line, f"{column} is '{text.strip()[:40]}', not a {what}")
    if before and found < before[-1]:
        _wrong(name, line, f"{column} is earlier than in the row before")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _instant(text: str) -> float:
    """Seconds since 1970, not a number for what is no date."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        return math.nan
    day, clock, part, zone = found.groups()
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{(zone or 'Z').replace('Z', '+00:00')}")
    except ValueError:
        return math.nan
    return whole.timestamp() + float(f"0.{part or 0}")


def _wrong(name: str, line: int, words: str) -> NoReturn:
    fail("trace-invalid", f"'{name}', line {line}: {words}", help="meshc explain trace-invalid")

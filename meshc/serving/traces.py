"""Traces of requests: CSV files of untrusted origin."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from meshc.serving.lengths import Trace
from meshc.support.diagnostics import fail
from meshc.support.files import read_text

MAX_ROWS = 1_000_000
MAX_BYTES = 64 << 20
MAX_TOKENS = 10_000_000

_PROMPT = ("prompt_tokens", "num_prefill_tokens", "input_tokens")
_OUTPUT = ("output_tokens", "num_decode_tokens")
_ARRIVAL = ("arrival_s",)


def read_trace(path: Path) -> Trace:
    """The trace in the CSV file ``path``: columns of prompt tokens, output tokens and, if there is
    one, of arrivals in seconds, by the names in ``meshc explain trace-invalid``.

    Errors: ``unreadable`` (missing, too large, not UTF-8), ``trace-invalid``.
    """
    source = read_text(path, MAX_BYTES)
    rows = _rows(source.text, source.name)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    prompt, output = (_column(header, names, source.name) for names in (_PROMPT, _OUTPUT))
    arrival = next((header.index(name) for name in _ARRIVAL if name in header), None)
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
        if arrival is not None:
            seconds.append(_seconds(row[arrival], seconds, source.name, line))
    if not pairs:
        fail("trace-invalid", f"'{source.name}' has no requests")
    return Trace(tuple(pairs), tuple(seconds) if arrival is not None else None)


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


def _seconds(text: str, before: Sequence[float], name: str, line: int) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or abs(found) > 1e12:
        _wrong(name, line, f"arrival_s is '{text.strip()[:40]}', not a number of seconds")
    if before and found < before[-1]:
        _wrong(name, line, "arrival_s is earlier than in the row before")
    return found


def _wrong(name: str, line: int, words: str) -> NoReturn:
    fail("trace-invalid", f"'{name}', line {line}: {words}", help="meshc explain trace-invalid")

"""What commands print: results on stdout, everything said about them on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from meshc.support.diagnostics import Diagnostic, Severity
from meshc.support.paint import paint_of


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_diagnostics(messages: Iterable[Diagnostic], remarks: bool = True) -> None:
    """Messages on stderr; remarks and missed chances only when asked for."""
    for message in messages:
        if remarks or message.severity in ("error", "warning"):
            print(message.render(paint_of(sys.stderr)), file=sys.stderr)


def print_notes(text: str) -> None:
    """Text such as a table of times, on stderr."""
    if text:
        print(text, file=sys.stderr)


def message_objects(messages: Iterable[Diagnostic], *kinds: Severity) -> list[dict[str, object]]:
    """Messages of these severities as JSON values; ``place`` is FILE:LINE:COLUMN or null."""
    return [
        {
            "severity": m.severity,
            "code": m.code,
            "message": m.message,
            "place": str(m.span) if m.span else None,
            "notes": list(m.notes),
            "help": m.help,
        }
        for m in messages
        if m.severity in kinds
    ]


def columns(rows: Iterable[tuple[str, str]]) -> str:
    """Two aligned columns of text."""
    found = list(rows)
    width = max((len(left) for left, _ in found), default=0)
    return "\n".join(f"{left:<{width}}  {right}".rstrip() for left, right in found)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

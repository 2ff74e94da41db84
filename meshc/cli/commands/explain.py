"""``meshc explain``: what a diagnostic code means and how to mend it; JSON schemas."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable

from meshc.cli.printing import columns, print_json
from meshc.support.diagnostics import fail, known_codes
from meshc.support.schemas import json_schema, schema_names


def run(options: argparse.Namespace) -> int:
    """Explain or list."""
    if options.schema is not None:
        return _print_schema(options.schema, options.code)
    codes = known_codes()
    if options.code is None:
        summaries = {code: codes[code]["summary"] for code in sorted(codes)}
        if options.json:
            print_json({"codes": summaries})
        else:
            print(columns(summaries.items()))
        return 0
    code = options.code.strip().removeprefix("error[").rstrip("]")
    if code not in codes:
        fail(
            "unknown-code",
            f"there is no diagnostic code '{code}'",
            help=_nearest(code, codes) or "meshc explain lists all codes",
        )
    if options.json:
        print_json({"code": code, **codes[code]})
    else:
        print(f"{code}: {codes[code]['summary']}\n\n{codes[code]['explain'].strip()}")
    return 0


def _print_schema(name: str, code: str | None) -> int:
    if code is not None:
        fail("bad-argument", f"--schema {name} and the code {code} ask for two things")
    names = schema_names()
    if name not in names:
        fail(
            "bad-argument",
            f"there is no schema '{name}'",
            help=_nearest(name, names) or f"there are {', '.join(names)}",
        )
    print_json(json_schema(name))
    return 0


def _nearest(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean '{near[0]}'?" if near else ""

"""``meshc explain``: what a diagnostic code means and how to mend it."""

from __future__ import annotations

import argparse
import difflib

from meshc.cli.printing import columns, print_json
from meshc.support.diagnostics import fail, known_codes


def run(options: argparse.Namespace) -> int:
    """Explain or list."""
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
        near = difflib.get_close_matches(code, codes, n=1)
        fail(
            "unknown-code",
            f"there is no diagnostic code '{code}'",
            help=f"did you mean '{near[0]}'?" if near else "meshc explain lists all codes",
        )
    if options.json:
        print_json({"code": code, **codes[code]})
    else:
        print(f"{code}: {codes[code]['summary']}\n\n{codes[code]['explain'].strip()}")
    return 0

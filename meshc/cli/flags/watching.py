"""Flags that look at the passes."""

from __future__ import annotations

import argparse


def add_watching(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a command that runs passes."""
    group = parser.add_argument_group("looking at the passes")
    group.add_argument(
        "--print-ir-after-all", action="store_true", help="IR after each pass, on stderr"
    )
    group.add_argument(
        "--print-ir-after",
        action="append",
        default=[],
        metavar="PASS",
        help="IR after this pass, on stderr; may be repeated",
    )
    group.add_argument("--time-passes", action="store_true", help="seconds of each pass, on stderr")
    group.add_argument("--stats", action="store_true", help="counts after each pass, on stderr")
    group.add_argument("--remarks", action="store_true", help="what passes did and why, on stderr")
    group.add_argument(
        "--check",
        action="store_true",
        help="run the module before and after each pass on random inputs and compare",
    )

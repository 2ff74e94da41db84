"""Flags of ``meshc explain``."""

from __future__ import annotations

from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain", help="explain a diagnostic code or list all, or print a schema"
    )
    parser.add_argument("code", nargs="?", metavar="CODE")
    parser.add_argument(
        "--schema",
        metavar="NAME",
        help="print the JSON schema of what the command NAME prints for --json, of its errors "
        "(errors), or of a file (manifest, record, timeline, fabric)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

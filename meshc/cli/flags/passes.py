"""Flags of ``meshc passes``."""

from __future__ import annotations

from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("passes", help="list passes; explain one, or an op")
    parser.add_argument("name", nargs="?", metavar="PASS")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

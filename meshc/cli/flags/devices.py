"""Flags of ``meshc devices``."""

from __future__ import annotations

from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("devices", help="list devices, or show one")
    parser.add_argument("name", nargs="?", metavar="NAME|FILE.toml")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

"""Flags of ``meshc man``."""

from __future__ import annotations

from typing import Any

_DESCRIPTION = """\
Print the manual page: all commands with their arguments and flags. Read it with
meshc man | man -l -, or keep it: meshc man > ~/.local/share/man/man1/meshc.1
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    commands.add_parser("man", help="print the manual page", description=_DESCRIPTION)

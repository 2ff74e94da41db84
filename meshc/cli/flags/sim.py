"""Flags of ``meshc sim``."""

from __future__ import annotations

from typing import Any

from meshc.sim.commands import add_arguments

_DESCRIPTION = """\
Run CSL programs without the vendor's SDK. bin prints a directory that holds cslc and cs_python;
suite runs the scripts of every program below a directory; run runs one host script.
See docs/sim.md.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "sim", help="run CSL programs on the fabric simulator", description=_DESCRIPTION
    )
    add_arguments(parser.add_subparsers(required=True, metavar="ACTION"))

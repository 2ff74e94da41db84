"""Flags of ``meshc opt``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.watching import add_watching

_DESCRIPTION = """\
Read a module from FILE.meshir ('-' is stdin) or, in MLIR, from FILE.mlir, verify it and the facts
it claims, run passes, print the result. Without passes this brings a text into canonical form.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("opt", help="run passes over IR", description=_DESCRIPTION)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--passes", default="", metavar="PASS,...", help="such as partition{grid=4x4},plan-memory"
    )
    parser.add_argument(
        "--emit",
        default="meshir",
        choices=("meshir", "mlir"),
        help="what is printed; default: %(default)s",
    )
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="default: -, which is stdout"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_watching(parser)

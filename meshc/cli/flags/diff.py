"""Flags of ``meshc diff``."""

from __future__ import annotations

from typing import Any

_DESCRIPTION = """\
Compare two compiles that were written with --record: memory of a core or GPU, predicted cost by op,
the first pass behind which the modules differ, and the emitted files that do. A difference is no
error: the exit code is 0.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("diff", help="compare two compiles", description=_DESCRIPTION)
    parser.add_argument("one", metavar="A", help="a directory that compile --record wrote")
    parser.add_argument("other", metavar="B", help="another one")
    parser.add_argument(
        "--ir",
        nargs="?",
        const="",
        metavar="PASS",
        help="print how the modules behind this pass differ; default: behind the last one",
    )
    parser.add_argument("--emitted", metavar="FILE", help="print how an emitted file differs")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

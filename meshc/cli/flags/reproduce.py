"""Flags of ``meshc reproduce``."""

from __future__ import annotations

from typing import Any

_DESCRIPTION = """\
Print tables, figures and claims of the papers that meshc comes from beside what meshc predicts of
them, with the error of each value and what it is to the prediction: calibrated on it, interpolated
between values that were, held out, arithmetic, or not modelled and why. TABLE is a paper (waferllm,
layered, clusterfusion, tokenweave, recorded) or one of its tables, such as waferllm-3; all by
default. Servers are simulated, which takes minutes for all of layered.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "reproduce",
        help="print published tables beside predicted ones",
        description=_DESCRIPTION,
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="default: all")
    parser.add_argument("--write", metavar="FILE", help="write the page to FILE in place of stdout")
    parser.add_argument(
        "--seeds",
        type=int,
        default=20,
        metavar="N",
        help="runs of a simulated server; a fifth where they are long; default: 20, as of the page",
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="simulate N runs at once; default: 1"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

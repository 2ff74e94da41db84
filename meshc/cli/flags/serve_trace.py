"""Flags of ``meshc serve-trace``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.served_requests import add_serving
from meshc.cli.flags.watching import add_watching
from meshc.cli.flags.what_to_compile import add_compiling, add_keeping

_DESCRIPTION = """\
Serve the requests of a trace with MODEL (as for compile), for Python or CUDA, or with a program
that compile wrote to a directory: requests enter as they come, prompts are read by a policy beside
decoding, and each leaves with its tokens. Prints every iteration and the tokens of every request.
Prompts are random tokens of the trace's lengths; --batch says how many requests run at once
(default: 8).
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve-trace", help="serve a trace of requests", description=_DESCRIPTION
    )
    parser.add_argument("model", metavar="MODEL|DIR")
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE.csv",
        help="columns prompt_tokens, output_tokens and perhaps arrival_s",
    )
    parser.add_argument(
        "--requests", type=int, metavar="N", help="the first N of the trace; default: all"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the prompts; default: %(default)s"
    )
    parser.add_argument(
        "--iteration-ms",
        type=float,
        default=10.0,
        metavar="MS",
        help="time of the trace that an iteration takes; default: %(default)s",
    )
    parser.add_argument(
        "--stop-at-eos",
        action="store_true",
        help="a token that ends a text ends an answer; default: answers as long as in the trace",
    )
    parser.add_argument(
        "--compare-alone",
        action="store_true",
        help="run each request alone too, and fail where its tokens differ",
    )
    parser.add_argument(
        "--record",
        metavar="DIR",
        help="write iterations and requests as a timeline into DIR, which meshc view shows",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_serving(parser)
    add_keeping(parser)
    add_compiling(parser)
    add_watching(parser)

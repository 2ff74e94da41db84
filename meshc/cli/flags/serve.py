"""Flags of ``meshc serve``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.served_requests import add_serving
from meshc.cli.flags.watching import add_watching
from meshc.cli.flags.what_to_compile import add_compiling, add_keeping

_DESCRIPTION = """\
Serve MODEL (as for compile), for Python or CUDA, or a program that compile wrote to a directory,
behind an endpoint for completions, as clients of the OpenAI API know it, streaming included; on the
loopback address unless --host says another one.
Tokens are drawn as a request says, at temperature 1 and top_p 1 where it is silent; temperature 0
takes the most likely ones. SIGTERM finishes what runs. Needs the extra 'serve'.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("serve", help="serve completions", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL|DIR")
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="0: any; default: %(default)s"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen at; one that other machines reach needs a key; "
        "default: %(default)s",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="answer only requests with this key (Authorization: Bearer KEY); by default the "
        "variable MESHC_API_KEY, if it is set",
    )
    parser.add_argument(
        "--finish-s",
        type=int,
        default=60,
        metavar="S",
        help="seconds that a signal leaves to what runs; default: %(default)s",
    )
    parser.add_argument(
        "--waiting",
        type=int,
        default=512,
        metavar="N",
        help="requests that may wait beside those that run (--batch); others are answered with "
        "429; default: %(default)s",
    )
    parser.add_argument(
        "--request-log",
        metavar="FILE",
        help="add a line of JSON to FILE for each request that ends: its tokens, times and why",
    )
    parser.add_argument(
        "--no-prefixes",
        action="store_true",
        help="read every prompt whole; by default what one begins with is not read again where "
        "caches that nobody uses hold it",
    )
    add_serving(parser)
    add_keeping(parser)
    add_compiling(parser)
    add_watching(parser)

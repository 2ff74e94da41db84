"""Flags of ``meshc view``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.what_to_compile import add_chunk, add_compiling, add_keeping

_DESCRIPTION = """\
Make one HTML page of a compile or a run: the model as a graph, the module after each pass with what
changed, layouts, routes, memory, waits, costs and timelines. DIR is what a command wrote with
--record; a MODEL is compiled first, as the flags say. The page needs no other file and no network.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "view", help="a page that shows a compile or a run", description=_DESCRIPTION
    )
    parser.add_argument("model", metavar="DIR|MODEL")
    parser.add_argument(
        "-o", "--output", metavar="FILE.html", help="default: DIR/view.html, or NAME.html of MODEL"
    )
    parser.add_argument(
        "--png",
        metavar="FILE.png",
        help="also draw memory, costs, colors, timelines and maps as a picture; needs matplotlib",
    )
    parser.add_argument("--phase", metavar="prefill|decode|both", help="of a MODEL; default: both")
    parser.add_argument(
        "--compile-to", default="", metavar="graph|mesh|tile", help="of a MODEL: stop there"
    )
    parser.add_argument("--weights", metavar="PATH", help="of a MODEL: for --keep-quantised")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_chunk(parser)
    add_keeping(parser)
    add_compiling(parser)

"""Flags of ``meshc import-torch``."""

from __future__ import annotations

from typing import Any

_DESCRIPTION = """\
Read a program of torch.export (a .pt2 file, one that you trust: torch reads it), a decoder or one
layer, and say what it computes in the .mesh language: printed, or as DIR/NAME.mesh with its weights
in DIR/weights. Needs torch.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "import-torch", help="a model of a torch.export program", description=_DESCRIPTION
    )
    parser.add_argument("file", metavar="FILE.pt2")
    parser.add_argument("-o", "--output", metavar="DIR", help="write the model and its weights")
    parser.add_argument("--force", action="store_true", help="move what is in the way aside")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

"""Flags of ``meshc compile``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.watching import add_watching
from meshc.cli.flags.what_to_compile import add_chunk, add_compiling, add_keeping

_DESCRIPTION = """\
Compile MODEL for a mesh of cores: a .mesh file, a .gguf file, a Hugging Face directory or
config.json, a .meshir file of any level, or the name of a built-in model. Without -o the model is
compiled and checked, and a summary is printed.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("compile", help="compile a model", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--phase", default="both", metavar="prefill|decode|both", help="default: %(default)s"
    )
    parser.add_argument(
        "--compile-to", default="", metavar="graph|mesh|tile", help="stop there and give the IR"
    )
    parser.add_argument(
        "--emit",
        default="meshir",
        metavar="meshir|mlir",
        help="what that IR is written in; default: %(default)s",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="where the files go; - prints IR on stdout"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write DIR also where files are in the way; they are kept",
    )
    parser.add_argument(
        "--weights", metavar="PATH", help="also write these weights, as DIR/weights/NAME.npy"
    )
    parser.add_argument(
        "--standalone",
        action="store_true",
        help="of CUDA: DIR runs without meshc, by numpy and NVIDIA's driver alone or from C++; it "
        "has machine code and packed weights, those of MODEL or of --weights",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="also write DIR/record.json, which meshc view shows: the module after each pass, what "
        "was said, places and predicted costs",
    )
    parser.add_argument(
        "--serving",
        default="",
        metavar="chunks|layers|layers!",
        help="a program for requests as they come (meshc serve DIR), --batch of them at once "
        "(default: 8): prompts are read by chunks of --chunk tokens (default: 512), or by groups "
        "of layers too, those of a dense model with layers!",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_chunk(parser)
    add_keeping(parser)
    add_compiling(parser)
    add_watching(parser)

"""Flags of ``meshc tune``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.what_to_compile import add_keeping
from meshc.cli.flags.working import add_workers

_DESCRIPTION = """\
Try many configurations of MODEL on a device, each as meshc estimate plans it, and print those that
fit and that no other one beats in time and in what it takes. On wafers: meshes, in squares and in
rectangles around the best of them, then on the best meshes every algorithm of products and
reductions with its K, and more regions for steps of several requests. On GPUs and nodes: numbers of
GPUs, requests of a step and, on one GPU, clusters of blocks.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tune",
        help="find the best meshes, algorithms or numbers of GPUs for a model",
        description=_DESCRIPTION,
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--device",
        default="wse3",
        metavar="NAME|FILE.toml",
        help="wafer, GPU or node; default: %(default)s",
    )
    parser.add_argument(
        "--phase", default="both", metavar="prefill|decode|both", help="default: %(default)s"
    )
    parser.add_argument("--seq", type=int, metavar="N", help="tokens of a prompt and of KV caches")
    parser.add_argument("--layers", type=int, metavar="N", help="the first N layers only")
    parser.add_argument(
        "--dtype", default="", metavar="f32|f16|bf16", help="default: the device's own"
    )
    parser.add_argument(
        "--mesh",
        action="append",
        default=[],
        metavar="WxH",
        help="of wafers: a mesh to try, may be repeated; default: they are looked for",
    )
    parser.add_argument(
        "--gpus",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="of GPUs: a number to try, may be repeated; default: powers of two",
    )
    parser.add_argument(
        "--batch",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="requests of a step to try, may be repeated; default: 1, of GPUs also 4 and 16, of "
        "nodes 64 as well",
    )
    parser.add_argument(
        "--algo",
        action="append",
        default=[],
        metavar="OP=NAME",
        help="of wafers: an algorithm of all configurations, as of compile",
    )
    add_keeping(parser)
    parser.add_argument(
        "--weights", metavar="PATH", help="of --keep-quantised: the checkpoint whose formats count"
    )
    parser.add_argument(
        "--against",
        default="cores",
        metavar="cores|memory",
        help="what time is weighed against: cores or GPUs, or bytes of each; default: %(default)s",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        help="keep what is tried in FILE, from which an interrupted run goes on",
    )
    add_workers(parser, "configurations")
    parser.add_argument("--plot", metavar="FILE.png", help="draw what was tried, and the front")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

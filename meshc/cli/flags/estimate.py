"""Flags of ``meshc estimate``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.what_to_compile import add_keeping

_DESCRIPTION = """\
Say whether each MODEL fits each device and mesh, by how much not and what would fit, how fast its
phases are there, what their time, memory and routes are spent on, and which numbers that rests on.

With --plmr: compile C[M, N] = A[M, K] B[K, N] by every algorithm for a mesh and count what it takes
of a core: routing paths, longest way of a step and of the whole program in hops (alpha) and routing
stages (beta), memory, predicted cycles, and which of P, L, M and R it violates. GEMV is the product
of one row. A second table says how these grow on P x P cores, from programs compiled for several P.

With --kv: compile the decode step of MODEL for several lengths and say how many tokens its KV cache
holds before the first core overflows, by policy, which core that is and what takes its memory. With
--keep-quantised, beside weights that stay quantised.

With --phases: compile both phases of MODEL to CSL, as two programs and as one whose weights are
copied for each phase or move in between, and say what each takes, which is taken and why.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "estimate",
        help="say whether models fit a device and how fast they are; compare algorithms",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "of",
        nargs="+",
        metavar="MODEL|M K N",
        help="models, or one model with --kv and --phases, or sizes with --plmr",
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--plmr", action="store_true", help="the table in PLMR terms")
    asked.add_argument("--kv", action="store_true", help="the capacity of MODEL's KV cache")
    asked.add_argument(
        "--phases", action="store_true", help="one program or two for both phases of MODEL"
    )
    parser.add_argument(
        "--mesh",
        action="append",
        metavar="WxH|AXIS=N,..|auto",
        help="of wafers; of MODEL alone may be repeated, default: auto, the best one; else: 8x8",
    )
    parser.add_argument(
        "--layers", type=int, metavar="N", help="of a model: the first N layers only"
    )
    parser.add_argument("--seq", type=int, metavar="N", help="tokens of a prompt and of KV caches")
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="of --phases, and of MODEL on GPUs: tokens of a prompt in a launch, as of compile",
    )
    parser.add_argument(
        "--algo",
        action="append",
        default=[],
        metavar="OP=NAME",
        help="of models on wafers: algorithms, as of compile",
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME|FILE.toml",
        help="wafer, GPU or node; of MODEL alone may be repeated; default: wse3, as of compile "
        "--target csl",
    )
    own = parser.add_argument_group("of MODEL alone")
    own.add_argument("--phase", metavar="prefill|decode|both", help="which phases; default: both")
    own.add_argument("--batch", type=int, metavar="N", help="requests of a step; default: 1")
    own.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs that the model is dealt to; default: one, or all of a node",
    )
    own.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="of a GPU: nodes, a GPU of each, that layers are dealt to, as of compile; default: 1",
    )
    own.add_argument(
        "--cluster",
        type=int,
        metavar="N",
        help="of one GPU: thread blocks of a cluster in a decode step; default: none",
    )
    own.add_argument(
        "--kv-dtype",
        metavar="model|fp8_e4m3",
        help="of GPUs: what their KV caches keep, as of compile; default: model",
    )
    own.add_argument(
        "--clock",
        action="store_true",
        help="of wafers: cycles of the clock of the emitted program; default: what the search "
        "that chooses layouts expects, which is faster to say",
    )
    own.add_argument("--plot", metavar="FILE.png", help="draw time by mechanism and memory by use")
    add_keeping(parser)
    parser.add_argument(
        "--weights", metavar="PATH", help="of --keep-quantised: the checkpoint whose formats count"
    )
    parser.add_argument(
        "--dtype", default="", metavar="f32|f16|bf16", help="default: the device's own"
    )
    parser.add_argument(
        "--accumulate",
        metavar="f32|f16",
        help="of --plmr: type of sums; default: f32",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")

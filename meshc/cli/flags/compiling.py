"""Flags that say what to compile; their defaults are those of ``CompileRequest``."""

from __future__ import annotations

import argparse
from typing import Any


def add_chunk(parser: argparse.ArgumentParser) -> None:
    """Add the flag of how prompts are read."""
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="CSL: read a prompt in chunks of at most N tokens behind those that are cached, which "
        "takes less memory; default: in one piece. CUDA: read N tokens at once, 8 to 512, each "
        "weight once; default: 16 at most, which round less",
    )
    parser.add_argument(
        "--phases",
        default="two",
        metavar="auto|one|copied|moved|two",
        help="CSL: a program for each phase (two), or one for both, with copies of weights that "
        "lie differently (copied) or moving them in between (moved); auto: one if it fits; "
        "default: %(default)s",
    )


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the flag of weights that stay quantised."""
    parser.add_argument(
        "--keep-quantised",
        metavar="stored|possible|FORMAT",
        help="weights stay quantised in the memory of cores, or of a GPU, and are decoded before "
        "each product: those of the file in its formats (stored), those of them that can "
        "(possible), or all in one (docs/weights.md)",
    )


def add_cache(parser: Any) -> None:
    """Add the flag of those who want nothing of earlier runs."""
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="compile and decode weights again, and keep nothing for later runs",
    )


def given_to_compile(options: argparse.Namespace) -> list[str]:
    """The flags of a compile, as they are typed, that ``options`` have other than by default."""
    parser = argparse.ArgumentParser(add_help=False)
    for add in (add_compiling, add_chunk, add_keeping):
        add(parser)
    usual = vars(parser.parse_args([]))
    names = (name for name, value in usual.items() if getattr(options, name, value) != value)
    return [f"--{name.replace('_', '-')}" for name in names]


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a compile."""
    group = parser.add_argument_group("compiling")
    group.add_argument(
        "--target", default="python", metavar="python|csl|cuda", help="default: %(default)s"
    )
    group.add_argument(
        "--device",
        default="",
        metavar="NAME|FILE.toml",
        help="default: ideal; for CSL wse3, for CUDA h200",
    )
    group.add_argument(
        "--mesh",
        metavar="WxH|AXIS=N,..",
        help="columns x rows of one region of cores, or axes by name, that of regions included; "
        "default: 8x8; of run with --target csl the smallest that fits",
    )
    group.add_argument(
        "--seq", type=int, metavar="N", help="tokens that the KV cache holds; default: 1024"
    )
    group.add_argument("--layers", type=int, metavar="N", help="compile the first N layers only")
    group.add_argument(
        "--dtype",
        default="",
        metavar="f32|f16|bf16",
        help="of activations and weights on the cores; default: f32 for programs, else the "
        "device's own",
    )
    group.add_argument(
        "--kv",
        default="auto",
        metavar="auto|shift|concat|cyclic",
        help="how the KV cache takes new tokens; default: %(default)s, shift or cyclic by the cost "
        "model",
    )
    group.add_argument(
        "--algo",
        action="append",
        default=[],
        metavar="OP=NAME",
        help="algorithm of gemm (cyclic_shift, cannon, summa, allgather, transposed), all_reduce "
        "(pipeline, ring, tree, two_phase, k_tree:K) or dispatch (multicast, ring, gather); may be "
        "repeated; default: by the cost model",
    )
    group.add_argument(
        "--align",
        default="",
        metavar="host|device",
        help="who skews the operands of MeshGEMM and Cannon; default: the host those of weights, "
        "the cores those of inputs",
    )
    group.add_argument(
        "--result",
        default="",
        metavar="roots|everywhere",
        help="where reduced results of main end: on the first core of their axis or on all; "
        "default: everywhere",
    )
    group.add_argument(
        "--choose",
        default="host",
        metavar="host|cores",
        help="CSL: who takes the largest logit of a decode step: the host, of all logits, or the "
        "cores, which give its token alone; default: %(default)s",
    )
    group.add_argument(
        "--cluster",
        type=int,
        metavar="N",
        help="CUDA, one GPU: thread blocks of a cluster, which share attention; default: none, or "
        "with --dataflow as many as are predicted to be fastest",
    )
    group.add_argument(
        "--dataflow",
        default="",
        metavar="split_token|split_head",
        help="CUDA, one GPU: how the blocks of a cluster share attention",
    )
    group.add_argument(
        "--page",
        type=int,
        default=16,
        metavar="1|16|64",
        help="CUDA: tokens of a page of the KV cache; default: %(default)s",
    )
    group.add_argument(
        "--kv-layout",
        default="own",
        metavar="own|nhd",
        help="CUDA: pages of the KV cache as kernels read them fastest, or as vLLM and FlashInfer "
        "have them: [pages, tokens, heads, lanes] of each layer; default: %(default)s",
    )
    group.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="CUDA: GPUs of the kind of --device that a model is dealt to, up to 16; default: "
        "%(default)s",
    )
    group.add_argument(
        "--collectives",
        default="multimem",
        metavar="multimem|peers",
        help="CUDA, several GPUs: the switch adds up what they have and gives it to all, or each "
        "loads from its peers and stores to them; default: %(default)s",
    )
    group.add_argument(
        "--overlap",
        default="none",
        metavar="none|auto|N",
        help="CUDA, several GPUs: read chunks of --chunk tokens, up to 1024, in two halves, one's "
        "collectives beside the other's kernels: where the cost of a node is lower for it (auto), "
        "or with N tokens in the first half; default: %(default)s",
    )
    group.add_argument(
        "--persistent",
        action="store_true",
        help="CUDA: a decode step of one kernel, which it always is",
    )
    group.add_argument(
        "--batch",
        type=int,
        default=None,
        metavar="N",
        help="requests of a step, up to 256, for CUDA 16; default: 1, of run one for each prompt",
    )

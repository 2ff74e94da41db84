"""Flags that say how a program serves requests; their defaults are those of ``ServeRequest``."""

from __future__ import annotations

import argparse
from typing import Any

from meshc.cli.flags.what_to_compile import add_cache


def add_serving(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a schedule that is carried out."""
    group = parser.add_argument_group("how it is scheduled")
    group.add_argument(
        "--policy",
        default="chunked",
        metavar="chunked|layered|combined",
        help="prompts by chunks, by groups of layers, or both; default: %(default)s",
    )
    group.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="prompt tokens of an iteration; default: 512, of combined 8192",
    )
    add_long_prompts(group)
    group.add_argument(
        "--groups",
        default="",
        metavar="RULE",
        help="groups of layers: a number, length:512 (default: one for so many tokens) or "
        "doubling:16",
    )
    group.add_argument("--force", action="store_true", help="group layers of a dense model too")
    parser.add_argument(
        "--weights", metavar="PATH", help="a checkpoint; default: MODEL's own, or a package's"
    )
    add_cache(parser)
    parser.add_argument(
        "--backend",
        default="",
        metavar="python|cuda-cpu|cuda",
        help="what executes the program: cuda-cpu CUDA kernels on this CPU, cuda on a GPU; "
        "default: as of run",
    )
    parser.add_argument(
        "--draft-model",
        metavar="MODEL",
        help="with --drafts: guess by this model, which has the same tokens; default: what "
        "followed the last tokens of a text where they stood before",
    )
    parser.add_argument(
        "--draft-weights", metavar="PATH", help="a checkpoint of --draft-model; default: its own"
    )


def add_long_prompts(group: Any) -> None:
    """Add the flags that keep long prompts from holding up short ones."""
    group.add_argument(
        "--long-chunk",
        type=int,
        metavar="N",
        help="a prompt with more than N tokens left to read is long: it gets at most N of an "
        "iteration, and prompts behind it the rest; default: no limit",
    )
    group.add_argument(
        "--long-prompts",
        type=int,
        metavar="N",
        help="long prompts that are read at once, while shorter ones pass the others; default: 1",
    )

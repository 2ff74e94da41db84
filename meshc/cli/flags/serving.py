"""Flags that say how a program serves requests; their defaults are those of ``ServeRequest``."""

from __future__ import annotations

import argparse


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

"""Flags that say what to compile; their defaults are those of ``CompileRequest``. Flags of targets
are the options that these declare."""

from __future__ import annotations

import argparse
from dataclasses import Field
from typing import Any

from meshc.backends.target_options import OWN


def add_chunk(parser: argparse.ArgumentParser) -> None:
    """Add the flag of how prompts are read."""
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="CSL: read a prompt in chunks of at most N tokens behind those that are cached, which "
        "takes less memory; default: in one piece. CUDA: read N tokens at once, each weight "
        "once: 8 to 512 by kernels, up to 128 by tasks of models without; default: by what is left",
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
    given = {name: value for name, value in vars(options).items() if name in _names(parser)}
    names = (name for name, value in given.items() if name not in usual or usual[name] != value)
    return [f"--{name.replace('_', '-')}" for name in names]


def _names(parser: argparse.ArgumentParser) -> set[str]:
    """What the flags of ``parser`` set."""
    return {action.dest for action in parser._actions}


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a compile."""
    group = parser.add_argument_group("compiling")
    group.add_argument(
        "--target",
        metavar="|".join(OWN),
        help="or one that an installed package brings; default: the one that --device is made for, "
        "else python",
    )
    group.add_argument(
        "--device",
        default="",
        metavar="NAME|FILE.toml",
        help="default: ideal; for CSL wse3, for CUDA h200",
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
        "--batch",
        type=int,
        default=None,
        metavar="N",
        help="requests of a step, up to 256, for CUDA 16; default: 1, of run one for each prompt",
    )
    for place in ("before", "after"):
        group.add_argument(
            f"--passes-{place}",
            action="append",
            metavar="PASS=PIPELINE",
            help=f"run the passes of PIPELINE {place} PASS of this compile; may be repeated",
        )
    options = (one for record in OWN.values() for one in record.declared())
    for one in {option.name: option for option in options}.values():
        _add_option(group, one)


def _add_option(group: Any, option: Field[Any]) -> None:
    """Add the flag of an option of a target; what is not given is no option of the command."""
    named, words = f"--{option.name.replace('_', '-')}", option.metadata["help"]
    if option.default is False:
        how: dict[str, Any] = {"action": "store_true"}
    elif option.default == ():
        how = {"action": "append", "metavar": option.metadata["metavar"]}
    else:
        kind = int if "int" in str(option.type) else str
        how = {"type": kind, "metavar": option.metadata["metavar"]}
    group.add_argument(named, default=argparse.SUPPRESS, help=words, **how)

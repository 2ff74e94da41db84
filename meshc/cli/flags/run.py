"""Flags of ``meshc run``."""

from __future__ import annotations

import argparse
from typing import Any

from meshc.cli.flags.watching import add_watching
from meshc.cli.flags.what_to_compile import add_cache, add_chunk, add_compiling, add_keeping
from meshc.sim.machine.run_options import BACKENDS, MOST_THREADS_BY_DEFAULT
from meshc.sim.timing import DEFAULT, MODELS

_DESCRIPTION = """\
Generate text with MODEL (as for compile), or with a program that compile wrote to a directory.
Tokens are the most likely ones unless a flag asks to draw them. Several prompts are continued at
once, as requests of one batch.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("run", help="generate tokens", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL|DIR")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt", action="append", metavar="TEXT", help="may be repeated, as may --prompt-ids"
    )
    prompt.add_argument(
        "--prompt-ids",
        type=_ids,
        action="append",
        metavar="5,17,42",
        help="token ids; needs no tokenizer",
    )
    prompt.add_argument(
        "--messages",
        action="append",
        metavar="FILE.json",
        help='a conversation, {"messages": [{"role": "user", "content": "..."}, ...]}, written by '
        "the model's chat template; may be repeated",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="take each --prompt for the message of a user, written by the model's chat template",
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="with --chat: the system message in front of it"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=16, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--phase",
        choices=("both", "decode"),
        help="decode: steps of decoding read the prompt as well; default: both, for CSL what takes "
        "fewer predicted cycles",
    )
    parser.add_argument(
        "--weights", metavar="PATH", help="a checkpoint; default: MODEL's own, or a package's"
    )
    parser.add_argument(
        "--backend",
        default="",
        metavar="python|cuda-cpu|cuda|csl-sim",
        help="what executes the program: python that of --target python; cuda-cpu CUDA kernels on "
        "this CPU, cuda on a GPU; csl-sim CSL on the fabric simulator; default: the one that fits "
        "the target; cuda where there is a GPU for the kernels, else cuda-cpu",
    )
    parser.add_argument(
        "--logits",
        metavar="FILE.npy",
        help="write the logits of every step, [tokens, vocab]; "
        "of several prompts [requests, tokens, vocab], NaN behind the end of a text",
    )
    parser.add_argument(
        "--profile",
        metavar="FILE.json",
        help="of csl-sim: print cycles by op, split into compute, transfer and waiting, and those "
        "that were predicted with their lower bound, and write a trace for Perfetto",
    )
    parser.add_argument(
        "--record",
        metavar="DIR",
        help="of csl-sim: write the compiled program to DIR, with what meshc view shows of the "
        "compile and of the last step that was run",
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="go on after a token that ends a text"
    )
    add_cache(parser)
    _add_sampling(parser)
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="of cuda, whose programs choose tokens themselves: steps of decoding that a launch "
        "has; default: 16 on a GPU, 1 on this CPU",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    _add_simulator(parser)
    add_chunk(parser)
    add_keeping(parser)
    add_compiling(parser)
    add_watching(parser)


def _add_simulator(parser: argparse.ArgumentParser) -> None:
    """How wafers are simulated."""
    group = parser.add_argument_group("the simulator of wafers")
    group.add_argument(
        "--sim-backend", choices=BACKENDS, help="the machine to run on; default: auto"
    )
    group.add_argument("--sim-timing", choices=MODELS, help=f"whose cycles; default: {DEFAULT}")
    group.add_argument(
        "--sim-threads",
        type=int,
        metavar="N",
        help="threads of the C machine; default: one for each core, up to "
        f"{MOST_THREADS_BY_DEFAULT}",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen, and where a text ends."""
    parser.add_argument(
        "--sample",
        action="store_true",
        help="draw tokens as the checkpoint's generation_config.json says",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="draw tokens with scores divided by T; 0: the most likely ones",
    )
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="draw among the K most likely tokens; 0: all"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="draw among the most likely tokens that have the probability P together",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="draw among tokens that are no less likely than that share of the most likely one",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="draws of the same seed are the same; default: 0"
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text, of which nothing is printed; may be repeated",
    )


def _ids(text: str) -> tuple[int, ...]:
    """Token ids from a comma-separated list."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (-1,)
    if any(not 0 <= token < 1 << 31 for token in found):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of token ids such as 5,17,42")
    return found

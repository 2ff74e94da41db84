"""Flags of ``meshc schedule``."""

from __future__ import annotations

from typing import Any

from meshc.cli.flags.served_requests import add_long_prompts
from meshc.cli.flags.working import add_workers

_DESCRIPTION = """\
Simulate a server of MODEL on a node of GPUs: requests come, prompts are read beside decoding by a
policy, and what requests wait for, what is loaded and what energy it takes is counted, over several
seeds. With --tokens, the kernels of one prompt's iterations are scheduled instead. MODEL is a
built-in name or a Hugging Face configuration; no weights are needed.
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "schedule", help="simulate serving a model by a policy", description=_DESCRIPTION
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME|FILE.toml",
        help="may be repeated, to compare; default: h100x2, with --tokens h100x8",
    )
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="default: all of it")
    _add_load(parser.add_argument_group("what comes"))
    _add_policy(parser.add_argument_group("how it is scheduled"))
    _add_iteration(parser.add_argument_group("an iteration on GPUs in tensor parallel"))
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="runs, of drawn requests; default: 10"
    )
    add_workers(parser, "runs")
    parser.add_argument(
        "--plots",
        metavar="DIR",
        help="write attainment, frontier and timeline as SVG into DIR, with --tokens timeline.png",
    )
    parser.add_argument(
        "--per-request",
        metavar="FILE.csv",
        help="write a row for each request of the first seed, with its arrival, lengths and times",
    )
    parser.add_argument(
        "--record",
        metavar="DIR",
        help="write the timelines of the first seed, with --tokens that of the longest iteration, "
        "into DIR, for meshc view",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def _add_load(group: Any) -> None:
    group.add_argument(
        "--trace",
        default="arxiv",
        metavar="arxiv|sharegpt|FILE.csv",
        help="lengths of requests; default: %(default)s; with --tokens FILE.json, which gets the "
        "timeline for Perfetto",
    )
    group.add_argument(
        "--rate",
        type=float,
        action="append",
        metavar="R",
        help="requests per second, may be repeated; needed unless the trace says when they come; "
        "draws lengths from a trace, and arrivals in the place of its own",
    )
    group.add_argument(
        "--cv",
        type=float,
        metavar="V",
        help="variation of the drawn gaps between arrivals; default: 1, a Poisson process",
    )
    group.add_argument(
        "--requests",
        type=int,
        default=0,
        metavar="N",
        help="default: 1000, or those whose arrivals the trace says",
    )
    group.add_argument(
        "--prefix",
        default="",
        metavar="N|S%",
        help="all prompts begin with the same N tokens, or S %% of each do; these are read once, "
        "kept, and evicted where others need the room; a trace may say it of each request",
    )


def _add_policy(group: Any) -> None:
    group.add_argument(
        "--policy",
        action="append",
        metavar="chunked|layered|combined|disaggregated|baseline|fuse-only|tokenweave",
        help="may be repeated to compare; default: chunked; the last three with --tokens, default: "
        "tokenweave",
    )
    group.add_argument(
        "--auto",
        action="store_true",
        help="try policies, chunks and groups, and say which one serves best and what it gains",
    )
    group.add_argument(
        "--chunk",
        type=int,
        action="append",
        metavar="N",
        help="prompt tokens of an iteration, may be repeated; default: 512, of combined and "
        "disaggregated 8192",
    )
    add_long_prompts(group)
    group.add_argument(
        "--prefill-gpus",
        type=int,
        metavar="N",
        help="GPUs of disaggregated that read prompts; default: half of them",
    )
    group.add_argument(
        "--kv-transfer",
        choices=("whole", "streamed"),
        help="of disaggregated: keys and values leave when a prompt has been read (default), or "
        "those of each iteration when it ends",
    )
    group.add_argument(
        "--groups",
        default="",
        metavar="RULE",
        help="groups of layers: a number, length:512 (default: one for so many tokens), "
        "doubling:16, or latency:50 (the fewest whose iterations take 50 ms)",
    )
    group.add_argument(
        "--slo-ttft", type=float, metavar="S", help="seconds to the first token; default: 5 or 10"
    )
    group.add_argument(
        "--slo-tbt", type=float, metavar="MS", help="milliseconds between tokens; default: 125"
    )
    group.add_argument("--force", action="store_true", help="layered prefill of a dense model too")


def _add_iteration(group: Any) -> None:
    group.add_argument(
        "--collectives",
        choices=("baseline", "fuse-only", "tokenweave"),
        help="cost the iterations of a server kernel by kernel, with these sums; default: costs "
        "fitted to published servers where the device has them, else baseline",
    )
    group.add_argument(
        "--experts",
        choices=("features", "whole"),
        default="features",
        help="each GPU has a share of the features of all experts, or some experts whole; "
        "default: %(default)s",
    )
    group.add_argument(
        "--weights",
        default="",
        metavar="FORMAT",
        help="matrices of layers are kept in bf16 (default), fp8, int4, mxfp4 or nvfp4",
    )
    group.add_argument(
        "--expert-weights",
        default="",
        metavar="FORMAT",
        help="those of experts; default: as --weights",
    )
    group.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="schedule the kernels of a prompt of N tokens, in iterations of --chunk tokens",
    )
    group.add_argument(
        "--without-switch",
        action="store_true",
        help="sums by loads from peers, where the switch cannot add",
    )

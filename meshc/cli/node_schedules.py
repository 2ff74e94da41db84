"""What ``meshc schedule --tokens`` prints: an iteration on a node of GPUs."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.cli.printing import print_json
from meshc.cost.nodes.overlap import POLICIES, Schedule
from meshc.driver.node_scheduling import NodeReport, NodeRequest, node_report
from meshc.driver.recorded_runs import node_timeline, write_run
from meshc.serving.schedule_traces import perfetto
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.extras import module_of_extra
from meshc.support.files import replace_file, write_text
from meshc.support.output import check_free

_OF_REQUESTS = (
    "rate", "requests", "auto", "groups", "slo_ttft", "slo_tbt", "force", "scheduler",
    "collectives", "seeds", "cv", "long_chunk", "long_prompts", "per_request", "weights",
    "expert_weights", "prefix", "prefill_gpus", "kv_transfer",
)  # fmt: skip
"""Flags of a stream of requests, which an iteration does not have."""


def check_apart(options: argparse.Namespace) -> None:
    """Refuse policies of a node where there is no iteration to schedule."""
    for name in options.policy or []:
        if name in POLICIES:
            fail(
                "bad-argument",
                f"'{name}' schedules the kernels of one iteration",
                help="say how many tokens it has: --tokens 4096; or, for all iterations of a "
                f"server, --collectives {name}",
            )
    if options.without_switch and not options.collectives:
        fail("bad-argument", "--without-switch goes with --tokens or with --collectives")


def run(options: argparse.Namespace) -> int:
    """Schedule an iteration and print."""
    if options.processes != 1:
        fail("bad-argument", "--processes carry out runs of a server, not of --tokens")
    given = [f"--{name.replace('_', '-')}" for name in _OF_REQUESTS if getattr(options, name)]
    if given:
        fail("bad-argument", f"{', '.join(given)}: of a stream of requests, not of --tokens")
    if len(options.policy or []) > 1:
        fail("bad-argument", "--tokens schedules by one policy; baseline is printed beside it")
    trace = None if options.trace == "arxiv" else Path(options.trace)
    if trace is not None and trace.suffix != ".json":
        fail(
            "bad-argument",
            f"--trace '{trace}': with --tokens it is the timeline's file, whose name ends in .json",
        )
    plots = None
    if options.plots:
        plots = module_of_extra("meshc.serving.plots", "plots", "drawing")
    request = NodeRequest(
        options.model,
        options.device,
        options.tokens,
        (options.policy or ["tokenweave"])[0],
        options.chunk,
        options.gpus,
        not options.without_switch,
        options.experts == "whole",
    )
    if options.record is not None:
        check_free(Path(options.record))
    found = node_report(request)
    if trace is not None:
        write_text(trace, perfetto(found.longest, f"{request.model} on {request.device}"))
    if plots is not None:
        _draw(plots.node_timeline(found.longest), Path(options.plots))
    if options.record is not None:
        facts = {
            "policy": request.policy,
            "tokens": request.tokens,
            "iterations": len(found.schedules),
            "predicted": f"{_ms(found.seconds)} ms, baseline {_ms(found.baseline_seconds)} ms",
        }
        told = request.model, request.device, facts, [node_timeline(found.longest)], Diagnostics()
        write_run(Path(options.record), "node schedule", *told)
    if options.json:
        print_json(_object(request, found))
    else:
        print("\n".join(_words(request, found)))
    return 0


def _draw(picture: bytes, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "timeline.png", picture)
    except OSError as error:
        fail("unwritable", f"'{folder}' cannot be written: {error.strerror}")


def _object(request: NodeRequest, found: NodeReport) -> dict[str, object]:
    """Milliseconds of all iterations; the split and the timeline of the longest one."""
    iterations = [
        {"tokens": s.tokens, "split": s.split, "latency_ms": _ms(s.seconds)}
        for s in found.schedules
    ]
    return {
        "model": request.model,
        "device": request.device,
        "policy": request.policy,
        "tokens": request.tokens,
        "latency_ms": _ms(found.seconds),
        "baseline_ms": _ms(found.baseline_seconds),
        "no_communication_ms": _ms(found.alone_seconds),
        "speedup": round(found.speedup, 4),
        "split": found.longest.split,
        "threshold_tokens": found.threshold,
        "iterations": iterations,
        "timeline": [
            {
                "stream": span.stream,
                "kernel": span.name,
                "layer": span.layer,
                "half": span.half,
                "start_us": round(span.start * 1e6, 3),
                "us": round((span.stop - span.start) * 1e6, 3),
                "multiprocessors": span.multiprocessors,
            }
            for span in found.longest.spans
        ],
    }


def _words(request: NodeRequest, found: NodeReport) -> list[str]:
    """Latencies side by side and one layer of the longest iteration."""
    count = len(found.schedules)
    several = f" in {count} iterations" if count > 1 else ""
    lines = [
        f"{request.model} on {request.device}, {request.tokens} tokens{several}, predicted",
        f"  {request.policy:<17} {_ms(found.seconds):10.3f} ms, {found.speedup:.3f} times faster "
        "than baseline",
        f"  {'baseline':<17} {_ms(found.baseline_seconds):10.3f} ms",
        f"  {'no communication':<17} {_ms(found.alone_seconds):10.3f} ms",
    ]
    longest = found.longest
    if longest.split is not None:
        busy = longest.busy(COMMUNICATION) / longest.busy(COMPUTE)
        blocks = next(s.multiprocessors for s in longest.spans if s.stream == COMMUNICATION)
        lines.append(
            f"  cut after {longest.split} of {longest.tokens} tokens; communication takes {blocks} "
            f"multiprocessors and {busy:.0%} of the time of compute"
        )
    if request.policy == "tokenweave":
        lines.append(
            "  cutting never pays"
            if found.threshold is None
            else f"  cutting pays from {found.threshold} tokens on"
        )
    return [*lines, "", *_layer(longest)]


def _layer(schedule: Schedule) -> list[str]:
    """The kernels of the middle layer, in order of their start."""
    middle = schedule.spans[len(schedule.spans) // 2].layer
    spans = sorted(s for s in schedule.spans if s.layer == middle)
    spans.sort(key=lambda span: span.start)
    first = spans[0].start
    rows = [f"layer {middle}:"]
    for span in spans:
        half = "" if schedule.split is None else f", half {span.half}"
        rows.append(
            f"  {(span.start - first) * 1e6:9.1f} us  {(span.stop - span.start) * 1e6:8.1f} us  "
            f"{span.stream:<13}  {span.name}{half}"
        )
    return rows


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)

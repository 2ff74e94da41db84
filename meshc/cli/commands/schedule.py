"""``meshc schedule``: a serving system simulated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from meshc.cli.output import print_json
from meshc.driver.scheduling import ScheduleRequest, choice, setting_of, simulated_bands
from meshc.serving.comparing import Band, Setting
from meshc.support.diagnostics import fail

_GROUPED = ("layered", "combined")
_WEIGHED = (
    "slo_attainment",
    "ttft_mean_s",
    "ttft_p99_s",
    "tbt_mean_ms",
    "tbt_p99_ms",
    "energy_mj_per_token",
)
_CHUNKED = ("chunked", "combined", "disaggregated")


def run(options: argparse.Namespace) -> int:
    """Simulate and print."""
    if not 1 <= options.processes <= 256:
        fail("bad-argument", f"--processes is {options.processes}, not 1 to 256")
    if options.auto:
        return _choose(options)
    names = list(dict.fromkeys(options.policy or ["chunked"]))
    requests = [_request(options, name, alone=len(names) == 1) for name in names]
    first = setting_of(requests[0])
    found = simulated_bands(requests, options.processes)
    if options.json:
        print_json(_object(options, requests, first, found))
    else:
        print("\n".join(_lines(options, names, first, found)))
    return 0


def _choose(options: argparse.Namespace) -> int:
    """Print the policies that were tried, the best first, and what the best gains."""
    if options.policy or options.chunk or options.groups:
        fail("bad-argument", "--auto chooses policy, chunk and groups itself")
    request = _request(options, "chunked", alone=True)
    setting = setting_of(request)
    found = choice(request, options.processes)
    best = found[0]
    usual = next(one for one in found if one.words == "--policy chunked --chunk 512")
    gains = {name: best.bands[name].mean - usual.bands[name].mean for name in _WEIGHED}
    if options.json:
        tried = [
            {"settings": one.words, **{n: asdict(b) for n, b in one.bands.items()}} for one in found
        ]
        head = _head(options, setting)
        print_json({**head, "chosen": best.words, "over_chunked_512": gains, "tried": tried})
        return 0
    rows = [["", *_WEIGHED]]
    rows += [[one.words, *(_short(one.bands[n].mean) for n in _WEIGHED)] for one in found]
    why = "by fewest missed objectives, then TTFT x TBT"
    if not setting.model.experts:
        why += "; a dense model is not read by groups of layers (arXiv 2510.08055, section 5.13)"
    changes = (f"{n} {_short(usual.bands[n].mean)} -> {_short(best.bands[n].mean)}" for n in gains)
    print("\n".join([*_title(options, setting), *_aligned(rows), ""]))
    print(f"chosen: {best.words} ({why})")
    print(f"over --policy chunked --chunk 512: {', '.join(changes)}")
    return 0


def _request(options: argparse.Namespace, name: str, alone: bool) -> ScheduleRequest:
    """The request for the policy ``name``; beside others it takes only settings that it has."""
    return ScheduleRequest(
        model=options.model,
        device=options.device,
        trace=options.trace,
        policy=name,
        rate=options.rate,
        requests=options.requests,
        seeds=options.seeds,
        chunk=options.chunk if alone or name in _CHUNKED else None,
        groups=options.groups if alone or name in _GROUPED else "",
        gpus=options.gpus,
        cv=options.cv,
        ttft_s=options.slo_ttft,
        tbt_ms=options.slo_tbt,
        force=options.force,
    )


def _object(
    options: argparse.Namespace,
    requests: Sequence[ScheduleRequest],
    first: Setting,
    found: Sequence[dict[str, Band]],
) -> dict[str, object]:
    """Metrics by name for one policy; for several, under ``policies``."""
    head = _head(options, first)
    bands = [{name: asdict(own) for name, own in each.items()} for each in found]
    if len(found) == 1:
        return {**head, "policy": requests[0].policy, **bands[0]}
    named = {own.policy: each for own, each in zip(requests, bands, strict=True)}
    return {**head, "policies": named}


def _head(options: argparse.Namespace, first: Setting) -> dict[str, object]:
    """What was simulated."""
    return {
        "model": options.model,
        "device": options.device,
        "gpus": first.gpus,
        "trace": options.trace,
        "rate": options.rate,
        "cv": options.cv,
        "requests": first.load.requests,
        "seeds": options.seeds,
        "slo": asdict(first.objective),
    }


def _lines(
    options: argparse.Namespace,
    names: Sequence[str],
    first: Setting,
    found: Sequence[dict[str, Band]],
) -> list[str]:
    """A table: a row for each metric, for each policy its mean and band."""
    rows = [["", *(f"{name}: mean (5 % .. 95 %)" for name in names)]]
    rows += [[metric, *(_cell(each[metric]) for each in found)] for metric in found[0]]
    return [*_title(options, first), *_aligned(rows)]


def _title(options: argparse.Namespace, first: Setting) -> list[str]:
    """What was simulated, in words."""
    rate = f"{options.rate:g} requests/s" if options.rate is not None else "arrivals of the trace"
    goal, gpus = first.objective, f"{first.gpus} GPU{'s' if first.gpus > 1 else ''}"
    return [
        f"{first.model.name} on {gpus} of {first.device.name}, {options.trace}, {rate}, "
        f"{first.load.requests} requests, {options.seeds} seeds",
        f"a request is in time when its first token takes {goal.ttft_s:g} s and no other more than "
        f"{goal.tbt_ms:g} ms",
        "",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]


def _cell(own: Band) -> str:
    return f"{_short(own.mean)} ({_short(own.low)} .. {_short(own.high)})"


def _short(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"

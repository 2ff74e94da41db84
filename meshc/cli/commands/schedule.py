"""``meshc schedule``: a serving system simulated."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from types import ModuleType

from meshc.cli import node_schedules
from meshc.cli.job_workers import workers_of
from meshc.cli.printing import print_json
from meshc.cli.progress import Progress
from meshc.driver.recorded_runs import simulated_timeline, write_run
from meshc.driver.scheduling import ScheduleRequest, choice, setting_of, simulated_bands
from meshc.serving.comparing import Band, Setting, simulated
from meshc.serving.trip_rows import COLUMNS, trip_rows
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.extras import module_of_extra
from meshc.support.files import check_place, write_text
from meshc.support.output import check_free
from meshc.support.workers import Workers

_GROUPED = ("layered", "combined")
_APART = "disaggregated"
_CHUNKED = ("chunked", "combined", "disaggregated")
_WEIGHED = (
    "slo_attainment",
    "ttft_mean_s",
    "ttft_p99_s",
    "tbt_mean_ms",
    "tbt_p99_ms",
    "energy_mj_per_token",
)
_USUAL = "--policy chunked --chunk 512"

Found = list[tuple[ScheduleRequest, dict[str, Band]]]


def run(options: argparse.Namespace) -> int:
    """Simulate and print."""
    devices = options.device or ["h100x2" if options.tokens is None else "h100x8"]
    devices, chunks = list(dict.fromkeys(devices)), list(dict.fromkeys(options.chunk or [None]))
    if options.tokens is not None or options.auto:
        _check_one(options, {"--device": devices, "--chunk": chunks})
    if options.tokens is not None:
        options.device, options.chunk = devices[0], chunks[0]
        return node_schedules.run(options)
    node_schedules.check_apart(options)
    if (options.prefill_gpus is not None or options.kv_transfer) and (
        _APART not in (options.policy or [])
    ):
        fail(
            "bad-argument",
            "--prefill-gpus and --kv-transfer are of two pools of GPUs",
            help=f"--policy {_APART} has two",
        )
    workers = workers_of(options)
    rates = list(dict.fromkeys(options.rate or [None]))
    if options.auto:
        return _choose(options, rates, devices[0], workers)
    names = list(dict.fromkeys(options.policy or ["chunked"]))
    plots = None
    if options.plots:
        plots = module_of_extra("meshc.serving.plots", "plots", "drawing")
    if options.per_request is not None:
        check_place(Path(options.per_request))
    if options.record is not None:
        check_free(Path(options.record))
    asked = product(rates, devices, chunks, names)
    alone = len(names) == 1
    plan = list(dict.fromkeys(_request(options, *each, alone=alone) for each in asked))
    places = [setting_of(own) for own in {own.device: own for own in reversed(plan)}.values()][::-1]
    with Progress() as progress:
        bands = simulated_bands(plan, workers, progress.runs)
    found = list(zip(plan, bands, strict=True))
    if plots is not None:
        _draw(plots, Path(options.plots), found)
    if options.record is not None:
        _record(options, plan)
    if options.per_request is not None:
        write_text(Path(options.per_request), _requests(plan))
    if options.json:
        print_json(_object(options, places, found))
    else:
        rows = _by_metric(found) if len(found) <= len(names) else _by_plan(found)
        print("\n".join([*_title(options, plan[0], places), *_aligned(rows)]))
    return 0


def _check_one(options: argparse.Namespace, given: Mapping[str, Sequence[object]]) -> None:
    """Raise ``bad-argument`` for flags that are ``given`` twice, where one value would count."""
    found = Diagnostics()
    for flag, values in given.items():
        if len(values) > 1:
            of = "--auto" if options.tokens is None else "--tokens"
            words = f"{flag} is given twice, and one value would count with {of}"
            found.error("bad-argument", words)
    found.raise_errors()


def _request(
    options: argparse.Namespace,
    rate: float | None,
    where: str,
    chunk: int | None,
    name: str,
    alone: bool,
) -> ScheduleRequest:
    """The request for the policy ``name``; beside others it takes only settings that it has."""
    return ScheduleRequest(
        model=options.model,
        device=where,
        trace=options.trace,
        policy=name,
        rate=rate,
        requests=options.requests,
        seeds=options.seeds,
        chunk=chunk if alone or name in _CHUNKED else None,
        long_chunk=options.long_chunk if alone or name in _CHUNKED else None,
        long_prompts=options.long_prompts if alone or name in _CHUNKED else None,
        groups=options.groups if alone or name in _GROUPED else "",
        gpus=options.gpus,
        cv=options.cv,
        ttft_s=options.slo_ttft,
        tbt_ms=options.slo_tbt,
        force=options.force,
        collectives=options.collectives or "",
        in_switch=not options.without_switch,
        prefix=options.prefix,
        prefill_gpus=options.prefill_gpus if name == _APART else None,
        streamed=name == _APART and options.kv_transfer == "streamed",
        whole_experts=options.experts == "whole",
        weights=options.weights,
        expert_weights=options.expert_weights,
    )


def _names(plan: Sequence[ScheduleRequest]) -> list[str]:
    """What tells each of ``plan`` from the others beside its rate: its policy, and where several
    are compared its device and its chunks."""
    devices, chunks = len({own.device for own in plan}) > 1, len({own.chunk for own in plan}) > 1
    return [
        own.policy
        + (f" of {own.chunk}" if chunks and own.chunk is not None else "")
        + (f" on {own.device}" if devices else "")
        for own in plan
    ]


def _choose(
    options: argparse.Namespace, rates: Sequence[float | None], where: str, workers: Workers
) -> int:
    """Print the policies that were tried, the best first, and what the best gains."""
    given = (options.policy, options.chunk, options.groups, options.plots, options.per_request)
    if options.record is not None:
        fail("bad-argument", "--record keeps the runs of policies that are given, not of --auto")
    if any((*given, options.long_chunk, options.long_prompts)) or len(rates) > 1:
        fail("bad-argument", "--auto chooses policy, chunks and groups itself, for one rate")
    request = _request(options, rates[0], where, None, "chunked", alone=True)
    setting = setting_of(request)
    with Progress() as progress:
        found = choice(request, workers, progress.runs)
    best = found[0]
    usual = next(one for one in found if one.words == _USUAL)
    if options.json:
        tried = [{"settings": one.words, **_values(one.bands)} for one in found]
        gains = {n: best.bands[n].mean - usual.bands[n].mean for n in _WEIGHED}
        head = _head(options, request, [setting])
        print_json({**head, "chosen": best.words, "over_chunked_512": gains, "tried": tried})
        return 0
    rows = [["", *_WEIGHED]]
    rows += [[one.words, *(_short(one.bands[n].mean) for n in _WEIGHED)] for one in found]
    why = "by fewest missed objectives, then TTFT x TBT"
    if not setting.model.experts:
        why += "; a dense model is not read by groups of layers (arXiv 2510.08055, section 5.13)"
    changes = (
        f"{n} {_short(usual.bands[n].mean)} -> {_short(best.bands[n].mean)}" for n in _WEIGHED
    )
    print("\n".join([*_title(options, request, [setting]), *_aligned(rows), ""]))
    print(f"chosen: {best.words} ({why})")
    print(f"over {_USUAL}: {', '.join(changes)}")
    return 0


def _record(options: argparse.Namespace, plan: Sequence[ScheduleRequest]) -> None:
    """Write the timelines of the first seed of each policy and rate."""
    timelines = []
    for own, name in zip(plan, _names(plan), strict=True):
        rate = "" if own.rate is None else f", {own.rate:g} requests a second"
        found = simulated(setting_of(own), 0)
        timelines.append(simulated_timeline(found, f"{name}{rate}"))
    facts = {"requests": options.requests, "policies": ", ".join(o.policy for o in plan)}
    where = ", ".join(dict.fromkeys(own.device for own in plan))
    told = options.model, where, facts, timelines, Diagnostics()
    write_run(Path(options.record), "simulated server", *told)


def _requests(plan: Sequence[ScheduleRequest]) -> str:
    """The requests of the first seed as CSV, those of each policy, rate, device and chunk behind
    one another."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("policy", "rate", "device", "chunk", *COLUMNS))
    for own in plan:
        given = ("" if value is None else value for value in (own.rate, own.device, own.chunk))
        of = own.policy, *given
        writer.writerows((*of, *row) for row in trip_rows(simulated(setting_of(own), 0)))
    return stream.getvalue()


# --- pictures


def _draw(plots: ModuleType, folder: Path, found: Found) -> None:
    """Write the pictures: attainment and latency by rate, and tokens over time of the first seed at
    the last rate."""
    curves: dict[str, list[tuple[float, dict[str, Band]]]] = {}
    last: dict[str, ScheduleRequest] = {}
    for (own, bands), name in zip(found, _names([own for own, _ in found]), strict=True):
        curves.setdefault(name, []).append((_rate(own), bands))
        last[name] = own
    runs = {name: simulated(setting_of(own), 0) for name, own in last.items()}
    pictures = {
        "attainment.svg": plots.attainment_by_rate(curves),
        "frontier.svg": plots.latency_frontier(curves),
        "timeline.svg": plots.token_timeline(runs),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("unwritable", f"'{folder}' cannot be made: {error.strerror}")
    for name, text in pictures.items():
        write_text(folder / name, text)


def _rate(request: ScheduleRequest) -> float:
    """Requests per second, of a trace the mean one. Raises ``bad-argument`` where all come at the
    same time."""
    rate = setting_of(request).load.mean_rate
    if rate is None:
        words = f"the requests of '{request.trace}' come all at once"
        fail("bad-argument", f"--plots draws by requests per second, and {words}")
    return rate


# --- text and JSON


def _object(
    options: argparse.Namespace, places: Sequence[Setting], found: Found
) -> dict[str, object]:
    """Metrics by name for one policy at one rate; for several policies alone under ``policies``,
    and for several rates, devices or chunks a list of ``results``."""
    head = _head(options, found[0][0], places)
    if len(found) == 1:
        return {**head, "policy": found[0][0].policy, **_values(found[0][1])}
    if len({own.policy for own, _ in found}) == len(found):
        return {**head, "policies": {own.policy: _values(bands) for own, bands in found}}
    results = []
    for own, bands in found:
        of = {"policy": own.policy, "rate": own.rate, "device": own.device, "chunk": own.chunk}
        results.append({**of, **_values(bands)})
    return {**head, "results": results}


def _head(
    options: argparse.Namespace, request: ScheduleRequest, places: Sequence[Setting]
) -> dict[str, object]:
    """What was simulated; ``cv`` and ``seeds`` are null where nothing is drawn. Of several devices
    what differs from one to the other is a list."""
    rates, first = options.rate or [None], places[0]

    def of_each(value: Callable[[Setting], object]) -> object:
        found = [value(place) for place in places]
        return found[0] if len(found) == 1 else found

    return {
        "model": options.model,
        "device": of_each(lambda place: place.device.name),
        "gpus": of_each(lambda place: place.gpus),
        "trace": options.trace,
        "arrivals": "trace" if first.load.rate is None else "drawn",
        "rate": rates[0] if len(rates) == 1 else rates,
        "cv": None if first.load.rate is None else first.load.cv,
        "requests": first.load.requests,
        "long_chunk": options.long_chunk,
        "long_prompts": (options.long_prompts or 1) if options.long_chunk else None,
        "seeds": None if first.load.rate is None else len(request.runs),
        "collectives": of_each(lambda one: one.collectives.policy if one.collectives else None),
        "prefill_gpus": of_each(lambda place: place.reading_gpus or None),
        "kv_transfer": ("streamed" if first.streamed else "whole") if first.reading_gpus else None,
        "prefix": options.prefix or ("trace" if first.load.prefixes else None),
        "experts": options.experts if first.model.experts else None,
        "kv_bytes_per_token": of_each(_token_bytes),
        "positions": first.model.positions,
        "requests_beyond_positions": _longer_requests(first),
        "weights": options.weights or None,
        "expert_weights": options.expert_weights or options.weights or None,
        "slo": asdict(first.objective),
    }


def _values(bands: dict[str, Band]) -> dict[str, object]:
    return {name: asdict(own) for name, own in bands.items()}


def _by_metric(found: Found) -> list[list[str]]:
    """A row for each metric, a column for each policy; the band only where there are several
    runs."""
    several = len(found[0][0].runs) > 1
    what, cell = (": mean (5 % .. 95 %)", _cell) if several else ("", _value)
    rows = [["", *(f"{name}{what}" for name in _names([own for own, _ in found]))]]
    return rows + [[m, *(cell(bands[m]) for _, bands in found)] for m in found[0][1]]


def _by_plan(found: Found) -> list[list[str]]:
    """A row for each policy at each rate, of each chunk and on each device, means of the metrics
    that policies are weighed by."""
    rows = [["", *_WEIGHED]]
    for (own, bands), name in zip(found, _names([own for own, _ in found]), strict=True):
        rate = "" if own.rate is None else f" at {own.rate:g}/s"
        rows.append([name + rate, *(_short(bands[m].mean) for m in _WEIGHED)])
    return rows


def _title(
    options: argparse.Namespace, request: ScheduleRequest, places: Sequence[Setting]
) -> list[str]:
    """What was simulated, in words."""
    first = places[0]
    rates = ", ".join(f"{rate:g}" for rate in options.rate or [])
    when = f"{rates} requests/s" if rates else "arrivals of the trace"
    if rates and first.load.replaces_arrivals:
        when += " in the place of the arrivals of the trace"
    if first.load.prefixes:
        when += f", prompts that begin with {options.prefix or 'what the trace says'} in common"
    runs = f"{len(request.runs)} seeds" if rates else "one run, since nothing is drawn"
    goal, servers, tokens = first.objective, [], []
    for place in places:
        gpus = f"{place.gpus} GPU{'s' if place.gpus > 1 else ''} of {place.device.name}"
        sums = f", collectives {place.collectives.policy}" if place.collectives else ""
        servers.append(gpus + sums)
        of = "" if len(places) == 1 else f" of {place.device.name}"
        tokens.append(
            f"a token takes {_token_bytes(place)} bytes of caches, on all GPUs{of} that decode "
            "together"
        )
    sums = ", whole experts on each GPU" if first.model.whole_experts else ""
    sums += f", weights in {options.weights}" if options.weights else ""
    sums += f", experts in {options.expert_weights}" if options.expert_weights else ""
    return [
        f"{first.model.name} on {'; on '.join(servers)}{sums}, {options.trace}, {when}, "
        f"{first.load.requests} requests, {runs}",
        *tokens,
        *_longer(first),
        f"a request is in time when its first token takes {goal.ttft_s:g} s and no other more than "
        f"{goal.tbt_ms:g} ms",
        "",
    ]


def _longer(setting: Setting) -> list[str]:
    """How many requests of the first run have more tokens than the model has positions; nothing
    where none has."""
    count, model = _longer_requests(setting), setting.model
    if not count:
        return []
    return [
        f"{count} of {setting.load.requests} requests of the first run have more tokens than the "
        f"{model.positions} positions that {model.name} is made for: simulated all the same"
    ]


def _longer_requests(setting: Setting) -> int:
    return len(setting.longer(setting.arrivals(0)))


def _token_bytes(setting: Setting) -> int:
    """Bytes that the caches of all layers keep of a token, on the GPUs together that continue
    requests."""
    pool = setting.gpus
    if setting.policy.disaggregated:
        pool -= setting.reading_gpus
    return setting.model.on(pool).kv_bytes * len(setting.model.layers)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]


def _cell(own: Band) -> str:
    return f"{_short(own.mean)} ({_short(own.low)} .. {_short(own.high)})"


def _value(own: Band) -> str:
    return _short(own.mean)


def _short(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"

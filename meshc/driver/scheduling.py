"""Questions to the serving simulator: what a person asks for, checked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshc.cost.serving_costs import ServingCosts
from meshc.devices import Device, device
from meshc.driver.served_shapes import served_model
from meshc.serving.best_policy import Candidate, chosen
from meshc.serving.comparing import (
    Band,
    Collectives,
    Load,
    Setting,
    compared,
    costs_of,
    iteration_costs,
)
from meshc.serving.group_counts import ByDoubling, ByLatency, ByLength, Fixed, GroupCount
from meshc.serving.latency import LongestIteration
from meshc.serving.lengths import NOTHING_IN_COMMON, WORKLOADS, Common, Trace
from meshc.serving.metrics import Objective
from meshc.serving.policies import for_model, policy, with_long_prompts
from meshc.serving.stored_weights import stored
from meshc.serving.traces import MAX_TOKENS, read_trace
from meshc.support.diagnostics import fail
from meshc.support.workers import IN_TURN, Watch, Workers, unwatched

TTFT_S = {"arxiv": 10.0}
"""Objectives of first tokens by workload, for others 5 s; with 125 ms between tokens these are the
ones of arXiv 2510.08055, Table 5."""

_USUAL_SEEDS = 10
_IN_PLACE = "leave it out; or --rate draws arrivals, and lengths from the trace, in their place"
_MOST_REQUESTS = 1_000_000
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class ScheduleRequest:
    """What to simulate. ``groups`` is a number, ``length``, ``length:TOKENS``, ``doubling:N`` or
    ``latency:MS``; empty for the policy's own. ``gpus`` 0 takes all of the device, ``requests`` 0
    takes 1000, or all of a trace that says when they come. ``seeds`` and ``cv`` are of what is
    drawn, None for 10 and 1; without a ``rate`` nothing is, and there is one run. Objectives that
    are None are those of the workload. ``long_chunk`` and ``long_prompts`` are those of
    :func:`with_long_prompts`. ``collectives`` is empty for those that the device is costed with
    unless told. ``whole_experts``: each GPU has some of the experts, else a share of the features
    of each. ``prefix``: what all prompts begin with, as tokens (``2048``) or as a share of each
    (``30%``), empty for what the trace says. ``prefill_gpus`` are those of a disaggregated policy
    that read prompts, None for half, and ``streamed`` says that keys and values leave them while a
    prompt is read. ``weights`` and ``expert_weights`` are formats of
    :mod:`stored_weights <meshc.serving.stored_weights>`, empty for 16 bits."""

    model: str
    device: str
    trace: str
    policy: str = "chunked"
    rate: float | None = None
    requests: int = 0
    seeds: int | None = None
    chunk: int | None = None
    long_chunk: int | None = None
    long_prompts: int | None = None
    groups: str = ""
    gpus: int = 0
    cv: float | None = None
    ttft_s: float | None = None
    tbt_ms: float | None = None
    force: bool = False
    collectives: str = ""
    in_switch: bool = True
    whole_experts: bool = False
    prefix: str = ""
    prefill_gpus: int | None = None
    streamed: bool = False
    weights: str = ""
    expert_weights: str = ""

    @property
    def runs(self) -> range:
        """The seeds of its runs."""
        drawn = _USUAL_SEEDS if self.seeds is None else self.seeds
        return range(1 if self.rate is None else drawn)


def setting_of(request: ScheduleRequest) -> Setting:
    """The setting that ``request`` describes.

    Errors: ``bad-argument``, ``dense-layered``, and those of the model, the device and the trace.
    """
    _check(request)
    model = stored(served_model(request.model), request.weights, request.expert_weights)
    where = device(request.device)
    gpus = request.gpus or where.cores
    workload = _workload(request.trace)
    collectives = _collectives(request, where)
    if request.whole_experts:
        if collectives is None:
            fail(
                "bad-argument",
                f"costs of '{where.name}' are fitted to servers whose GPUs share each expert",
                help="cost the kernels one by one: --collectives baseline, on h100x8 for example",
            )
        model = model.with_whole_experts()
    cost = iteration_costs(model, where, gpus, collectives)
    groups = groups_of(request.groups, cost) if request.groups else None
    chosen = policy(request.policy, request.chunk, groups)
    chosen = with_long_prompts(chosen, request.long_chunk, request.long_prompts)
    chosen = for_model(chosen, model.experts, request.force)
    objective = Objective(
        request.ttft_s if request.ttft_s is not None else TTFT_S.get(request.trace, 5.0),
        request.tbt_ms if request.tbt_ms is not None else 125.0,
    )
    cv = 1.0 if request.cv is None else request.cv
    common = _common(request, workload)
    load = Load(workload, request.rate, _count(request, workload), cv, common)
    reading = _reading_gpus(request, gpus) if chosen.disaggregated else 0
    pools = reading, request.streamed
    found = Setting(model, where, gpus, chosen, load, objective, collectives, *pools)
    costs_of(found)
    return found


def _collectives(request: ScheduleRequest, where: Device) -> Collectives | None:
    """Those that ``request`` names; None where costs are fitted to published servers, which is the
    default of a device that has such numbers."""
    fitted = "layer_seconds" in where.numbers
    if not request.collectives and (fitted or "collective_blocks" not in where.numbers):
        return None
    return Collectives(request.collectives or "baseline", request.in_switch)


def simulated_bands(
    requests: Sequence[ScheduleRequest],
    workers: Workers = IN_TURN,
    watch: Watch = unwatched,
) -> list[dict[str, Band]]:
    """The band of every metric over seeds 0, 1, .. for each request, which all have as many seeds.

    Errors: those of :func:`setting_of` and of ``workers``; ``request-too-large``.
    """
    settings = [setting_of(request) for request in requests]
    return compared(settings, requests[0].runs, workers, watch)


def choice(
    request: ScheduleRequest, workers: Workers = IN_TURN, watch: Watch = unwatched
) -> list[Candidate]:
    """Policies for the server, the load and the objective of ``request``, the best first.

    Errors: those of :func:`setting_of` and of ``workers``; ``request-too-large``.
    """
    return chosen(setting_of(request), request.runs, workers, watch)


def _check(request: ScheduleRequest) -> None:
    """Raise ``bad-argument`` for a number out of range."""
    ranges = (
        ("--rate", request.rate, 1e-6, 1e6),
        ("--seeds", request.seeds, 1, _MOST_SEEDS),
        ("--requests", request.requests or 1, 1, _MOST_REQUESTS),
        ("--cv", request.cv, 0.01, 100),
        ("--slo-ttft", request.ttft_s, 1e-6, 1e6),
        ("--slo-tbt", request.tbt_ms, 1e-3, 1e9),
    )
    for flag, value, low, high in ranges:
        if value is not None and not low <= value <= high:
            fail("bad-argument", f"{flag} is {value}, not {low:g} to {high:g}")


def _reading_gpus(request: ScheduleRequest, gpus: int) -> int:
    """GPUs that only read prompts, of so many in all."""
    found = request.prefill_gpus
    if found is None and gpus % 2:
        fail(
            "bad-argument",
            f"{gpus} GPUs are no two pools of as many each",
            help="--prefill-gpus says how many read prompts" if gpus > 1 else "take more GPUs",
        )
    found = gpus // 2 if found is None else found
    if not 0 < found < gpus:
        fail("bad-argument", f"--prefill-gpus is {found}, not 1 to {gpus - 1}")
    return found


def _common(request: ScheduleRequest, workload: Trace | str) -> Common:
    """What all prompts begin with by ``--prefix``."""
    text = request.prefix
    if not text:
        return NOTHING_IN_COMMON
    if isinstance(workload, Trace) and workload.prefixes is not None:
        words = f"'{request.trace}' says what its prompts begin with"
        fail("bad-argument", f"--prefix is {text}, but {words}", help="leave it out")
    number = text.removesuffix("%")
    most = 100 if text.endswith("%") else MAX_TOKENS
    if not (number.isascii() and number.isdigit() and len(number) < 9):
        number = "0"
    if not 1 <= int(number) <= most:
        fail(
            "bad-argument",
            f"--prefix cannot be '{text[:40]}'",
            help=f"give tokens, 1 to {MAX_TOKENS}, or a share of each prompt, such as 30%",
        )
    return Common(share=int(number) / 100) if text.endswith("%") else Common(int(number))


def _workload(text: str) -> Trace | str:
    if text in WORKLOADS:
        return text
    if not Path(text).exists() and Path(text).suffix != ".csv":
        fail(
            "bad-argument",
            f"there is no trace '{text}'",
            help=f"give a CSV file, or one of {', '.join(WORKLOADS)}",
        )
    return read_trace(Path(text))


def _count(request: ScheduleRequest, workload: Trace | str) -> int:
    """How many requests are simulated."""
    timed = isinstance(workload, Trace) and workload.seconds is not None
    if request.rate is not None:
        return request.requests or 1000
    if not timed:
        fail(
            "bad-argument",
            f"'{request.trace}' does not say when requests come",
            help="give their number per second: --rate 1.3",
        )
    for flag, value in (("--seeds", request.seeds), ("--cv", request.cv)):
        if value is not None and (flag, value) != ("--seeds", 1):
            words = f"the arrivals are those of '{request.trace}', so that nothing is drawn"
            fail("bad-argument", f"{flag} is {value:g}, but {words}", help=_IN_PLACE)
    assert isinstance(workload, Trace)
    known = len(workload.pairs)
    if request.requests > known:
        words = f"'{request.trace}' says when {known} come"
        fail("bad-argument", f"--requests is {request.requests}, but {words}", help=_IN_PLACE)
    return request.requests or known


def groups_of(text: str, cost: ServingCosts | None = None) -> GroupCount:
    """The rule that ``text`` spells; one by latency needs ``cost``. Errors: ``bad-argument``."""
    word, _, number = text.partition(":")
    if text == "length":
        return ByLength()
    if word == "length" and number.isdigit() and 1 <= int(number) <= 1_000_000:
        return ByLength(int(number))
    if text.isdigit() and 1 <= int(text) <= 1024:
        return Fixed(int(text))
    if word == "doubling" and number.isdigit() and 1 <= int(number) <= 1024:
        return ByDoubling(int(number))
    if cost and word == "latency" and number.isdigit() and 1 <= int(number) <= 1_000_000:
        return ByLatency(int(number) / 1e3, len(cost.model.layers), LongestIteration(cost))
    fail(
        "bad-argument",
        f"'{text}' is no number of groups",
        help="write 16, length:512 (tokens), doubling:16"
        + (", or latency:50 (milliseconds)" if cost else ""),
    )

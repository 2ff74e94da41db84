"""TokenWeave's figures: schedules of an iteration on a node of GPUs, and single collectives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from meshc.cost.nodes.iteration_batches import Batch, prompts
from meshc.cost.nodes.overlap import Schedule, baseline, fused_only
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import best_schedule, threshold_tokens
from meshc.cost.predictions import inputs_of
from meshc.devices import WatchedDevice, device
from meshc.driver.reproduction.compared import (
    Compared,
    Section,
    claimed,
    compared,
    not_modelled,
    role_of,
)
from meshc.driver.served_shapes import served_model
from meshc.published import Row, Table, table

PROMPT_TOKENS = 512
"""Tokens of each prompt, where a row is of several."""
ALONE = "no communication"
_SCHEDULES = "schedules of an iteration, kernel by kernel (docs/nodes.md)"
_LATENCIES = {"baseline_ms": "baseline", "alone_ms": ALONE, "tokenweave_ms": "tokenweave"}
_SERVERS = (
    "throughputs of a server whose loads and scheduler are not told in full; `meshc schedule "
    "--collectives tokenweave` simulates one"
)
_KERNELS = {
    "full_rms_norm_us": "norm",
    "multimem_all_reduce_us": "all_reduce",
    "multimem_ar_us": "all_reduce",
    "fused_arln_us": "fused",
}
"""Which cost predicts a column of a microbenchmark."""
_OTHER_KERNELS = "a kernel that no schedule here has"


@cache
def watched(name: str) -> WatchedDevice:
    """A device, which remembers what was asked of it."""
    return device(name).watched()


@cache
def ranks_of(model: str, name: str) -> Ranks:
    """All GPUs of a device."""
    return Ranks(served_model(model), watched(name), watched(name).cores)


def schedule_of(ranks: Ranks, policy: str, batch: Batch) -> Schedule:
    """What a row's ``policy`` does with ``batch``."""
    if policy in (ALONE, "baseline"):
        return baseline(ranks, batch, communicates=policy != ALONE)
    return (fused_only if policy == "fuse-only" else best_schedule)(ranks, batch)


def batch_of(row: Row) -> Batch:
    """The prompts of a row."""
    tokens = row.whole("tokens")
    count = tokens // PROMPT_TOKENS if row.conditions.get("prompts") else 1
    return prompts([tokens // count] * count)


def faster(row: Row) -> float:
    """How many times faster than the baseline the policy of a row is."""
    ranks, batch = ranks_of(row.text("model"), row.text("device")), batch_of(row)
    ours = schedule_of(ranks, row.text("policy"), batch)
    return baseline(ranks, batch).seconds / ours.seconds


def _series(own: Table, row: Row) -> tuple[Row, ...]:
    return own.where(**{k: v for k, v in row.conditions.items() if k != "tokens"})


def figure(name: str) -> Section:
    """A figure of times by which policies are faster."""
    own = table("tokenweave", name)
    rows = [
        compared(
            own, row, "faster", faster(row), role_of(row, "faster", _series(own, row), "tokens")
        )
        for row in own.rows
    ]
    return _section(own, rows, _SCHEDULES)


def latencies() -> Section:
    """Milliseconds of prompts."""
    own = table("tokenweave", "figure-11")

    def rows() -> Iterator[Compared]:
        for row in own.rows:
            ranks = ranks_of(row.text("model"), row.text("device"))
            for metric, policy in _LATENCIES.items():
                if metric in row.values:
                    ms = 1e3 * schedule_of(ranks, policy, batch_of(row)).seconds
                    role = role_of(row, metric, _series(own, row), "tokens")
                    yield compared(own, row, metric, ms, role)

    return _section(own, [*rows()], _SCHEDULES)


def kernels(name: str) -> Section:
    """A microbenchmark of sums and norms of rows of 8192 values, alone on the node."""
    own = table("tokenweave", name)
    ranks = ranks_of("llama-3.3-70b", "h100x8")

    def us(metric: str, tokens: int) -> float | None:
        cost, _, blocks = metric.partition("_ctas_")
        kind = _KERNELS.get(cost)
        if kind == "fused":
            return 1e6 * ranks.fused(tokens, int(blocks or ranks.alone)).seconds
        if kind is None or blocks:
            return None
        return 1e6 * (ranks.norm if kind == "norm" else ranks.all_reduce)(tokens).seconds

    def rows() -> Iterator[Compared]:
        for row in own.rows:
            for metric in row.values:
                found = us(metric, row.whole("tokens"))
                if found is None:
                    yield from not_modelled(own, _OTHER_KERNELS, [row], [metric])
                else:
                    yield compared(own, row, metric, found, "held out")

    notes = (
        "The fixed time and the rate of links of h100x8 are fitted to whole prompts, in which sums "
        "are about 17 % faster than alone; short sums come out too slow by them.",
    )
    return _section(own, [*rows()], "kernels of schedules, alone", notes)


def shares(name: str) -> Section:
    """What sums or norms take of the baseline's prompts, in percent."""
    own = table("tokenweave", name)
    kinds = ("all_reduce",) if name == "figure-1" else ("norm",)

    def share(row: Row) -> float:
        found = baseline(ranks_of(row.text("model"), "h100x8"), batch_of(row))
        spans = [span for span in found.spans if span.name in kinds]
        return 100 * sum(span.stop - span.start for span in spans) / found.seconds

    rows = [compared(own, row, "share", share(row), "held out") for row in own.rows]
    return _section(own, rows, _SCHEDULES)


def throughputs(name: str) -> Section:
    """Served tokens per second."""
    own = table("tokenweave", name)
    return _section(own, [*not_modelled(own, _SERVERS)], "nothing")


def claims() -> Section:
    """What the text says."""
    own = table("tokenweave", "claims")
    llama = ranks_of("llama-3.3-70b", "h100x8")
    most = max(
        faster(row)
        for row in table("tokenweave", "figure-13").rows
        if row.text("policy") == "tokenweave"
    )
    cut = threshold_tokens(llama)
    found = {
        "latency_speedup_max": (f"{most:.2f}", abs(most / 1.28 - 1) < 0.05),
        "min_tokens_overlap": (f"{cut} tokens", cut is not None and cut <= 1024),
    }
    why = "a fact of the hardware, a number of the device, or what other figures say in numbers"
    return _section(own, [*claimed(own, found, lambda name: why)], _SCHEDULES)


def _section(own: Table, rows: list[Compared], by: str, notes: tuple[str, ...] = ()) -> Section:
    names = {str(row.conditions["device"]) for row in own.rows if "device" in row.conditions}
    inputs = tuple(
        one
        for name in sorted(names or {"h100x8"})
        for one in inputs_of(watched(name), watched(name).asked)
    )
    return Section(f"tokenweave-{own.name}", own, by, tuple(rows), inputs, notes=notes)


FIGURES = ("figure-13", "figure-22", "figure-19", "figure-27", "figure-21")
MICROBENCHMARKS = ("figure-4", "figure-5", "figure-7", "figure-10")
SHARES = ("figure-1", "figure-3")
THROUGHPUTS = ("throughput-12", "throughput-13")

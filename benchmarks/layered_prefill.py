"""The serving simulator beside the published measurements of layered prefill (arXiv 2510.08055).

    python benchmarks/layered_prefill.py [--requests 100] [--seeds 20] [--processes 2] [--limits]

prints a table for each of the paper's that the simulator predicts: predicted beside published, the
error of each row, and which values were used to calibrate. A star marks a calibrated value; errors
in the summary are of the others. `--limits` adds the rates at which each policy leaves 90 % of its
service level (Figure 3), which takes minutes.

The paper does not say how many requests were measured. Latency tables and energy are simulated with
100 (`--requests`), the number of its Table 7 and of the commands that its released code prints
beside results. That code measures the rates of Figure 3 for 600 s each (its `benchmark_batch.py` of
2025-09-19), so that many requests come here too, and for loads per request.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from meshc.cost.expert_coverage import Coverage
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import device
from meshc.driver.scheduling import ScheduleRequest, setting_of
from meshc.driver.served_models import served_model
from meshc.serving.comparing import Band, compared
from meshc.serving.workers import Processes

FACTS = tomllib.loads(
    (Path(__file__).parents[1] / "tests" / "data" / "layered_prefill.toml").read_text("utf-8")
)
DEVICE = "h100x2"
QWEN = "qwen3-30b-a3b"
COVERAGE_FITTED = (1, 4, 16, 64, 256)
CHUNKS_FITTED = (512, 2048, 8192)
RUN_S = 600.0
"""Seconds in which requests of a long run come."""

TBT_MS = {QWEN: 125.0, "qwen3-8b": 125.0, "gpt-oss-20b": 100.0}
METRICS = (
    "ttft_mean_s", "ttft_p95_s", "ttft_p99_s", "tbt_mean_ms", "tbt_p99_ms", "tbt_std_ms", "jain",
    "energy_mj_per_token",
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """A predicted value beside a published one."""

    what: str
    predicted: float
    published: float
    calibrated: bool = False
    band: Band | None = None

    @property
    def error(self) -> float:
        """Relative to the published value."""
        return self.predicted / self.published - 1

    @property
    def inside(self) -> bool:
        """Whether the published value lies in the band of 5 % to 95 % over seeds."""
        return self.band is not None and self.band.low <= self.published <= self.band.high


def coverage() -> list[Compared]:
    """Table 1."""
    law = Coverage(128, 8)
    return [
        Compared(f"batch {n}", 100 * law.of(int(n)), value, int(n) in COVERAGE_FITTED)
        for n, value in FACTS["coverage"].items()
    ]


def chunks() -> list[Compared]:
    """Figure 2: a prompt of 8192 tokens in chunks."""
    cost = IterationCost(served_model(QWEN), device(DEVICE), 2)
    found = []
    for text, row in FACTS["chunks"].items():
        size = int(text)
        loads = [cost.iteration(0, 0, [(a, a + size)], range(48)) for a in range(0, 8192, size)]
        fitted = size in CHUNKS_FITTED
        seconds = sum(load.seconds for load in loads)
        gigabytes = sum(load.expert_bytes for load in loads) / 1e9
        found.append(Compared(f"chunk {size} ms", 1e3 * seconds, row["total_ms"], fitted))
        found.append(Compared(f"chunk {size} GB", gigabytes, row["expert_gb"], fitted))
    return found


def request_of(row: dict[str, object], requests: int | None = None) -> ScheduleRequest:
    """The simulation of a published row, with ``requests`` or as many as come in a long run. The
    paper's code reads at most 8192 prompt tokens together and doubles the number of groups with
    their number: the policy ``combined`` here."""
    model = str(row.get("model", QWEN))
    layered = row["policy"] == "layered"
    trace = str(row.get("trace", "arxiv"))
    return ScheduleRequest(
        model=model,
        device=DEVICE,
        trace=trace,
        policy="combined" if layered else str(row["policy"]),
        rate=float(str(row["rate"])),
        requests=requests or int(RUN_S * float(str(row["rate"]))),
        chunk=None if layered else int(str(row.get("chunk", 512))),
        groups=f"doubling:{row.get('groups', 16)}" if layered else "",
        gpus=int(str(row.get("gpus", 0))),
        cv=float(str(row.get("cv", 1.0))),
        tbt_ms=TBT_MS[model],
        force=model == "qwen3-8b",
    )


def bands_of(
    rows: Sequence[dict[str, object]], requests: int | None, seeds: int, processes: int
) -> list[dict[str, Band]]:
    """Bands of every metric for published rows."""
    settings = [setting_of(request_of(row, requests)) for row in rows]
    return compared(settings, range(seeds), Processes(processes))


def title(row: dict[str, object]) -> str:
    """What a row is called."""
    how = f"chunk {row['chunk']}" if "chunk" in row else f"groups {row['groups']}"
    burst = f" cv {row['cv']}" if "cv" in row else ""
    return f"T{row['table']} {row.get('model', QWEN)} {row['policy']} {how} {row['rate']}/s{burst}"


def serving(
    requests: int, seeds: int, processes: int
) -> list[tuple[dict[str, object], list[Compared]]]:
    """Tables 2, 6, 8, 10, 11, 12 and section 5.13."""
    rows = FACTS["serving"]
    found = []
    for row, bands in zip(rows, bands_of(rows, requests, seeds, processes), strict=True):
        values = [
            Compared(
                name, bands[name].mean, row[name], name in row.get("calibrated", ()), bands[name]
            )
            for name in METRICS
            if name in row
        ]
        found.append((row, values))
    return found


def loads(seeds: int, processes: int) -> list[Compared]:
    """Experts loaded per request (Table 2), and the reduction by layered prefill (Table 7), in
    percent: arXiv at 1.3, ShareGPT at 4.2 requests per second."""
    rows = [row for row in FACTS["serving"] if "expert_gb_per_request" in row]
    found = [
        Compared(
            f"T2 GB per request, chunk {row['chunk']}",
            bands["expert_load_bytes_per_request"].mean / 1e9,
            row["expert_gb_per_request"],
        )
        for row, bands in zip(rows, bands_of(rows, None, seeds, processes), strict=True)
    ]
    for trace, rate in (("arxiv", 1.3), ("sharegpt", 4.2)):
        pair = [
            {"trace": trace, "rate": rate, "policy": "chunked"},
            {"trace": trace, "rate": rate, "policy": "layered"},
        ]
        chunked, layered = (
            bands["expert_load_bytes"].mean for bands in bands_of(pair, 100, seeds, processes)
        )
        published = 100 * FACTS["reduction"][trace]
        name = f"T7 reduction of loads, {trace} (%)"
        found.append(Compared(name, 100 * (1 - layered / chunked), published))
    return found


def energy_changes(
    rows: Sequence[tuple[dict[str, object], list[Compared]]],
) -> Iterator[Compared]:
    """Energy per token of layered prefill as a share of that of chunked prefill, Table 8."""
    of = [
        (row, next(v for v in values if v.what == "energy_mj_per_token"))
        for row, values in rows
        if row["table"] == "8"
    ]
    for row, value in of:
        if row["policy"] == "layered":
            base = next(
                v
                for own, v in of
                if own["policy"] == "chunked" and own.get("model") == row.get("model")
            )
            name = f"{title(row)}: energy over chunked"
            predicted = value.predicted / base.predicted
            yield Compared(name, predicted, value.published / base.published)


def limit(row: dict[str, object], policy: str, seeds: int, processes: int) -> float:
    """The rate at which attainment leaves 90 %, between rates 5 % apart: from the published one up
    while it is kept, or down until it is."""

    def attained(step: int) -> tuple[float, float]:
        rate = float(str(row[policy])) * (1 + 0.05 * step)
        setting = setting_of(request_of({**row, "policy": policy, "rate": rate}))
        (bands,) = compared([setting], range(seeds), Processes(processes))
        return rate, bands["slo_attainment"].mean

    here = attained(0)
    way = 1 if here[1] >= 0.9 else -1
    for step in range(way, 11 * way, way):
        there = attained(step)
        low, high = (here, there) if way > 0 else (there, here)
        if low[1] >= 0.9 > high[1]:
            return low[0] + (high[0] - low[0]) * (low[1] - 0.9) / (low[1] - high[1])
        here = there
    return here[0]


def limits(seeds: int, processes: int) -> Iterator[Compared]:
    """Figure 3."""
    for row in FACTS["limits"]:
        for policy in ("chunked", "layered"):
            name = f"F3 {row.get('model', QWEN)} {row['trace']} {policy}: rate at 90 %"
            yield Compared(name, limit(row, policy, seeds, processes), row[policy])


def summary(rows: Sequence[tuple[dict[str, object], list[Compared]]]) -> Iterator[str]:
    """Mean errors of what was not calibrated, as the targets are stated."""
    for model in (QWEN, "gpt-oss-20b"):
        for metric in ("ttft_mean_s", "tbt_mean_ms", "tbt_p99_ms"):
            errors = [
                abs(value.error)
                for row, values in rows
                for value in values
                if (row["policy"], row.get("model", QWEN), value.what) == ("layered", model, metric)
            ]
            yield f"layered rows of {model}, {metric}: {mean(errors):.1%} over {len(errors)} rows"
    near = [
        value
        for row, values in rows
        for value in values
        if row["policy"] == "chunked" and value.what == "ttft_mean_s" and row.get("chunk") == 512
        if row.get("model", QWEN) == QWEN
    ]
    inside = sum(value.inside for value in near)
    yield f"chunked TTFT near saturation: {inside} of {len(near)} published values inside the band"


def printed(values: Sequence[Compared], heading: str) -> None:
    """A table on stdout."""
    print(f"\n{heading}")
    for value in values:
        star = "*" if value.calibrated else " "
        band = f"  [{value.band.low:.4g} .. {value.band.high:.4g}]" if value.band else ""
        print(
            f"  {value.what:<62}{value.predicted:>10.4g}{value.published:>10.4g}"
            f"{value.error:>+8.1%}{star}{band}"
        )


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limits", action="store_true")
    given = parser.parse_args()
    print("predicted, published, error; * was calibrated on; [5 % .. 95 % over seeds]")
    table1 = coverage()
    printed(table1, "Table 1: share of experts loaded by a decode batch (%)")
    held = [abs(v.error) for v in table1 if not v.calibrated]
    print(f"  held out: {mean(held):.1%} mean, {max(held):.1%} at most")
    printed(chunks(), "Figure 2: a prompt of 8192 tokens in chunks")
    rows = serving(given.requests, given.seeds, given.processes)
    for row, values in rows:
        printed(values, title(row))
    printed(list(energy_changes(rows)), "energy, chunked to layered")
    printed(loads(min(given.seeds, 10), given.processes), "loads of experts")
    if given.limits:
        printed(list(limits(min(given.seeds, 10), given.processes)), "Figure 3")
    print("\nsummary")
    for line in summary(rows):
        print(f"  {line}")


if __name__ == "__main__":
    main()

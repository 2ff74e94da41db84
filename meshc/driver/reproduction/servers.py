"""Layered prefill's tables: the serving simulator beside the published measurements.

The paper does not say how many requests were measured. Latencies and energy are simulated with 100,
the number of its Table 7 and of the commands that its released code prints beside results. That
code measures the rates of Figure 3 for 600 s each (its ``benchmark_batch.py`` of 2025-09-19), so
that many requests come for loads of experts and for rates at which service levels are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from meshc.cost.expert_coverage import Coverage
from meshc.cost.predictions import inputs_of
from meshc.cost.serving_iterations import IterationCost
from meshc.devices import WatchedDevice, device
from meshc.driver.reproduction.compared import (
    Compared,
    Section,
    compared,
    labelled,
    not_modelled,
    role_of,
)
from meshc.driver.scheduling import ScheduleRequest, setting_of
from meshc.driver.served_shapes import served_model
from meshc.published import Row, Scalar, Table, table
from meshc.serving.comparing import Band
from meshc.serving.comparing import compared as bands_over
from meshc.serving.lengths import Trace
from meshc.support.workers import IN_TURN, Watch, Workers, unwatched

DEVICE, QWEN, QWEN_LARGE = "h100x2", "qwen3-30b-a3b", "qwen3-235b-a22b"
LONG_PROMPT = (30_000, 438)
"""Tokens of the prompts of section 5.11, and of answers in the mean of that trace (Table 4)."""
RUN_S = 600.0
"""Seconds in which requests of a long run come."""
TBT_MS = {QWEN: 125.0, "qwen3-8b": 125.0, "gpt-oss-20b": 100.0}
LATENCY_TABLES = ("2", "6", "8", "10", "11", "12", "5.13")
METRICS = {"expert_gb_per_request": ("expert_load_bytes_per_request", 1e-9)}
"""Columns of tables that the simulator calls otherwise, and in what unit."""
_SIMULATED = "the serving simulator (docs/serving.md), means over seeds"
_SPREAD = (
    "Chunked prefill at 1.3 to 1.4 requests/s is at 95 to 100 % of what it can serve: its first "
    "tokens differ by half of their mean from one draw of requests to the next, and only whether "
    "the published value lies inside the band of seeds says anything.",
)

_LARGER = (
    "Requests of sharegpt are those of ten minutes, as in the released code's benchmark: 100 at "
    "3.5/s come within 29 s, and an answer takes 22 s, so that batches never fill. No number is "
    "fitted to these rows, but that choice, and the law of experts where costs are of kernels, "
    "were settled on with their errors in sight.",
    "Numbers of a100x2 are those of h100x2, smaller by what the data sheets say; nothing of an "
    "A100 is fitted.",
)


@dataclass
class Servers:
    """Simulations of published rows: over ``seeds`` runs of ``requests`` each, by ``workers``."""

    seeds: int = 20
    requests: int = 100
    workers: Workers = IN_TURN
    watch: Watch = unwatched
    _bands: dict[ScheduleRequest, dict[str, Band]] = field(default_factory=dict)

    def coverage(self) -> Section:
        """Table 1."""
        own, law = table("layered_prefill", "1"), Coverage(128, 8)
        rows = [
            compared(
                own,
                row,
                "share",
                100 * law.of(row.whole("batch")),
                role_of(row, "share", own.rows, "batch"),
            )
            for row in own.rows
        ]
        by = "a law of skewed routing (`meshc/cost/expert_coverage.py`)"
        return Section("layered-1", own, by, tuple(rows))

    def chunks(self) -> Section:
        """Figure 2: a prompt of 8192 tokens in chunks."""
        own = table("layered_prefill", "figure-2")
        cost = IterationCost(served_model(QWEN), watched(), 2)

        def rows() -> Iterator[Compared]:
            for row in own.rows:
                size = row.whole("chunk")
                spans = [(at, at + size) for at in range(0, 8192, size)]
                loads = [cost.iteration(0, 0, [span], range(48)) for span in spans]
                found = {
                    "total_ms": 1e3 * sum(load.seconds for load in loads),
                    "expert_gb": sum(load.expert_bytes for load in loads) / 1e9,
                }
                for metric, value in found.items():
                    role = role_of(row, metric, own.rows, "chunk")
                    yield compared(own, row, metric, value, role)
                why = "kernels of experts and others are one sum in an iteration's cost"
                yield from not_modelled(own, why, [row], ["other_ms"])

        return _section(own, [*rows()], "costs of iterations (docs/serving.md)")

    def latencies(self, name: str) -> Section:
        """A table of simulated servers."""
        own = table("layered_prefill", name)

        def rows() -> Iterator[Compared]:
            for row in own.rows:
                for metric in row.values:
                    band = self.band(row, metric)
                    here = compared(own, row, metric, band.mean, role_of(row, metric))
                    yield here if not near_saturation(row, metric) else _inside(here, band)

        self._simulated([self._simulation(row) for row in own.rows])
        return _section(own, [*rows()], f"{_SIMULATED}: {self.seeds}", _SPREAD)

    def band(self, row: Row, metric: str, long: bool = False) -> Band:
        """The band of a metric of a row, in the row's unit; loads of experts by a ``long`` run."""
        known, scale = METRICS.get(metric, (metric, 1.0))
        simulation = self._simulation(row, long or metric in METRICS)
        found = self._simulated([simulation])[0][known]
        return Band(*(scale * x for x in (found.mean, found.low, found.high)))

    def _simulation(self, row: Row, long: bool = False) -> ScheduleRequest:
        """The simulation of a row; a ``long`` one has the requests of :data:`RUN_S`."""
        return request_of(row, 0 if long else self.requests)

    def _simulated(self, asked: Sequence[ScheduleRequest]) -> list[dict[str, Band]]:
        """Bands of every metric for each simulation; those that are missing are run at once."""
        missing = [one for one in dict.fromkeys(asked) if one not in self._bands]
        for seeds in sorted({self._seeds(one) for one in missing}):
            some = [one for one in missing if self._seeds(one) == seeds]
            settings = [setting_of(one) for one in some]
            found = bands_over(settings, range(seeds), self.workers, self.watch)
            self._bands.update(zip(some, found, strict=True))
        return [self._bands[one] for one in asked]

    def _seeds(self, asked: ScheduleRequest) -> int:
        """Runs of a simulation: a fifth where they are longer than the tables'."""
        return self.seeds if asked.requests <= self.requests else max(self.seeds // 5, 1)

    def energies(self) -> Section:
        """Energy of layered prefill over that of chunked prefill, from Table 8."""
        own = table("layered_prefill", "8")

        def rows() -> Iterator[Compared]:
            metric = "energy_mj_per_token"
            for row in own.where(policy="layered"):
                model = row.text("model", QWEN)
                base = next(
                    r for r in own.where(policy="chunked") if r.text("model", QWEN) == model
                )
                ours = self.band(row, metric).mean / self.band(base, metric).mean
                published = row.number(metric) / base.number(metric)
                yield Compared(
                    labelled(row), "energy over chunked", "", published, ours, "held out"
                )

        return _section(own, [*rows()], _SIMULATED, name="layered-8-energy")

    def savings(self) -> Section:
        """Table 7: loads of experts that layered prefill saves, in percent."""
        own = table("layered_prefill", "7")

        def rows() -> Iterator[Compared]:
            for row in own.rows:
                pair = [
                    self._simulation(replaced(row, policy=policy))
                    for policy in ("chunked", "layered")
                ]
                chunked, layered = (
                    bands["expert_load_bytes"].mean for bands in self._simulated(pair)
                )
                saved = 100 * (1 - layered / chunked)
                yield compared(own, row, "reduction", saved, "held out")

        return _section(own, [*rows()], _SIMULATED)

    def attainments(self) -> Section:
        """Figure 3: service levels at published rates, by the requests of ten minutes."""
        own = table("layered_prefill", "figure-3")
        runs = self._simulated([self._simulation(row, long=True) for row in own.rows])

        def rows() -> Iterator[Compared]:
            for row, bands in zip(own.rows, runs, strict=True):
                band = bands["slo_attainment"]
                words = f"{100 * band.low:.0f} to {100 * band.high:.0f}"
                at = row.number("attainment")
                holds = 100 * band.low - 1 <= at <= 100 * band.high + 1
                what = labelled(row)
                yield Compared(what, "attainment", "%", at, words, "claim", holds=holds)
                batch = bands["decode_batch_mean"].mean
                yield compared(own, row, "decode_batch", batch, "held out")

        notes = ("Near saturation a share of met objectives falls from all to few within a tenth.",)
        return _section(own, [*rows()], _SIMULATED, notes)

    def limits(self) -> Section:
        """Figure 3: rates at which fewer than 90 % of requests meet their objectives."""
        own = table("layered_prefill", "figure-3-limits")
        rows = [compared(own, row, "rate", self._limit(row), "held out") for row in own.rows]
        return _section(own, rows, _SIMULATED)

    def _limit(self, row: Row) -> float:
        """The rate at which attainment leaves 90 %, between rates 5 % apart: from the published one
        up while it is kept, or down until it is."""
        start = row.number("rate")

        def attained(step: int) -> tuple[float, float]:
            rate = start * (1 + 0.05 * step)
            asked = self._simulation(replaced(row, rate=rate), long=True)
            return rate, self._simulated([asked])[0]["slo_attainment"].mean

        here = attained(0)
        way = 1 if here[1] >= 0.9 else -1
        for step in range(way, 11 * way, way):
            there = attained(step)
            low, high = (here, there) if way > 0 else (there, here)
            if low[1] >= 0.9 > high[1]:
                return low[0] + (high[0] - low[0]) * (low[1] - 0.9) / (low[1] - high[1])
            here = there
        return here[0]

    def larger(self) -> Section:
        """Table 9: other models and GPUs."""
        own = table("layered_prefill", "9")

        def rows() -> Iterator[Compared]:
            for row in own.rows:
                if row.text("model") not in (QWEN, QWEN_LARGE):
                    yield from not_modelled(own, "no built-in model, of weights in fp4", [row])
                    continue
                long = row.text("trace") == "sharegpt"
                for metric in row.values:
                    ours = self.band(row, metric, long).mean
                    yield compared(own, row, metric, ours, "held out")

        by = f"{_SIMULATED}, by kernels of h100x8 (docs/nodes.md) and numbers of a100x2"
        return _section(own, [*rows()], by, (*_SPREAD, *_LARGER))

    def released(self) -> Section:
        """What the released code's page prints."""
        own = table("layered_prefill", "readme")
        why = "prompts were cut at 16,384 tokens in a way that is not told"
        return _section(own, [*not_modelled(own, why)], "nothing")

    def lengths(self) -> Section:
        """Table 4."""
        own = table("layered_prefill", "4")
        why = "given: the laws that prompts and answers are drawn from are fitted to them"
        return _section(own, [*not_modelled(own, why)], "nothing")

    def claims(self) -> Section:
        """What the text says, section 5.11 among it."""
        own = table("layered_prefill", "claims")
        long = {policy: self._long_prompts(policy) for policy in ("layered", "chunked")}
        found = {
            f"ctx30k_0.1rps_ttft_{policy}": bands["ttft_mean_s"].mean
            for policy, bands in long.items()
        } | {f"ctx30k_tbt_{policy}": bands["tbt_mean_ms"].mean for policy, bands in long.items()}

        def rows() -> Iterator[Compared]:
            for row in own.rows:
                name, published = row.text("what"), row.values["value"]
                what = f"{name.replace('_', ' ')} (section {row.text('section')})"
                unit = "s" if "ttft" in name else "ms" if "tbt" in name else ""
                if name in found:
                    yield Compared(what, "value", unit, published, found[name], "held out")
                else:
                    why = "a ratio or a value that tables above have, or of no simulation here"
                    yield Compared(what, "value", unit, published, None, "not modelled", why)

        notes = ("Section 5.11 is simulated with prompts of 30,000 tokens and answers of 438.",)
        return _section(own, [*rows()], _SIMULATED, notes)

    def _long_prompts(self, policy: str) -> dict[str, Band]:
        """Bands of section 5.11."""
        row = Row({"policy": policy, "rate": 0.1, "trace": "sharegpt"}, {})
        setting = setting_of(request_of(row, self.requests))
        load = replace(setting.load, workload=Trace((LONG_PROMPT,)))
        seeds = range(max(self.seeds // 5, 1))
        return bands_over([replace(setting, load=load)], seeds, self.workers, self.watch)[0]


def replaced(row: Row, **conditions: Scalar) -> Row:
    """A row with other conditions."""
    return replace(row, conditions={**row.conditions, **conditions})


def request_of(row: Row, requests: int) -> ScheduleRequest:
    """The simulation of a published row; 0 requests for as many as come in a long run. The paper's
    code reads at most 8192 prompt tokens together and doubles the number of groups with their
    number: the policy ``combined`` here."""
    model, rate = row.text("model", QWEN), float(row.conditions["rate"])
    layered = row.text("policy") == "layered"
    return ScheduleRequest(
        model=model,
        device=row.text("device", DEVICE),
        trace=row.text("trace", "arxiv"),
        policy="combined" if layered else row.text("policy"),
        rate=rate,
        requests=requests or int(RUN_S * rate),
        chunk=None if layered else row.whole("chunk", 512),
        groups=f"doubling:{row.whole('groups', 16)}" if layered else "",
        gpus=row.whole("gpus"),
        cv=float(row.conditions.get("cv", 1.0)),
        tbt_ms=TBT_MS.get(model, 125.0),
        force=model == "qwen3-8b",
    )


def near_saturation(row: Row, metric: str) -> bool:
    """Whether a value is the first token of chunked prefill where its queue is about to grow."""
    chunked = row.text("policy") == "chunked" and row.whole("chunk") == 512
    return chunked and metric == "ttft_mean_s" and row.text("model", QWEN) == QWEN


def _inside(found: Compared, band: Band) -> Compared:
    """A value that only a band says something of."""
    assert isinstance(found.published, float)
    words = f"{band.low:.3g} to {band.high:.3g}"
    holds = band.low <= found.published <= band.high
    return Compared(
        found.what, found.metric, found.unit, found.published, words, "claim", holds=holds
    )


@cache
def watched() -> WatchedDevice:
    """The device, which remembers what was asked of it."""
    return device(DEVICE).watched()


def _section(
    own: Table,
    rows: Sequence[Compared],
    by: str,
    notes: tuple[str, ...] = (),
    name: str = "",
) -> Section:
    IterationCost(served_model(QWEN), watched(), 2)
    inputs = inputs_of(watched(), watched().asked)
    return Section(name or f"layered-{own.name}", own, by, tuple(rows), inputs, notes=notes)

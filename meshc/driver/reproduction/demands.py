"""How near predictions are to be, and how near they are: over values that calibrate nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor

from meshc.driver.reproduction.claims import OF_FIGURES
from meshc.driver.reproduction.compared import Compared, Section, mean_error

Chosen = Callable[[Compared], bool]


@dataclass(frozen=True)
class Demand:
    """A mean absolute error, and perhaps the most of any value, that the rows of some sections are
    to keep, and what is aimed for. None where all rows are to hold, or the page to say why they do
    not: claims, or what ``holds`` says of values."""

    what: str
    sections: tuple[str, ...]
    required: float | None
    aim: float | None = None
    most: float | None = None
    of: Chosen = lambda row: True
    holds: Chosen = lambda row: bool(row.holds)


@dataclass(frozen=True)
class Answer:
    """A demand, and the errors that it asks for, or how many of its rows hold of how many, and of
    how many others it is said why they do not."""

    demand: Demand
    errors: tuple[float, ...]
    holding: int
    explained: int
    rows: int

    @property
    def mean(self) -> float | None:
        """The mean absolute error."""
        return mean_error(self.errors)

    @property
    def most(self) -> float | None:
        """The largest error."""
        return max(map(abs, self.errors), default=None)

    @property
    def met(self) -> bool:
        """Whether it is kept."""
        if self.demand.required is None:
            return self.rows > 0 and self.holding + self.explained == self.rows
        mean, most = self.mean, self.most
        if mean is None or most is None:
            return False
        within = self.demand.most is None or most <= self.demand.most
        return mean <= self.demand.required and within


def of_system(*names: str) -> Chosen:
    """Rows of systems of WaferLLM's tables."""
    return lambda row: any(f"{name}," in f"{row.what}," for name in names)


def layered(metric: str) -> Chosen:
    """Rows of layered prefill of Qwen3-30B-A3B, which is the model of rows that name none."""
    return lambda row: row.metric == metric and row.what.startswith("layered")


def _weave(row: Compared) -> bool:
    """Whether a value is of a schedule that communicates."""
    return "no communication" not in row.what


def _as_printed(row: Compared) -> bool:
    """Whether both values have the same two digits behind the point; the papers round some and cut
    others."""
    if not isinstance(row.predicted, float) or not isinstance(row.published, int | float):
        return False
    return row.published in (round(row.predicted, 2), floor(100 * row.predicted) / 100)


def _same_side(row: Compared) -> bool:
    """Whether both values, ratios of times, say of the same schedule that it is faster."""
    if not isinstance(row.predicted, float) or not isinstance(row.published, int | float):
        return False
    return (row.published - 1) * (row.predicted - 1) > 0


def _of_figures(row: Compared) -> bool:
    """Whether a claim is one of WaferLLM's Figures 9 and 10."""
    return any(row.what.startswith(name.replace("_", " ") + " (") for name in OF_FIGURES)


ENERGIES = ("waferllm-6", "waferllm-7", "waferllm-8")
LATENCIES = ("layered-6", "layered-8", "layered-10", "layered-11", "layered-12")
SPEEDUPS = tuple(f"tokenweave-figure-{n}" for n in (13, 22, 19, 27, 21))
DEMANDS = (
    Demand("Tables 3 and 4, WaferLLM, six splits", ("waferllm-3", "waferllm-4"), 0.05, 0.025, 0.10,
           of_system("WaferLLM")),
    Demand("Table 2, WaferLLM", ("waferllm-2",), 0.10, 0.05, of=of_system("WaferLLM")),
    Demand("T10 and Ladder, Tables 3 and 4, six splits", ("waferllm-3", "waferllm-4"), 0.10, 0.04,
           of=of_system("T10", "Ladder")),
    Demand("T10 and Ladder, Table 2", ("waferllm-2",), 0.10, 0.04, of=of_system("T10", "Ladder")),
    Demand("Table 6, MeshGEMV", ("waferllm-6",), 0.20, 0.08),
    Demand("Tables 6 to 8, ratios of energy, to two digits", ENERGIES, None,
           of=lambda row: row.metric == "ratio", holds=_as_printed),
    Demand("Figures 9 and 10 as claims", ("waferllm-claims",), None, of=_of_figures),
    Demand("steps of Llama-3-8B on an H200", ("recorded-made",), 0.05, 0.03,
           of=lambda row: row.what.startswith("llama-3-8b, batch 1, cached")),
    Demand("steps in clusters of blocks on an H200", ("recorded-clusters",), 0.15, 0.1),
    Demand("steps of task programs on an H200", ("recorded-tasks", "recorded-own", "recorded-made"),
           0.05, 0.03),
    Demand("ClusterFusion, Table 1", ("clusterfusion-1",), 0.15, 0.10),
    Demand("ClusterFusion, section 4.1 and C.1", ("clusterfusion-4.1", "clusterfusion-C.1"), 0.15,
           0.10),
    Demand("layered rows of Qwen3-30B-A3B, mean TTFT", LATENCIES, 0.20, 0.10,
           of=layered("ttft_mean_s")),
    Demand("layered rows of Qwen3-30B-A3B, mean TBT", LATENCIES, 0.15, 0.08,
           of=layered("tbt_mean_ms")),
    Demand("layered rows of Qwen3-30B-A3B, p99 TBT", LATENCIES, 0.10, 0.05,
           of=layered("tbt_p99_ms")),
    Demand("Qwen3-235B-A22B on eight H100, Table 9", ("layered-9",), 0.40,
           of=lambda row: "h100x8" in row.what),
    Demand("prompts of 30,000 tokens, section 5.11", ("layered-claims",), 0.40),
    Demand("TokenWeave, rows none of whose values is calibrated", ("tokenweave-figure-21",), 0.04,
           0.025),
    Demand("TokenWeave, all values that calibrate nothing", SPEEDUPS, 0.04, 0.025, of=_weave),
    Demand("TokenWeave, the same of these whether it is faster", SPEEDUPS, None,
           of=lambda row: _weave(row) and bool(row.counted), holds=_same_side),
)  # fmt: skip
"""Mean absolute errors that were asked for of values to which nothing was fitted."""


def answers(sections: Sequence[Section]) -> tuple[Answer, ...]:
    """The demands on all of whose sections something can be said."""
    known = {section.name: section for section in sections}
    found = []
    for demand in DEMANDS:
        if set(demand.sections) <= known.keys():
            rows = [row for name in demand.sections for row in known[name].rows if demand.of(row)]
            errors = tuple(error for row in rows for error in row.counted)
            modelled = [row for row in rows if row.role != "not modelled"]
            judged = modelled if demand.required is None else []
            holding = [row for row in judged if demand.holds(row)]
            explained = [row for row in judged if row not in holding and row.why]
            found.append(Answer(demand, errors, len(holding), len(explained), len(judged)))
    return tuple(found)

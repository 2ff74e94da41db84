"""Pictures of compared policies, as SVG, and of schedules of a node, as PNG. With those of plans
(``driver/planning``) the only module that imports matplotlib (extra `plots`).

The same values give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.cost.nodes.overlap import Schedule
from meshc.serving.comparing import Band
from meshc.serving.simulator import Run

Curves = Mapping[str, Sequence[tuple[float, dict[str, Band]]]]
"""For each policy, rates in requests per second with the bands of metrics."""

_STYLE = {"svg.hashsalt": "meshc", "svg.fonttype": "none", "font.size": 10}


def attainment_by_rate(curves: Curves) -> str:
    """The share of requests that keep their objective over the rate, with its band over seeds."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _new("requests per second", "requests that keep their objective (%)")
        for name, points in curves.items():
            rates = [rate for rate, _ in points]
            bands = [bands["slo_attainment"] for _, bands in points]
            (line,) = axes.plot(rates, [100 * b.mean for b in bands], marker="o", label=name)
            low, high = ([100 * getattr(b, side) for b in bands] for side in ("low", "high"))
            axes.fill_between(rates, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.axhline(90, color="grey", linestyle=":")
        return _text(figure, axes)


def latency_frontier(curves: Curves) -> str:
    """Mean TTFT against mean TBT, a point for each rate."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _new("mean time between tokens (ms)", "mean time to first token (s)")
        for name, points in curves.items():
            across = [bands["tbt_mean_ms"].mean for _, bands in points]
            up = [bands["ttft_mean_s"].mean for _, bands in points]
            axes.plot(across, up, marker="o", label=name)
            for x, y, (rate, _) in zip(across, up, points, strict=True):
                axes.annotate(f"{rate:.4g}/s", (x, y), textcoords="offset points", xytext=(5, 4))
        return _text(figure, axes)


def token_timeline(runs: Mapping[str, Run]) -> str:
    """Tokens written so far over time, of one run of each policy."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _new("seconds", "tokens written")
        for name, run in runs.items():
            first = [trip.first for trip in run.trips]
            times = np.array([*run.step_ends, *first])
            counts = np.array([*run.step_requests, *[1] * len(first)])
            order = np.argsort(times, kind="stable")
            axes.plot(times[order], np.cumsum(counts[order]), label=name)
        return _text(figure, axes)


def node_timeline(schedule: Schedule, layers: int = 2) -> bytes:
    """The two streams of a node over time, for ``layers`` layers in the middle; each half of the
    batch has its color, which a legend names."""
    middle = schedule.spans[len(schedule.spans) // 2].layer
    shown = [span for span in schedule.spans if middle <= span.layer < middle + layers]
    first = min(span.start for span in shown)
    rows = {COMPUTE: 1, COMMUNICATION: 0}
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(12, 2.6), layout="constrained")
        axes = figure.add_subplot()
        for span in shown:
            start, width = (span.start - first) * 1e6, (span.stop - span.start) * 1e6
            axes.broken_barh(
                [(start, width)],
                (rows[span.stream] - 0.4, 0.8),
                color=f"C{span.half}",
                edgecolor="white",
            )
            axes.text(start + width / 2, rows[span.stream], span.name, ha="center", va="center",
                      fontsize=6, rotation=90, clip_on=True)  # fmt: skip
        called = "all tokens" if schedule.split is None else "half {}"
        halves = sorted({span.half for span in shown})
        named = [Patch(color=f"C{half}", label=called.format(half)) for half in halves]
        figure.legend(handles=named, loc="outside right upper", frameon=False)
        axes.set_yticks([*rows.values()], [*rows])
        axes.set_xlabel(f"microseconds, layers {middle} to {middle + layers - 1}")
        out = BytesIO()
        figure.savefig(out, format="png", dpi=120, metadata={"Software": None})
        return out.getvalue()


def _new(across: str, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    return figure, axes


def _text(figure: Figure, axes: Axes) -> str:
    axes.legend(frameon=False)
    stream = StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "meshc"})
    return stream.getvalue()

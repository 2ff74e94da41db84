"""Fits the calibrated numbers of nodes of GPUs to the published values that calibrate them.

    python benchmarks/calibrate_nodes.py [--device h100x8] [--rounds 6]

Least squares over the logarithms of the numbers, from those of the device's file, by Gauss-Newton
steps of which the best of three lengths is taken. The residuals are relative errors: of the first
and every second value of each row of TokenWeave for the device (those that
``meshc/published/data/tokenweave.toml`` calls calibrated), half those of the latencies at the same
lengths, and a fiftieth of each change of a logarithm, which keeps numbers near where they start if
nothing tells them. What it prints goes into the device's file, rounded to three digits. The search
for the cut makes residuals jump, so that the end depends on the start a little.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from measuring import table as columns

from meshc.cost.nodes.overlap import baseline
from meshc.cost.nodes.ranks import Ranks
from meshc.devices import Device, device
from meshc.driver.reproduction.token_weave import FIGURES, batch_of, schedule_of
from meshc.driver.served_shapes import served_model
from meshc.published import Row, table

COMMON = ("operand_macs", "attention_flops_per_second", "overlap_slowdown", "collective_seconds")
FITTED = {
    "h100x8": (
        *COMMON, "expert_flops_per_second", "expert_passes", "kernel_seconds",
        "link_bytes_per_second",
    ),
    "b200x8": (*COMMON, "overlap_seconds"),
}  # fmt: skip
_STEP, _HOLD, _HALF = 0.05, 0.02, 0.5


def residuals(where: Device, name: str) -> list[float]:
    """Relative errors of the values that calibrate ``name``, by the numbers of ``where``."""
    found = []
    for row in calibrating(FIGURES, name, "faster"):
        ranks, batch = Ranks(served_model(row.text("model")), where, where.cores), batch_of(row)
        ours = (
            baseline(ranks, batch).seconds / schedule_of(ranks, row.text("policy"), batch).seconds
        )
        found.append(ours / row.number("faster") - 1)
    for metric, communicates in (("alone_ms", False), ("baseline_ms", True)):
        for row in calibrating(("figure-11",), name, metric):
            ranks = Ranks(served_model(row.text("model")), where, where.cores)
            ours = baseline(ranks, batch_of(row), communicates=communicates).seconds
            found.append(_HALF * (ours * 1e3 / row.number(metric) - 1))
    return found


def calibrating(figures: Sequence[str], name: str, metric: str) -> list[Row]:
    """The rows of TokenWeave's ``figures`` whose ``metric`` a number of ``name`` is fitted to."""
    rows = [row for figure in figures for row in table("tokenweave", figure).where(device=name)]
    return [row for row in rows if metric in row.calibrated]


def fitted(name: str, rounds: int) -> dict[str, float]:
    """The numbers that :data:`FITTED` names, after so many steps."""
    start = device(name)
    names = FITTED[name]
    first = np.log([start.real(one) for one in names])

    def errors(place: np.ndarray) -> np.ndarray:
        values = {one: float(np.exp(x)) for one, x in zip(names, place, strict=True)}
        return np.array([*residuals(start.with_numbers(**values), name), *_HOLD * (place - first)])

    place, now = first, errors(first)
    for turn in range(rounds):
        slopes = [(errors(place + _STEP * unit) - now) / _STEP for unit in np.eye(len(names))]
        step = np.linalg.lstsq(np.array(slopes).T, -now, rcond=None)[0]
        tried = [(place + share * step) for share in (1.0, 0.5, 0.2)]
        best = min(tried, key=lambda at: float(np.square(errors(at)).sum()))
        after = errors(best)
        print(
            f"round {turn}: {np.square(now).sum():.5f} -> {np.square(after).sum():.5f}", flush=True
        )
        if np.square(after).sum() >= np.square(now).sum():
            break
        place, now = best, after
    return {one: float(np.exp(x)) for one, x in zip(names, place, strict=True)}


def main() -> None:
    """Print the numbers of the file and the fitted ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=FITTED, action="append")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    for name in options.device or FITTED:
        found = fitted(name, options.rounds)
        before = device(name)
        rows = [[one, f"{before.real(one):.3g}", f"{value:.3g}"] for one, value in found.items()]
        print(columns([name, "in the file", "fitted"], rows), "\n")


if __name__ == "__main__":
    main()

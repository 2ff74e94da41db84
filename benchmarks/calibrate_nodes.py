"""Fits the calibrated numbers of nodes of GPUs to the published values that calibrate them.

    python benchmarks/calibrate_nodes.py [--device h100x8] [--rounds 6]

Least squares over the logarithms of the numbers, from those of the device's file, by Gauss-Newton
steps of which the best of three lengths is taken. The residuals are relative errors: of the first
and every second value of each row of ``tests/data/tokenweave.toml`` for the device (no value that
is held out), half those of the latencies without communication at the same lengths, and a
fiftieth of each change of a logarithm, which keeps numbers near where they start if nothing tells
them. What it prints goes into the device's file, rounded to three digits. The search for the cut
makes residuals jump, so that the end depends on the start a little.
"""

from __future__ import annotations

import argparse
import tomllib

import numpy as np
from measuring import table
from node_schedules import ALONE, PROMPT, PUBLISHED, schedule_of

from meshc.cost.nodes.batches import prompts
from meshc.cost.nodes.overlap import baseline
from meshc.cost.nodes.ranks import Ranks
from meshc.devices import Device, device
from meshc.driver.served_models import served_model

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
    published = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))
    found = []
    for row in published["row"]:
        if row["device"] != name or row.get("held_out"):
            continue
        ranks = Ranks(served_model(row["model"]), where, where.cores)
        for tokens, faster in list(zip(row["tokens"], row["faster"], strict=True))[::2]:
            count = tokens // PROMPT if row.get("prompts") else 1
            batch = prompts([tokens // count] * count)
            ours = baseline(ranks, batch).seconds / schedule_of(ranks, row["policy"], batch).seconds
            found.append(ours / faster - 1)
    for row in published["latency"]:
        if row["device"] != name:
            continue
        ranks = Ranks(served_model(row["model"]), where, where.cores)
        policy = ALONE if "no_communication_ms" in row else "baseline"
        values = row["no_communication_ms" if policy == ALONE else "baseline_ms"]
        for tokens, wanted in list(zip(row["tokens"], values, strict=True))[::2]:
            ours = baseline(ranks, prompts([tokens]), communicates=policy != ALONE).seconds
            found.append(_HALF * (ours * 1e3 / wanted - 1))
    return found


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
        print(table([name, "in the file", "fitted"], rows), "\n")


if __name__ == "__main__":
    main()

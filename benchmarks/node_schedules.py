"""Predicted schedules of a node of GPUs beside the latencies that TokenWeave reports.

    python benchmarks/node_schedules.py [--json]

Each published value says how many times faster a policy is than the baseline. The numbers of
``h100x8`` and ``b200x8`` whose kind is `calibrated` were fitted, by least squares, to the first and
every second value of each row of ``tests/data/tokenweave.toml``, and to the latencies without
communication at the same lengths (``benchmarks/calibrate_nodes.py``); all other values are held
out, and so is all of ``h100x4``.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from measuring import table

from meshc.cost.nodes.batches import prompts
from meshc.cost.nodes.overlap import Schedule, baseline, fused_only
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import best_schedule, equal_split, threshold_tokens
from meshc.devices import device
from meshc.driver.served_models import served_model

PUBLISHED = Path(__file__).parents[1] / "tests" / "data" / "tokenweave.toml"
PROMPT = 512
ALONE = "no communication"


@dataclass(frozen=True)
class Comparison:
    """A published value and ours. ``held_out`` says that nothing was fitted to it."""

    figure: str
    model: str
    device: str
    policy: str
    tokens: int
    held_out: bool
    published: float
    predicted: float
    split: int | None

    @property
    def error(self) -> float:
        """Of our value, relative."""
        return self.predicted / self.published - 1


@cache
def ranks_of(model: str, name: str) -> Ranks:
    """All GPUs of a device."""
    where = device(name)
    return Ranks(served_model(model), where, where.cores)


def comparisons() -> list[Comparison]:
    """All published values, row by row."""
    found = []
    for row in tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["row"]:
        ranks = ranks_of(row["model"], row["device"])
        for index, (tokens, faster) in enumerate(zip(row["tokens"], row["faster"], strict=True)):
            count = tokens // PROMPT if row.get("prompts") else 1
            batch = prompts([tokens // count] * count)
            schedule = schedule_of(ranks, row["policy"], batch)
            found.append(
                Comparison(
                    row["figure"],
                    row["model"],
                    row["device"],
                    row["policy"],
                    tokens,
                    row.get("held_out", False) or index % 2 == 1,
                    faster,
                    baseline(ranks, batch).seconds / schedule.seconds,
                    schedule.split,
                )
            )
    return found


def schedule_of(ranks: Ranks, policy: str, batch: tuple) -> Schedule:
    """What a row's ``policy`` does with ``batch``."""
    if policy == ALONE:
        return baseline(ranks, batch, communicates=False)
    return (fused_only if policy == "fuse-only" else best_schedule)(ranks, batch)


def mean_error(found: list[Comparison], *, held_out: bool, devices: tuple[str, ...] = ()) -> float:
    """The mean absolute error of the schedules that communicate."""
    return mean(
        abs(one.error)
        for one in found
        if one.held_out == held_out
        and one.policy != ALONE
        and (not devices or one.device in devices)
    )


def splits(model: str, lengths: tuple[int, ...]) -> list[list[object]]:
    """Milliseconds by the equal and the chosen cut, with as many blocks for sums, and without
    communication, on eight H100."""
    ranks = ranks_of(model, "h100x8")
    rows: list[list[object]] = []
    for tokens in lengths:
        batch = prompts([tokens])
        chosen = best_schedule(ranks, batch)
        given = min(span.multiprocessors for span in chosen.spans)
        blocks = ranks.blocks if chosen.split is None else given
        middle = equal_split(ranks, batch, blocks)
        times = (middle, chosen, baseline(ranks, batch, communicates=False))
        shown = [f"{t.seconds * 1e3:.1f}" for t in times]
        rows.append([model, tokens, *shown, chosen.split, blocks])
    return rows


def main() -> None:
    """Print all comparisons and the mean errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = comparisons()
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
        return
    head = [
        "figure",
        "model",
        "device",
        "policy",
        "tokens",
        "",
        "published",
        "predicted",
        "",
        "cut",
    ]
    rows = [
        [
            one.figure,
            one.model,
            one.device,
            one.policy,
            one.tokens,
            "held out" if one.held_out else "",
            f"{one.published:.3f}",
            f"{one.predicted:.3f}",
            f"{one.error:+.1%}",
            one.split or "",
        ]
        for one in found
    ]
    print(table(head, rows))
    for name in ("h100x8", "b200x8", "h100x4"):
        for held_out in (False, True):
            if any(one.device == name and one.held_out == held_out for one in found):
                error = mean_error(found, held_out=held_out, devices=(name,))
                print(f"{name}, {'held out' if held_out else 'calibrated'}: {error:.2%}")
    print(f"all, calibrated: {mean_error(found, held_out=False):.2%}")
    print(f"all, held out: {mean_error(found, held_out=True):.2%}\n")
    models = ("llama-3.3-70b", "qwen2.5-72b", "qwen3-235b-a22b")
    cuts = [row for model in models for row in splits(model, (1024, 2048, 4096, 8192, 16384))]
    head = ["model", "tokens", "equal cut, ms", "chosen, ms", f"{ALONE}, ms", "at", "blocks"]
    print(table(head, cuts))
    for name in ("h100x8", "h100x4", "b200x8"):
        for model in models:
            print(
                f"{model} on {name}: cut from {threshold_tokens(ranks_of(model, name))} tokens on"
            )


if __name__ == "__main__":
    main()

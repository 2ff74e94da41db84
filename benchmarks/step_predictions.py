"""Predicted decode steps of task programs on an H200, as they stand and with changes that passes
could make.

    python benchmarks/step_predictions.py [--shapes] [--targets] [--changes]

``--targets``: steps of Llama-2-7B and Llama-3-8B beside the ratios to the bytes' time that they
are to reach. ``--shapes``: twenty other steps, each with its breakdown by phase. ``--changes``:
what each change (``step_changes.py``) is expected to do to the steps of ``--targets``. Everything
without a flag. Predictions: no task program has run on a GPU. What blocks read of L2 is at an
assumed rate, and batches are printed at three.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

from measuring import table
from step_changes import (
    Change,
    Setting,
    by_bytes,
    halved,
    merged,
    parted,
    readied_in,
    setting,
    tags,
)

from meshc.cost.tasks.steps import StepTime

RATES = (5.5e12, 4.0e12, 7.5e12)
TARGETS = (
    ("llama-2-7b", 1024, 1, 1.10),
    ("llama-2-7b", 4096, 1, 1.08),
    ("llama-2-7b", 16384, 1, 1.07),
    ("llama-3-8b", 1024, 1, 1.13),
    ("llama-3-8b", 4096, 1, 1.12),
    ("llama-3-8b", 16384, 1, 1.11),
    ("llama-3-8b", 4096, 8, 1.25),
    ("llama-3-8b", 4096, 16, 1.25),
)
"""Model, cached tokens, requests, and the most that the step is to take over its bytes' time."""
OPTIONS = ("", "merge=true", "parts=4", "merge=true,parts=4")
"""Of expand-tasks: the usual ones, and others."""
SHAPES = (
    ("smollm2-135m", 1024, 1),
    ("smollm2-135m", 1024, 16),
    ("llama-2-7b", 256, 1),
    ("llama-2-7b", 1024, 2),
    ("llama-2-7b", 1024, 4),
    ("llama-2-7b", 1024, 8),
    ("llama-2-7b", 1024, 16),
    ("llama-2-13b", 1024, 1),
    ("llama-2-13b", 4096, 4),
    ("llama-3-8b", 64, 1),
    ("llama-3-8b", 1024, 4),
    ("llama-3-8b", 32768, 1),
    ("llama-3-8b", 131072, 1),
    ("llama-3-8b", 32768, 4),
    ("codellama-34b", 4096, 1),
    ("codellama-34b", 16384, 8),
    ("qwen2-72b", 4096, 1),
    ("qwen2.5-72b", 32768, 1),
    ("llama-3.3-70b", 4096, 1),
    ("llama-3.3-70b", 8192, 16),
)
HEADER = ("us", "bytes' us", "ratio", "memory", "computing", "meeting", "idle", "unasked", "ring")
CHANGES: tuple[tuple[str, tuple[Change, ...], int], ...] = (
    ("as it stands", (), 16),
    ("half tasks (8 rows, fragments full)", (), 8),
    ("rests of tasks by bytes", (by_bytes,), 16),
    ("tags in the data", (tags,), 16),
    ("columns ready in 1.5 us", (readied_in(1500),), 16),
    ("16-bit vectors", (halved,), 16),
    ("records merged by tasks", (merged,), 16),
    ("outer product in 4 parts", (parted(4),), 16),
    ("4 parts, tags", (parted(4), tags), 16),
    ("4 parts, 16 bits", (halved, parted(4)), 16),
    ("records merged, 4 parts", (merged, parted(4)), 16),
    ("records merged, 16 bits", (merged, halved), 16),
    ("records merged, 16 bits, 4 parts", (merged, halved, parted(4)), 16),
    ("records merged, tags", (merged, tags), 16),
    ("records merged, tags, half tasks", (merged, tags), 8),
    ("all but half tasks", (merged, halved, parted(4), tags, by_bytes), 16),
)


def cells(found: StepTime) -> tuple[object, ...]:
    """A step as cells of a table; times in microseconds."""
    spent = found.spent
    parts = (spent.memory, spent.computing, spent.meeting, spent.idle, spent.unasked)
    ring = f"{found.ring.tiles}{', crowded' if found.crowded else ''}"
    us = (round(1e6 * part) for part in (found.seconds, found.ceiling))
    return (*us, f"{found.ratio:.3f}", *(round(1e6 * part) for part in parts), ring)


def targets() -> None:
    """Each target as its program stands, and as others that expand-tasks makes."""
    rows = []
    for (model, cached, batch, most), more in product(TARGETS, OPTIONS):
        for rate in RATES if batch > 1 else RATES[:1]:
            now = setting(model, cached, batch, more=more, shared_bytes_per_second=rate)
            at = f"{rate / 1e12:.1f}" if batch > 1 else ""
            rows.append((model, cached, batch, more, at, most, *cells(now.time())))
    print(table(("model", "cached", "batch", "options", "L2 TB/s", "at most", *HEADER), rows))


def shapes() -> None:
    """Other steps, with their phases."""
    for model, cached, batch in SHAPES:
        found = setting(model, cached, batch).time()
        print(f"\n{model}, {cached} cached, batch {batch}: {1e6 * found.seconds:.0f} us, "
              f"{found.bytes / 1e6:.1f} MB, {found.ratio:.3f} of the bytes' time "
              f"(ring of {found.ring.tiles} tiles); most is spent on {found.limit}")  # fmt: skip
        if found.crowded:
            print(f"  columns do not fit beside a ring: {', '.join(found.crowded)}")
        print(table(("  phase", "times", "MB", "us", *HEADER[3:8]), [*_phases(found)]))


def _phases(found: StepTime) -> Iterator[Sequence[object]]:
    for phase in found.phases:
        spent, times = phase.spent, phase.times
        parts = (spent.memory, spent.computing, spent.meeting, spent.idle, spent.unasked)
        us = [f"{1e6 * part / times:.2f}" for part in (spent.seconds, *parts)]
        yield (f"  {phase.name}", times, f"{phase.bytes / times / 1e6:.2f}", *us)


def changes() -> None:
    """What each change does to the ratio of each target."""
    grains = {grain for *_, grain in CHANGES}
    made = {(target, grain): setting(*target[:3], grain) for target in TARGETS for grain in grains}
    columns = [(t, rate) for t in TARGETS for rate in (RATES if t[2] > 1 else RATES[:1])]
    rows = []
    for name, steps, grain in CHANGES:
        row = [name]
        for target, rate in columns:
            now = made[target, grain].numbers(shared_bytes_per_second=rate)
            ratio = _changed(now, steps).time().ratio
            row.append(f"{ratio:.3f}{'*' if ratio <= target[3] else ''}")
        rows.append(row)
    rows.append(["at most", *(f"{target[3]:.2f}" for target, _ in columns)])
    heads = [
        f"{model.removeprefix('llama-')} {cached} b{batch}{f' {rate / 1e12:.1f}' * (batch > 1)}"
        for (model, cached, batch, _), rate in columns
    ]
    print(table(("", *heads), rows))


def _changed(now: Setting, steps: Sequence[Change]) -> Setting:
    for step in steps:
        now = step(now)
    return now


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"targets": targets, "changes": changes, "shapes": shapes}
    for name in parts:
        parser.add_argument(f"--{name}", action="store_true")
    wanted = [name for name, chosen in vars(parser.parse_args()).items() if chosen]
    for name in wanted or parts:
        print(f"\n--- {name}; microseconds")
        parts[name]()


if __name__ == "__main__":
    main()

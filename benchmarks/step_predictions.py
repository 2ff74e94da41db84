"""Predicted decode steps of task programs on an H200, as they stand and with changes that passes
could make.

    python benchmarks/step_predictions.py [--shapes] [--targets] [--rates] [--changes]

``--targets``: steps of Llama-2-7B and Llama-3-8B beside the ratios to the bytes' time that they
are to reach. ``--rates``: those of batches with other rates of L2. ``--shapes``: twenty other
steps, each with its breakdown by phase. ``--changes``: what each change (``step_changes.py``) is
expected to do to the steps of ``--targets``. Everything without a flag. ``benchmarks/step_fit.py``
says how far the model was from steps that were timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

from measuring import table
from recorded_steps import CEILING, over_ceiling
from step_changes import (
    Change,
    Setting,
    by_bytes,
    columns,
    flying,
    halved,
    setting,
    tagged_halves,
    tags,
    tile_of,
)

from meshc.cost.tasks.phase_times import StepTime

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
COLUMNS = "columns=true,parts=4,wide=32768"
"""Options of expand-tasks of the batches below."""
OPTIONS = (
    "",
    "merge=true",
    "parts=2",
    "parts=4",
    "parts=8",
    "merge=true,parts=2",
    "merge=true,parts=4",
    "columns=true",
    COLUMNS,
)
"""Of expand-tasks: the usual ones, and others."""
BY_TAGS = (
    "",
    "merge=true",
    "parts=4",
    "merge=true,parts=4",
    "parts=4,wide=32768",
    "merge=true,parts=4,wide=32768",
)
"""Those of programs whose blocks meet by tags."""
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
L2_RATES = (4.0, 5.3, 5.5, 7.5)
"""Terabytes per second that copies get of L2: what is known to be the least of them is 5.3."""
HEADER = ("us", "bytes' us", "ratio", "memory", "computing", "meeting", "idle", "unasked", "ring")
CHANGES: tuple[tuple[str, tuple[Change, ...], int], ...] = (
    ("as it stands", (), 16),
    ("half tasks (8 rows, fragments full)", (), 8),
    ("rests of tasks by bytes", (by_bytes,), 16),
    ("5 tiles on their way", (flying(5),), 16),
    ("tiles of 8 KiB", (tile_of(8),), 16),
    ("tiles of 32 KiB", (tile_of(32),), 16),
    ("tags in the data", (tags,), 16),
    ("16-bit vectors", (halved,), 16),
    ("16-bit vectors, tags", (tagged_halves,), 16),
    ("16-bit columns, copied", (columns,), 16),
)
CHANGED = {
    ("llama-2-7b", 1): "",
    ("llama-3-8b", 1): "merge=true",
    ("llama-3-8b", 8): "merge=true,parts=4",
    ("llama-3-8b", 16): "merge=true,parts=4",
}
"""Options of the programs that are changed, by model and requests: those with the least time."""


def cells(found: StepTime) -> tuple[object, ...]:
    """A step as cells of a table; times in microseconds."""
    spent = found.spent
    parts = (spent.memory, spent.computing, spent.meeting, spent.idle, spent.unasked)
    ring = f"{found.ring.tiles}{', crowded' if found.crowded else ''}"
    us = (round(1e6 * part) for part in (found.seconds, found.bytes / CEILING))
    return (*us, f"{over_ceiling(found):.3f}", *(round(1e6 * part) for part in parts), ring)


def targets() -> None:
    """Each target as its program stands, and as others that expand-tasks makes."""
    made = [(more, "") for more in OPTIONS] + [(more, "tags") for more in BY_TAGS]
    rows = []
    for (model, cached, batch, most), (more, meet) in product(TARGETS, made):
        found = setting(model, cached, batch, more=more, meet=meet).time()
        rows.append((model, cached, batch, more, meet or "counter", most, *cells(found)))
    print(table(("model", "cached", "batch", "options", "meetings", "at most", *HEADER), rows))


def rates() -> None:
    """Batches whose left sides lie in memory, with other rates at which these are copied."""
    rows = []
    for (model, cached, batch, most), rate in product(TARGETS, L2_RATES):
        if batch > 1:
            now = setting(model, cached, batch, more=COLUMNS)
            found = now.numbers(l2_bytes_per_second=rate * 1e12).time()
            rows.append((model, cached, batch, rate, most, *cells(found)))
    print(table(("model", "cached", "batch", "TB/s of L2", "at most", *HEADER), rows))


def shapes() -> None:
    """Other steps, with their phases."""
    for model, cached, batch in SHAPES:
        found = setting(model, cached, batch).time()
        print(f"\n{model}, {cached} cached, batch {batch}: {1e6 * found.seconds:.0f} us, "
              f"{found.bytes / 1e6:.1f} MB, {over_ceiling(found):.3f} of the bytes' time "
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
    made = {
        (target, grain): setting(
            *target[:3], grain, CHANGED[target[0], target[2]], packed=grain < 16
        )
        for target in TARGETS
        for grain in {grain for *_, grain in CHANGES}
    }
    rows = []
    for name, steps, grain in CHANGES:
        row = [name]
        for target in TARGETS:
            ratio = over_ceiling(_changed(made[target, grain], steps).time())
            row.append(f"{ratio:.3f}{'*' if ratio <= target[3] else ''}")
        rows.append(row)
    rows.append(["at most", *(f"{target[3]:.2f}" for target in TARGETS)])
    heads = [
        f"{model.removeprefix('llama-')} {cached} b{batch}" for model, cached, batch, _ in TARGETS
    ]
    print(table(("", *heads), rows))


def _changed(now: Setting, steps: Sequence[Change]) -> Setting:
    for step in steps:
        now = step(now)
    return now


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"targets": targets, "rates": rates, "changes": changes, "shapes": shapes}
    for name in parts:
        parser.add_argument(f"--{name}", action="store_true")
    wanted = [name for name, chosen in vars(parser.parse_args()).items() if chosen]
    for name in wanted or parts:
        print(f"\n--- {name}; microseconds")
        parts[name]()


if __name__ == "__main__":
    main()

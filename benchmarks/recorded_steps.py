"""Steps that an H200 was timed at, in the groups that the fit of the event model knows.

``meshc/published/data/recorded_h200.toml`` has them, ``meshc/driver/reproduction/timed_steps.py``
what the programs that ran them do.
"""

from __future__ import annotations

from meshc.cost.tasks.phase_times import StepTime
from meshc.driver.reproduction.timed_steps import recorded

CEILING = 4.578e12
"""Bytes per second that reading 2 GiB takes with its launch, to which ratios are given."""

MADE = recorded("made")
FITTED = tuple(step for step in MADE if step.model == "llama-2-7b" and not step.options)
HELD_OUT = tuple(step for step in MADE if step not in FITTED)
FITTED_THEN, HELD_OUT_THEN = (
    tuple(step for step in recorded("persistent") if step.model == model)
    for model in ("llama-2-7b", "llama-3-8b")
)
"""Steps of the persistent kernel: what the model's numbers were fitted to at first."""
EMITTED = recorded("tasks")


def over_ceiling(found: StepTime) -> float:
    """A step's time over that of its bytes at :data:`CEILING`."""
    return found.seconds * CEILING / found.bytes

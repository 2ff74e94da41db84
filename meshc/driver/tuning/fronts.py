"""Which outcomes nothing else beats."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.driver.tuning.configurations import Outcome

MEASURES = ("cores", "memory")
"""What speed is weighed against: cores or GPUs, or bytes of each of them."""


def taken(outcome: Outcome, measure: str) -> int:
    """What an outcome takes of ``measure``."""
    return outcome.units if measure == "cores" else outcome.needed or 0


def front(outcomes: Sequence[Outcome], measure: str) -> list[Outcome]:
    """Those that no other one beats (Pareto): none takes as little time for a run, makes as many
    tokens per second and takes as little of ``measure``, and is better in one of them. The fastest
    first; of equal ones the first that was tried."""
    found: list[Outcome] = []
    for own in sorted(outcomes, key=lambda one: rank(one, measure)):
        if not any(_covers(other, own, measure) for other in found):
            found.append(own)
    return found


def rank(outcome: Outcome, measure: str) -> tuple[float, float, int]:
    """Smaller is better: most tokens per second, then the least time, then the least taken."""
    assert outcome.seconds is not None
    return -outcome.tokens / outcome.seconds, outcome.seconds, taken(outcome, measure)


def _covers(other: Outcome, own: Outcome, measure: str) -> bool:
    """Whether ``other``, which is no slower in tokens per second, is no worse in the rest."""
    assert other.seconds is not None and own.seconds is not None
    return other.seconds <= own.seconds and taken(other, measure) <= taken(own, measure)

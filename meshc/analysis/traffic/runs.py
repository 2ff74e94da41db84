"""Conditions on which of many places in a row a core has: runs of them, which may come back."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from meshc.ir.affine import Cond, Expr
from meshc.support.diagnostics import fail

FEW = 8
"""Runs that a condition tells one by one."""
_MOST = 32
"""Runs of a condition, which is joined with others."""


def among(place: Expr, numbers: Sequence[int], count: int) -> Cond:
    """That ``place``, which is one of ``count``, is among ``numbers``, which ascend: a condition
    for each run of them or, where these are many and come back every so many places, for each run
    of one such period.

    Raises ``too-many-turns`` where there are too many all the same.
    """
    runs = runs_of(numbers)
    if len(runs) <= FEW:
        return Cond.any(run(place, low, high, count) for low, high in runs)
    first, last = numbers[0], numbers[-1]
    period = _period(set(numbers), first, last)
    within = runs_of(sorted({number % period for number in numbers}))
    if len(within) > _MOST:
        fail(
            "too-many-turns",
            f"what cores do changes at {len(runs)} places of '{place}', which has {count}, and a "
            "program would need a condition for each",
            help="take fewer and larger regions, or let them follow one another in rows",
        )
    often = Cond.any(run(place % period, low, high, period) for low, high in within)
    return often & run(place, first, last, count)


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of ``numbers``, which ascend."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _period(numbers: AbstractSet[int], first: int, last: int) -> int:
    """After how many places ``numbers``, from ``first`` to ``last``, come back."""
    return next(
        period
        for period in range(1, last - first + 2)
        if all((n in numbers) == (n + period in numbers) for n in range(first, last + 1 - period))
    )


def run(place: Expr, low: int, high: int, count: int) -> Cond:
    """``place`` from ``low`` to ``high`` of ``count``, with no bound that is kept anyway."""
    if low == high:
        return Cond.eq(place, low)
    bounds = [Cond.ge(place, low)] if low > 0 else []
    return Cond.all([*bounds, *([Cond.le(place, high)] if high < count - 1 else [])])

"""Which of many parameters of one kind run in CI; the others are marked as slow."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def crossed(*lists: Sequence[Any], times: int = 1) -> list[Any]:
    """Every combination of a value of each list; in CI ``times`` as many as the longest list has
    values, in which each value of each list occurs so often."""
    longest = max(map(len, lists))
    chosen = {
        tuple((turn + time * place) % len(values) for place, values in enumerate(lists))
        for time, turn in product(range(times), range(longest))
    }
    found = []
    for places in product(*(range(len(values)) for values in lists)):
        marks = [] if places in chosen else [pytest.mark.slow]
        values = (values[place] for values, place in zip(lists, places, strict=True))
        found.append(pytest.param(*values, marks=marks))
    return found


def only(names: Iterable[Hashable], *in_ci: Hashable, spread: bool = True) -> list[Any]:
    """All ``names``, of which those ``in_ci`` run there. A tuple has the values of several
    parameters; unless it is to be ``spread``, it is the value of one."""
    every = list(names)
    assert set(in_ci) <= set(every), "there is no such parameter"
    return [
        pytest.param(
            *(_values(name) if spread else (name,)),
            marks=[] if name in in_ci else [pytest.mark.slow],
        )
        for name in every
    ]


def in_turns(names: Sequence[Hashable], in_ci: Sequence[Hashable], turns: int) -> list[Any]:
    """Every name with the number of every turn; in CI those ``in_ci``, each with the next turn."""
    assert set(in_ci) <= set(names), "there is no such parameter"
    chosen = {(name, place % turns) for place, name in enumerate(in_ci)}
    return only(product(names, range(turns)), *chosen)


def each(cases: Iterable[Any], stride: int) -> list[Any]:
    """All ``cases``, of which one of every ``stride`` runs in CI."""
    found = []
    for number, case in enumerate(cases):
        marks = [] if number % stride == 0 else [pytest.mark.slow]
        found.append(pytest.param(*_values(case), marks=marks))
    return found


def _values(case: Any) -> tuple[Any, ...]:
    """The values of a case: those of several parameters are a tuple."""
    return case if isinstance(case, tuple) else (case,)

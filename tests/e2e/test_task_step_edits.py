"""Edits of emitted steps of tasks and of their library are noticed: by float64, by an order of
threads and copies in which the bits differ, or by the executor."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reduced import each
from task_step_cases import CASES
from task_step_edits import EDITS, EQUIVALENT
from task_steps import Judge

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

RUNS = (
    (FIRST, QUICK),
    (Mode("starve_warp", True, 2), QUICK),
    (Mode("random", False, 3), QUICK),
    (Mode("starve_block", False, 4), QUICK),
    (Mode("random", True, 5), WATCHED),
)


@cache
def judge_of(name):
    with TemporaryDirectory() as folder:
        judge = Judge.of(CASES[name], 7, Path(folder))
    return judge, judge.check()


def edited(judge, file, old, new, place):
    parts = judge.step.texts[file].split(old)
    assert len(parts) > max(place, 0) + 1, f"there is no {old!r}"
    cut = place + 1
    text = new.join(parts) if place < 0 else old.join(parts[:cut]) + new + old.join(parts[cut:])
    return replace(judge.step, texts={**judge.step.texts, file: text})


def noticed(name):
    """Which run notices an edit, None if none does."""
    case, *edit = EDITS[name]
    judge, wanted = judge_of(case)
    step = edited(judge, *edit)
    for number, (mode, toolchain) in enumerate(RUNS):
        try:
            found = judge.check(step, mode, toolchain)
        except (AssertionError, MeshcError) as problem:
            return f"{number}: {problem}"
        if any((one != other).any() for one, other in zip(found, wanted, strict=True)):
            return f"{number}: other bits"
    return None


@pytest.mark.parametrize("name", each(EDITS, 9))
def test_mutations_are_noticed(name):
    assert (noticed(name) is None) == (name in EQUIVALENT)


def test_few_are_equivalent():
    assert {*EQUIVALENT} <= {*EDITS} and len(EDITS) >= 60
    assert 10 * len(EQUIVALENT) <= len(EDITS)

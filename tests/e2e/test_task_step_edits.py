"""Edits of emitted steps of tasks and of their library are noticed: by float64, by an order of
threads and copies in which the bits differ, or by the executor."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from reduced import each, only
from task_step_cases import CASES
from task_step_edits import EDITS, EQUIVALENT
from task_steps import Judge, noticed

from meshc.backends.cuda.executor import CXX, FIRST, QUICK, WATCHED, Mode

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

RUNS = (
    (FIRST, QUICK),
    (Mode("starve_warp", True, 2), QUICK),
    (Mode("random", False, 3), QUICK),
    (Mode("starve_block", False, 4), QUICK),
    (Mode("random", True, 5), WATCHED),
    (Mode("random", False, 6), WATCHED),
)


@cache
def judge_of(name):
    with TemporaryDirectory() as folder:
        judge = Judge.of(CASES[name], 7, Path(folder))
    judge.check()
    return judge


def edited(judge, file, old, new, place):
    parts = judge.step.texts[file].split(old)
    assert len(parts) > max(place, 0) + 1, f"there is no {old!r}"
    cut = place + 1
    text = new.join(parts) if place < 0 else old.join(parts[:cut]) + new + old.join(parts[cut:])
    return replace(judge.step, texts={**judge.step.texts, file: text})


@pytest.mark.every_case
@pytest.mark.parametrize("name", each(EDITS, 9))
def test_mutations_are_noticed(name):
    case, *edit = EDITS[name]
    judge = judge_of(case)
    assert (noticed(judge, edited(judge, *edit), RUNS) is None) == (name in EQUIVALENT)


def weight(name, **changes):
    """The plan with another weight."""

    def changed(program):
        assert all(getattr(program.weights[name], key) != changes[key] for key in changes)
        made = replace(program.weights[name], **changes)
        return replace(program, weights={**program.weights, name: made})

    return changed


def lanes(name, *element):
    """The plan with a weight whose lanes are other elements."""
    return lambda program: weight(
        name, gathered=(replace(program.weights[name].gathered[0], element=element),)
    )(program)


def kernel(**changes):
    """The plan with another kernel."""
    return lambda program: replace(
        program, kernels={"step": replace(program.kernels["step"], **changes)}
    )


PLANS = {
    "gates and features exchanged": weight("w1", sources=("w3", "w1")),
    "rows in groups of others": weight("w1", rows=16),
    "lanes of keys that are no pairs": lanes("wk", "i1", "floor(i0/32)", "i0 mod 32"),
    "keys of the other head": lanes(
        "wk", "i1", "1 - floor(i0/32)", "16*(i0 mod 2) + floor((i0 mod 32)/2)"
    ),
    "heads and lanes exchanged": lanes("wo", "i1 mod 4", "floor(i1/4)", "i0"),
    "the gain of the next lane": lanes("attn_gain", "i0 + 1"),
    "other frequencies": lambda p: replace(
        p, frequencies=tuple(tuple(1.01 * f for f in each) for each in p.frequencies)
    ),
    "no warp that brings": kernel(threads=256),
    "blocks that do not meet": kernel(whole_grid=False),
    "too little shared memory": kernel(shared_bytes=65536),
}


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", only(PLANS, "gates and features exchanged", "keys of the other head")
)
def test_mutations_of_the_plan_are_noticed(name):
    judge = judge_of("llama")
    assert noticed(judge, replace(judge.step, program=PLANS[name](judge.step.program)), RUNS)


def test_few_are_equivalent():
    assert {*EQUIVALENT} <= {*EDITS} and len(EDITS) + len(PLANS) >= 90
    assert 10 * len(EQUIVALENT) <= len(EDITS)

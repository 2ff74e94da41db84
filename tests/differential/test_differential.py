"""Random programs, compiled and run, against float64: the reduced form of `run.py`."""

from __future__ import annotations

from itertools import count as counted
from itertools import islice

import pytest
from cases import AnyCase, asked_of_cuda, draw_case, in_regions, on_gpus
from judging import judge
from run import TARGETS, Tally

from meshc.backends.cuda.executor import CXX

SEED = 20


def judged(first: int, count: int, target: str, seed: int = SEED) -> Tally:
    """The counts of some cases; the first one that fails ends the test with its text."""
    tally = Tally()
    for index in range(first, first + count):
        add(tally, draw_case(seed, index, {target: 1.0}))
    return tally


def add(tally: Tally, case: AnyCase) -> None:
    """Count what a case gives, which must be no failure."""
    outcome = judge(case)
    tally.add(case, outcome)
    failed = outcome.kind in ("mismatch", "fault")
    assert not failed, f"{outcome.detail}\n{case.text()}{case.words()}"


def test_random_programs_in_python() -> None:
    tally = judged(0, 12, "python")
    assert tally.kinds["python", "match"] >= 10


def test_random_models_with_experts() -> None:
    """Those cases of the seed that have them."""
    tally = Tally()
    for index in (61, 214, 254):
        case = draw_case(SEED, index, {"python": 1.0})
        assert "X" in case.program.extents
        add(tally, case)
    assert tally.kinds["python", "match"] >= 3


def judged_on_gpus(count: int) -> Tally:
    """Programs as they are drawn for Python, on nodes of one to eight GPUs."""
    tally = Tally()
    for index in range(count):
        add(tally, on_gpus(draw_case(SEED, index, {"python": 1.0}), index % 8 + 1))
    return tally


def test_random_programs_on_gpus_of_a_node() -> None:
    assert judged_on_gpus(8).kinds["python", "match"] >= 6


@pytest.mark.slow
def test_many_random_programs_on_gpus_of_a_node() -> None:
    assert judged_on_gpus(300).kinds["python", "match"] >= 240


def judged_in_regions(count: int, seed: int, target: str = "csl") -> Tally:
    """The first cases of a target with layers, which two and three regions share in turn."""
    tally = Tally()
    drawn = (draw_case(seed, index, {target: 1.0}) for index in counted())
    for number, case in enumerate(islice((c for c in drawn if c.has_layers), count)):
        add(tally, in_regions(case, 2 + number % 2))
    return tally


def test_random_layers_in_regions_in_python() -> None:
    assert judged_in_regions(4, SEED, "python").kinds["python", "match"] >= 2


@pytest.mark.slow
def test_many_random_layers_in_regions_in_python() -> None:
    assert judged_in_regions(200, SEED + 1, "python").kinds["python", "match"] >= 140


@pytest.mark.slow
def test_random_layers_in_regions_of_a_wafer() -> None:
    assert judged_in_regions(3, SEED).kinds["csl", "match"] >= 2


@pytest.mark.slow
def test_many_random_layers_in_regions_of_a_wafer() -> None:
    assert judged_in_regions(60, SEED + 1).kinds["csl", "match"] >= 40


def test_random_programs_in_csl() -> None:
    tally = judged(0, 4, "csl")
    assert tally.kinds["csl", "match"] >= 1


def test_random_steps_as_tasks() -> None:
    tally = judged(0, 5, "tasks")
    assert tally.kinds["tasks", "match"] >= 4


@pytest.mark.slow
def test_many_random_steps_as_tasks() -> None:
    """All but mixtures of experts, in random orders and block by block."""
    tally = judged(5, 300, "tasks")
    assert tally.kinds["tasks", "match"] >= 260
    assert tally.codes.keys() <= {("tasks", "no-tasks")}


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_random_models_in_cuda() -> None:
    """Models of clusters that share lanes of heads or cached tokens."""
    tally = judged(1, 2, "cuda", 22)
    assert tally.kinds == {("cuda", "match"): 2}


@pytest.mark.slow
@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_more_random_models_in_cuda() -> None:
    """Other models of the same seed, one of them with query heads that share a key head."""
    cases = [draw_case(22, index, {"cuda": 1.0}) for index in (0, 7)]
    assert any("product over 1 of shared heads" in case.features() for case in cases)
    tally = Tally()
    for case in cases:
        add(tally, case)
    assert tally.kinds["cuda", "match"] == 2


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_what_is_drawn_for_python_is_right_or_refused() -> None:
    """Models are decode steps made of tasks; programs without such steps have no kernels."""
    cases = [asked_of_cuda(draw_case(SEED, index, {"python": 1.0})) for index in range(10)]
    assert {judge(case).kind for case in cases} == {"match", "refused"}
    several = draw_case(3, 22, {"python": 1.0})
    assert several.form == "batch" and several.steps == 4
    assert judge(asked_of_cuda(several)).kind == "match"


@pytest.mark.slow
def test_many_random_programs() -> None:
    """Everything that is drawn takes part in a match, and most of what is drawn does."""
    tally = judged(100, 700, "python")
    assert tally.kinds["python", "match"] >= 560
    assert not [name for name, counts in tally.features.items() if not counts["match"]]
    assert set(TARGETS) == {"python", "csl", "cuda", "tasks", "answers", "checkpoints"}

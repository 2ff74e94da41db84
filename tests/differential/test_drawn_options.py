"""Models of tokens and whole checkpoints with any options, and the processes that judge them."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from bounded import Bounded
from cases import draw_case
from draw_checkpoints import FOLDERS, Checkpoint, family_of
from draw_options import DRAWN, LEFT_OUT
from judging import Outcome, compare_tokens, judge
from run import Tally
from test_differential import add
from workers import Judges

from meshc.backends.cuda.executor import CXX
from meshc.backends.request import argument_names
from meshc.frontend.families import family_named, family_names

pytestmark = pytest.mark.models
SEED = 31
ANSWERS, CHECKPOINTS = [2, 3, 13], [4, 36]
"""Of the seed: servers, weights that stay quantised, pinned forms."""


def judged(indices: list[int], kind: str) -> Tally:
    """The counts of some cases, none of which may fail."""
    tally = Tally()
    for index in indices:
        add(tally, draw_case(SEED, index, {kind: 1.0}))
    return tally


def test_every_option_is_drawn_or_left_out_for_a_reason() -> None:
    assert argument_names() == DRAWN.keys() | LEFT_OUT.keys()
    assert not DRAWN.keys() & LEFT_OUT.keys()


def drawn_options(kind: str, count: int) -> set[str]:
    """Names of the options of so many cases."""
    cases = (draw_case(SEED, index, {kind: 1.0}) for index in range(count))
    return {name for case in cases for name in case.options} | {"target"}


def test_options_are_drawn_together() -> None:
    assert drawn_options("checkpoints", 250) >= DRAWN.keys() - {"keep_quantised"}


@pytest.mark.slow
def test_options_of_drawn_models() -> None:
    assert drawn_options("answers", 400) >= DRAWN.keys() - {"layers"}


def test_a_seed_gives_the_same_cases() -> None:
    for kind in ("answers", "checkpoints"):
        for index in (2, 13):
            one, other = (draw_case(SEED, index, {kind: 1.0}) for _ in range(2))
            assert one == other


def test_checkpoints_of_all_families_are_drawn() -> None:
    """But of qwen3, whose layers those of qwen3_moe have that are dense."""
    known = {kind for name in family_names() for kind in family_named(name).architectures.values()}
    assert known - {family_of(folder) for folder in FOLDERS} == {"qwen3"}


def test_drawn_models_with_any_options() -> None:
    """Weights that stay quantised, servers, pinned forms; on cores and in emitted Python."""
    assert judged(ANSWERS, "answers").kinds.total() == len(ANSWERS)


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_checkpoints_with_any_options() -> None:
    assert judged(CHECKPOINTS, "checkpoints").kinds.total() == len(CHECKPOINTS)


def test_chunks_of_one_token_on_a_core_that_no_descriptor_walks() -> None:
    """Scores of f16 that are copied by rows, of which there is one."""
    options = {"mesh": "1x3", "device": "wse2", "chunk": 3, "dtype": "f16", "seq": 12}
    folder = "tiny_families/olmo-4h4-clipped-bf16"
    add(Tally(), Checkpoint(folder, "csl", options, 5, 11, 1))


@pytest.mark.slow
@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_many_with_any_options() -> None:
    """Most are programs that a target has, and these are right."""
    for kind in ("answers", "checkpoints"):
        tally = judged(list(range(100)), kind)
        matches = sum(n for (_, what), n in tally.kinds.items() if what == "match")
        assert matches >= 60


def test_codes_that_are_wrong_are_seen() -> None:
    """A weight that stays quantised in another seed's codes is no match."""
    case = draw_case(SEED, ANSWERS[0], {"answers": 1.0})
    assert "keep_quantised" in case.options
    given = type(case).given
    try:
        type(case).given = lambda own: given(replace(own, seed=own.seed + 1))
        assert judge(case).kind == "mismatch"
    finally:
        type(case).given = given


def test_tokens_that_are_not_the_largest_are_seen() -> None:
    row = Bounded(("V",), np.array([1.0, 2.0, 2.05]), np.full(3, 0.05))
    assert compare_tokens([[row], [row]], [2, 1]).kind == "match"
    assert compare_tokens([[row], [row]], [2, 0]).kind == "mismatch"


class Ends:
    """Ends the process that it comes to."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


class Stays:
    """Is never there for the process that it comes to."""

    def __reduce__(self) -> tuple[object, ...]:
        return time.sleep, (60,)


@pytest.mark.slow
def test_a_process_that_judges_is_replaced() -> None:
    """After so many cases, and where it ends or does not."""
    case = draw_case(SEED, 0, {"tasks": 1.0})
    with Judges(cases=2) as judges:
        first = judges.process
        assert {judges.judge(case).kind for _ in range(2)} == {"match"}
        assert judges.process == first and judges.judge(case).kind == "match"
        assert judges.process != first
        assert judges.judge(Ends()) == Outcome("fault", "Crash", "the process ended with 3")
        assert judges.judge(case).kind == "match"
    with Judges(seconds=2) as judges:
        assert judges.judge(Stays()).code == "DoesNotEnd"

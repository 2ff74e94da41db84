"""Tokens and positions that a program has no place for are refused, not looked up by kernels."""

import json

import numpy as np
import pytest
from test_cuda_prefill import CAPACITY, WORDS, NumPyMachine, program

from meshc.backends.cuda import LanguageModel, from_json
from meshc.support.diagnostics import MeshcError


class Untouched(NumPyMachine):
    """A machine that runs nothing."""

    def run(self, launches):
        raise AssertionError("a kernel ran")


def model():
    return LanguageModel(program(), Untouched(), {})


@pytest.mark.parametrize(
    ("tokens", "cached", "words"),
    [
        ([1], [CAPACITY], f"no token has {CAPACITY} before it: the program keeps {CAPACITY}"),
        ([1], [2**31], f"no token has {2**31} before it"),
        ([1], [-1], "no token has -1 before it"),
        ([1], [1.5], "no token has 1.5 before it"),
        ([1], [0, 0], "2 positions, and a step has 1 requests"),
        ([1, 1], [0], "2 tokens, and a step has 1 requests"),
        ([WORDS], [0], f"{WORDS} is no token id below {WORDS}"),
        ([-1], [0], "-1 is no token id"),
    ],
)
def test_steps_that_the_program_has_no_place_for(tokens, cached, words):
    with pytest.raises(MeshcError, match=rf"\[run-refused\]: {words}"):
        model().step(tokens, cached)


@pytest.mark.parametrize(
    ("prompt", "request_", "cached", "words"),
    [
        ([1] * (CAPACITY + 1), 0, None, f"{CAPACITY + 1} prompt tokens and 1 new ones do not fit"),
        ([], 0, None, "holds no token"),
        ([WORDS], 0, None, "no token id"),
        ([1], 1, None, "there is no request 1 of 1"),
        ([1], -1, None, "there is no request -1 of 1"),
        ([1], 0, [0, 0], "2 positions"),
    ],
)
def test_prompts_that_the_program_has_no_place_for(prompt, request_, cached, words):
    with pytest.raises(MeshcError, match=rf"\[run-refused\]: .*{words}"):
        model().prefill(prompt, request_, cached)


def test_no_tokens_at_all_cannot_be_asked_for():
    with pytest.raises(MeshcError, match=r"\[run-refused\]: 0 new tokens"):
        model().generate_all([[1]], 0, lambda *_: None)


def test_the_last_place_is_one():
    machine = NumPyMachine()
    found = LanguageModel(program(), machine, {}).step([np.int64(3)], [np.int32(CAPACITY - 1)])
    assert found.shape == (1, WORDS) and machine.ran


@pytest.mark.parametrize(
    ("key", "value"), [("capacity", 2 * CAPACITY), ("capacity", CAPACITY - 1), ("page", 8)]
)
def test_a_manifest_whose_tables_are_of_other_positions_is_refused(key, value):
    found = json.loads(program().to_json())
    with pytest.raises(MeshcError, match=r"\[no-program\].* of other positions than the"):
        from_json(json.dumps(found | {key: value}))

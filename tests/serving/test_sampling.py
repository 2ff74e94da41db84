"""Tokens that are drawn: probabilities written out, their order, draws, transformers' own."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cli import main
from meshc.serving.sampling import GREEDY, Sampler, Sampling, probabilities
from meshc.support.diagnostics import MeshcError

TINY = Path(__file__).parents[1] / "data" / "tiny"
LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling(1.0), [0.5, 0.25, 0.125, 0.125]),
        (Sampling(0.5), [32 / 44, 8 / 44, 2 / 44, 2 / 44]),
        (Sampling(1.0, top_k=1), [1, 0, 0, 0]),
        (Sampling(1.0, top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(1.0, top_k=3), [0.5, 0.25, 0.125, 0.125]),  # equal ones stay
        (Sampling(1.0, top_k=9), [0.5, 0.25, 0.125, 0.125]),
        (Sampling(1.0, top_p=0.6), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(1.0, top_p=0.8), [4 / 7, 2 / 7, 1 / 7, 0]),  # of equal ones the first
        (Sampling(1.0, top_p=0.0), [1, 0, 0, 0]),
        (Sampling(1.0, top_k=2, top_p=0.5), [1, 0, 0, 0]),  # top-p of what top-k left
        (Sampling(0.5, top_p=0.7), [1, 0, 0, 0]),  # of scores that are divided
    ],
)
def test_probabilities(sampling, wanted):
    found = probabilities(LOGITS, sampling)
    assert found == pytest.approx(wanted, abs=1e-6)


NUMBERS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=20)


@given(NUMBERS, st.floats(0.05, 5), st.integers(0, 25), st.floats(0, 1))
def test_what_is_left_is_a_law_that_keeps_the_most_likely(logits, temperature, top_k, top_p):
    logits = np.array(logits, np.float32)
    found = probabilities(logits, Sampling(temperature, top_k, top_p))
    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    assert found[logits.argmax()] == found.max() > 0


def test_of_scores_that_are_almost_equal_the_largest_stays():
    """Their probabilities are the same number."""
    found = probabilities(np.array([-1e-45, 0.0], np.float32), Sampling(1.0, top_p=0.0))
    assert found.tolist() == [0.0, 1.0]


def test_draws_are_those_of_the_law_and_of_the_seed():
    counts = np.zeros(4)
    choose = Sampler(Sampling(1.0), seed=5)
    tokens = [choose(LOGITS) for _ in range(4000)]
    np.add.at(counts, tokens, 1)
    assert counts / 4000 == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.03)
    again, other, second = (Sampler(Sampling(1.0), *by) for by in ((5,), (6,), (5, 1)))
    runs = [[one(LOGITS) for _ in range(4000)] for one in (again, other, second)]
    assert runs[0] == tokens and tokens not in runs[1:]


def test_greedy_takes_the_first_of_the_largest():
    assert Sampler()(np.array([1, 3, 3, 2], np.float32)) == 1
    assert Sampler(GREEDY, 7)(np.array([-np.inf, -2.0], np.float32)) == 1
    for bad in ([np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]):
        with pytest.raises(MeshcError, match="no largest number"):
            Sampler()(np.array(bad, np.float32))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temperature", "-1"], "the temperature is -1.0, not 0 or more"),
        (["--temperature", "nan"], "the temperature is nan, not 0 or more"),
        (["--top-k", "-2"], "top-k is -2, not 0 or more"),
        (["--top-p", "1.5"], "top-p is 1.5, not 0 to 1"),
        (["--seed", "-1"], "--seed is -1, not 0 or more"),
        (["--seed", "3"], "--seed is 3, but the most likely tokens are taken, and none is drawn"),
        (["--stop", ""], "a text to stop at is empty"),
    ],
)
def test_settings_that_are_none_are_refused(words, said, capsys):
    assert main(["run", "smollm2-135m", "--prompt", "a", *words]) == 1
    assert said in capsys.readouterr().err


def tokens_of(capsys, path, *words, mesh="2x2"):
    given = ["--prompt-ids", "5,17,42", "--max-tokens", "6", "--mesh", mesh, "--json"]
    assert main(["run", str(path), *given, *words]) == 0
    return json.loads(capsys.readouterr().out)["tokens"]


@pytest.mark.models
def test_draws_are_the_same_on_every_mesh_and_target(capsys):
    """The logits of f32 programs differ by less than what separates draws."""
    path = TINY / "llama-3h1"
    greedy = tokens_of(capsys, path)
    hot = ("--temperature", "3", "--ignore-eos")
    drawn = tokens_of(capsys, path, *hot, "--seed", "3")
    assert drawn == tokens_of(capsys, path, *hot, "--seed", "3", mesh="3x1")
    others = [tokens_of(capsys, path, *hot, "--seed", str(seed)) for seed in (4,)]
    assert drawn not in others
    assert tokens_of(capsys, path, *hot, "--top-k", "1") == tokens_of(capsys, path, "--ignore-eos")
    assert tokens_of(capsys, path, "--temperature", "0") == greedy
    wafer = ("--target", "csl", "--device", "wse3", "--dtype", "f32")
    assert tokens_of(capsys, path, *hot, "--seed", "3", *wafer) == drawn


@pytest.mark.models
def test_nothing_is_drawn_where_the_cores_choose_and_no_text_ends_without_a_tokenizer(capsys):
    words = ["run", str(TINY / "llama-3h1"), "--prompt-ids", "5", "--max-tokens", "1"]
    wafer = ["--target", "csl", "--choose", "cores", "--mesh", "1x1", "--phase", "decode"]
    assert main([*words, *wafer, "--temperature", "1"]) == 1
    assert "the cores choose the likeliest token" in capsys.readouterr().err
    assert main([*words, "--mesh", "1x1", "--stop", "."]) == 1
    assert "error[no-tokenizer]" in capsys.readouterr().err

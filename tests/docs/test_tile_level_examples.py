"""Examples of docs/tile-level.md: they parse, print back equal, keep their claims and compute."""

import re
from pathlib import Path

import numpy as np
import pytest

from meshc.interp.tile import TileMachine
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.support.spans import Source
from meshc.verify import check_claims

PAGE = Path(__file__).parents[2] / "docs" / "tile-level.md"
BLOCKS = re.findall(r"^```meshir( runnable)?\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
RANDOM = np.random.default_rng(3)


def mesh_gemm(machine):
    a, b = RANDOM.standard_normal((2, 8, 8))
    machine.load("A", a)
    machine.load("B", b)
    np.testing.assert_allclose(machine.run()["C"], a @ b, rtol=1e-4, atol=1e-5)


def tree(machine):
    part = RANDOM.standard_normal((9, 1, 4))
    machine.load("part", part)
    expected = np.broadcast_to(part.sum(0), part.shape)
    np.testing.assert_allclose(machine.run()["sums"], expected, rtol=1e-4, atol=1e-5)


def split_token(machine):
    q, keys, values = RANDOM.standard_normal((3, 6, 2, 4))
    for pos in range(6):
        for name, array in (("q", q), ("kn", keys), ("vn", values)):
            machine.load(name, array[pos])
        scores = np.einsum("hd,thd->ht", q[pos], keys[: pos + 1])
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        expected = np.einsum("ht,thd->hd", weights, values[: pos + 1])
        np.testing.assert_allclose(machine.run({"pos": pos})["o"], expected, rtol=1e-4, atol=1e-5)


MEANINGS = {"mesh_gemm": mesh_gemm, "tree": tree, "split_token": split_token}


def test_every_example_is_run():
    names = [parse_module(Source("example", text)).name for runnable, text in BLOCKS if runnable]
    assert names == list(MEANINGS)


@pytest.mark.parametrize("text", [text for _, text in BLOCKS])
def test_examples_print_back_equal_and_keep_their_claims(text):
    module = parse_module(Source("example", text))
    assert print_module(module) == text
    assert module.holds
    verify_module(module)
    check_claims(module)


@pytest.mark.parametrize("text", [text for runnable, text in BLOCKS if runnable])
@pytest.mark.parametrize("transfers", ["early", "late"])
@pytest.mark.parametrize("schedule", ["round-robin", "depth-first", "random(5)"])
def test_runnable_examples_compute_what_the_page_says(text, transfers, schedule):
    module = parse_module(Source("example", text))
    MEANINGS[module.name](TileMachine(module, transfers, schedule))

"""Laws of growth: recovered from counts that follow them, and those of Fig. 6 and Fig. 8."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.proofs.growth import LAWS, faster, growth, latency
from meshc.driver.growing import laws
from meshc.driver.questions import GEMMS, GEMVS

SIDES = (16, 64, 256)


@given(st.sampled_from(sorted(LAWS)), st.floats(0, 50), st.floats(1, 100))
def test_a_law_is_found_again(name, offset, factor):
    """Counts that follow a law exactly; where they hardly change there is nothing to find."""
    counts = {p: offset * LAWS[name](SIDES[0]) + factor * LAWS[name](p) for p in SIDES}
    assert growth(counts) == name


def test_counts_are_whole_numbers():
    assert growth({4: 7, 9: 7, 16: 7}) == "1"
    assert growth({16: 2 * 3 + 1, 64: 2 * 7 + 1, 256: 2 * 15 + 1}) == "P^(1/2)"
    assert growth({16: 1000, 64: 250, 256: 63}) == "1/P"
    assert growth({16: 5, 64: 7, 256: 9}) == "log P"


def test_order_and_text():
    assert faster("P", "1") and faster("1", "1/P") and faster("1/P", "1/P^2")
    assert not faster("log P", "log P")
    assert latency("P", "1") == "a P + b"


FIGURE_6 = {  # paths, latency of a step, bytes
    "cyclic_shift": ("1", "a + b", "1/P^2"),
    "cannon": ("1", "a P + b", "1/P^2"),
    "summa": ("1", "a P + b", "1/P^2"),
    "allgather": ("1", "a + b", "1/P"),
    "transposed": ("1", "a + b", "1/P^2"),
}
FIGURE_8 = {  # paths, latency of the whole
    "pipeline": ("1", "a P + b P"),
    "ring": ("1", "a P + b P"),
    "tree": ("log P", "a P + b log P"),
    "two_phase": ("1", "a P + b P^(1/2)"),
    "k_tree:2": ("1", "a P + b P^(1/2)"),
    "k_tree:3": ("1", "a P + b P^(1/3)"),
    "k_tree:4": ("1", "a P + b P^(1/4)"),
}


@pytest.mark.parametrize("algo", GEMMS)
def test_figure_6(algo):
    """As in the paper but for two: the cores of SUMMA take turns on one path for each way, by
    switch tables, and gathers go round an interleaved ring, so neither takes a path per core."""
    found = laws("gemm", algo, "wse2")
    assert (found.paths, found.step, found.bytes) == FIGURE_6[algo]


@pytest.mark.parametrize("algo", GEMVS)
def test_figure_8(algo):
    found = laws("gemv", algo, "wse2")
    assert (found.paths, found.path) == FIGURE_8[algo]
    assert found.bytes == "1/P^2"

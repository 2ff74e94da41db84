"""The busiest GPU with whole experts, beside drawn ones."""

from itertools import combinations

import numpy as np
import pytest

from meshc.cost.expert_coverage import coverage_of
from meshc.cost.expert_shares import busiest_reached, busiest_rows, expected_largest, most_reached


@pytest.mark.parametrize("gpus, each", [(2, 3), (3, 2), (4, 2)])
def test_the_most_is_the_mean_over_all_choices(gpus, each):
    for reached in range(gpus * each + 1):
        counts = [
            max(sum(x // each == gpu for x in chosen) for gpu in range(gpus))
            for chosen in combinations(range(gpus * each), reached)
        ]
        assert most_reached(gpus, each, reached) == pytest.approx(np.mean(counts))


def test_between_whole_numbers_lies_a_line():
    low, high = most_reached(8, 16, 20), most_reached(8, 16, 21)
    assert busiest_reached(8, 16, 20.25) == pytest.approx(0.75 * low + 0.25 * high)
    assert busiest_reached(8, 16, 128.0) == 16


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_largest_of_normal_values(count):
    drawn = np.random.default_rng(1).normal(size=(200_000, count)).max(axis=1).mean()
    assert expected_largest(count) == pytest.approx(drawn, abs=0.01)


@pytest.mark.parametrize(
    "experts, top_k, gpus, tokens", [(128, 8, 8, 64), (128, 8, 4, 2000), (8, 2, 4, 500)]
)
def test_rows_of_the_busiest_are_those_of_drawn_tokens(experts, top_k, gpus, tokens):
    """Tokens choose each expert with its own probability, and experts are dealt at random."""
    random, law = np.random.default_rng(0), coverage_of(experts, top_k)
    found = []
    for _ in range(400):
        rows = random.binomial(tokens, np.array(law.inclusion))
        found.append(random.permutation(rows).reshape(gpus, -1).sum(axis=1).max())
    assert busiest_rows(law, gpus, tokens, tokens) == pytest.approx(np.mean(found), rel=0.03)


def test_one_gpu_has_all_rows():
    assert busiest_rows(coverage_of(8, 2), 1, 10, 10) == 20

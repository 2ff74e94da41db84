"""Groups of layers: counts by rule, and divisions balanced by cost."""

from itertools import combinations
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cost.layer_groups import balanced_groups
from meshc.serving.group_counts import ByDoubling, ByLatency, ByLength, Fixed

COSTS = st.lists(st.integers(1, 20), min_size=1, max_size=9)


@given(st.integers(1, 100_000))
def test_count_by_length_is_that_of_the_paper(tokens):
    assert ByLength()(tokens) == max(1, ceil(tokens / 512))


@pytest.mark.parametrize(
    ("tokens", "count"), [(1, 1), (512, 1), (513, 2), (2048, 4), (2049, 8), (4097, 16), (9999, 16)]
)
def test_count_by_doubling(tokens, count):
    assert ByDoubling(16)(tokens) == count
    assert ByDoubling(12)(tokens) == min(12, count)


def test_count_by_latency_is_the_least_that_keeps_the_target():
    rule = ByLatency(0.1, 48, lambda tokens, groups: 0.01 + tokens * 1e-4 / groups)
    assert [rule(n) for n in (100, 900, 901, 4000)] == [1, 1, 2, 5]
    assert ByLatency(0.001, 48, lambda tokens, groups: 1.0)(10) == 48
    assert Fixed(3)(10**6) == 3


@pytest.mark.parametrize(("layers", "count"), [(48, 16), (48, 10), (7, 3), (5, 9), (1, 1)])
def test_equal_layers_are_dealt_evenly(layers, count):
    sizes = [len(group) for group in balanced_groups([2.0] * layers, count)]
    assert sum(sizes) == layers and len(sizes) == min(count, layers)
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@given(COSTS, st.integers(1, 12))
def test_the_dearest_group_is_as_cheap_as_any_division_makes_it(costs, count):
    groups = balanced_groups(costs, count)
    parts = min(count, len(costs))
    assert len(groups) == parts and all(groups)
    assert [layer for group in groups for layer in group] == list(range(len(costs)))
    found = max(sum(costs[i] for i in group) for group in groups)
    best = min(
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True))
        for cuts in combinations(range(1, len(costs)), parts - 1)
    )
    assert found == best


def test_a_dear_first_layer_has_a_group_of_its_own():
    assert [len(g) for g in balanced_groups([4.0] + [1.0] * 8, 3)] == [1, 4, 4]

"""Geometry of K-trees by brute force: every core is reduced once, channel counts are right."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cost import reductions
from meshc.devices import device

MESH = device("ideal").with_numbers(step_cycles=0)


def reduced(size, groups):
    """What position 0 holds after all phases when core p starts with {p}; inbound counts."""
    held = [frozenset({p}) for p in range(size)]
    inbound = [0] * size
    stride = 1
    for group in groups:
        for place in range(group - 1, 0, -1):
            for p in range(0, size, stride):
                if (p // stride) % group == place:
                    assert not held[p] & held[p - stride]
                    held[p - stride] |= held[p]
                    held[p] = frozenset()
                    inbound[p - stride] += 1
        stride *= group
    return held[0], inbound


@given(st.integers(1, 300), st.integers(1, 4))
def test_a_tree_reaches_every_core_once(size, phases):
    groups = reductions.tree_groups(size, phases)
    assert prod(groups) >= size and len(groups) <= phases
    total, inbound = reduced(size, groups)
    assert total == frozenset(range(size))
    for p in range(size):
        chains = inbound[p] + (p >= 1)
        assert reductions.tree_inputs(p, size, groups, size) == chains


@given(st.integers(2, 300), st.integers(1, 4))
def test_groups_are_balanced(size, phases):
    groups = reductions.tree_groups(size, phases)
    if len(groups) == phases:
        assert (max(groups) - 1) ** phases < size


@pytest.mark.parametrize(("size", "segments"), [(12, 3), (24, 4), (8, 8), (9, 1)])
def test_candidates_keep_segments_apart(size, segments):
    for option in reductions.candidates(size, segments, 4, MESH):
        total, _ = reduced(size, option.groups)
        assert total == frozenset(range(size))
        inner = option.groups[:-1] if segments > 1 else option.groups
        assert segments == 1 or prod(inner) >= size // segments


def test_more_words_or_cores_never_cost_less():
    for groups in ((64,), (8, 8), (4, 4, 4)):
        costs = [reductions.tree_cost(groups, 64, w, MESH).total for w in (1, 2, 64)]
        assert costs == sorted(costs)
    rings = [reductions.ring_cost(n, 64, MESH).total for n in (2, 4, 8, 64)]
    assert rings == sorted(rings)

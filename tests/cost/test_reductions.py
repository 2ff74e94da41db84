"""Geometry of K-trees by brute force: every core is reduced once, channel counts are right."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.cost import reductions
from meshc.devices import device

MESH = device("ideal").with_numbers(step_cycles=0)
WSE2 = device("wse2")


def reduced(size, groups):
    """What position 0 holds after all phases when core p starts with {p}."""
    held = [frozenset({p}) for p in range(size)]
    stride = 1
    for group in groups:
        for place in range(group - 1, 0, -1):
            for p in range(0, size, stride):
                if (p // stride) % group == place:
                    assert not held[p] & held[p - stride]
                    held[p - stride] |= held[p]
                    held[p] = frozenset()
        stride *= group
    return held[0]


def strides(groups):
    return [prod(groups[:phase]) for phase in range(len(groups))]


@given(st.integers(1, 300), st.integers(1, 4))
def test_a_tree_reaches_every_core_once(size, phases):
    groups = reductions.tree_groups(size, phases)
    assert prod(groups) >= size and len(groups) <= phases
    assert reduced(size, groups) == frozenset(range(size))


@given(st.integers(2, 300), st.integers(1, 4))
def test_groups_are_balanced(size, phases):
    groups = reductions.tree_groups(size, phases)
    if len(groups) == phases:
        assert (max(groups) - 1) ** phases < size


@pytest.mark.parametrize(("size", "segments"), [(12, 3), (24, 4), (8, 8), (9, 1)])
def test_candidates_keep_segments_apart(size, segments):
    """One tree of each number of phases stays inside segments until the last, if their size has
    such factors."""
    found = reductions.tree_candidates(size, segments)
    apart = 0
    for groups in found:
        assert reduced(size, groups) == frozenset(range(size))
        assert len(groups) == 1 or prod(groups[:-1]) < size
        apart += size // segments in strides((*groups, 1))
    assert apart >= 1 and len({len(groups) for groups in found}) == len(found)


def when_reduced(size, groups, words, found):
    """When position 0 has the sum, core by core: each waits for its own and for what comes."""
    link, ready, stride = found.link, [0.0] * size, 1
    each = link.relay_cycles - link.hop_cycles
    for group in groups:
        for first in range(0, size, stride * group):
            cores = range(first, min(first + stride * group, size), stride)
            ways = [n * stride * link.hop_cycles + max(0, n - 1) * each for n in range(len(cores))]
            if len(cores) > 1:
                last = max(ready[core] + way for core, way in zip(cores, ways, strict=True))
                ready[first] = last + link.route_cycles + words
        stride *= group
    return ready[0]


@given(st.integers(2, 300), st.integers(1, 4), st.integers(1, 40))
def test_groups_of_fewer_cores_have_their_sums_earlier(size, phases, words):
    groups = reductions.tree_groups(size, phases)
    found = reductions.reduce_cost(groups, words, WSE2, size=size).total
    assert found == pytest.approx(when_reduced(size, groups, words, WSE2))


def test_more_words_or_cores_never_cost_less():
    for groups in ((64,), (8, 8), (4, 4, 4)):
        costs = [reductions.tree_cost(groups, 64, w, MESH).total for w in (1, 2, 64)]
        assert costs == sorted(costs)
    rings = [reductions.ring_cost(n, 64, MESH).total for n in (2, 4, 8, 64)]
    assert rings == sorted(rings)

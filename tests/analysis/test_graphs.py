"""Graph helpers against definitions, on random graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.proofs import graphs

edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14)
acyclic = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda e: e[0] < e[1]), max_size=14
)


def has_cycle(pairs):
    reach = set(pairs)
    while True:
        more = {(a, d) for a, b in reach for c, d in reach if b == c} - reach
        if not more:
            return any(a == b for a, b in reach)
        reach |= more


@given(edges)
def test_a_cycle_is_found_iff_there_is_one(pairs):
    cycle = graphs.find_cycle(pairs)
    assert (cycle is not None) == has_cycle(pairs)
    if cycle:
        assert all((a, b) in pairs for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))


@given(edges)
def test_order_exists_iff_there_is_no_cycle(pairs):
    if has_cycle(pairs):
        with pytest.raises(ValueError, match="cyclic"):
            graphs.topological_order(pairs)
        return
    order = graphs.topological_order(pairs, range(8))
    assert sorted(order) == list(range(8))
    assert all(order.index(a) < order.index(b) for a, b in pairs)


def test_order_prefers_the_names_given_first():
    assert graphs.topological_order([("c", "a")], ["d", "c", "b", "a"]) == ("d", "c", "b", "a")
    assert graphs.topological_order([("a", "d")], ["d", "c", "b", "a"]) == ("c", "b", "a", "d")


def paths(pairs, node):
    return [(node, *rest) for a, b in pairs if a == node for rest in paths(pairs, b)] + [(node,)]


@given(acyclic, st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_longest_path_by_brute_force(pairs, numbers):
    weights = dict(enumerate(numbers))
    length, path = graphs.longest_path(pairs, weights)
    every = [p for node in range(8) for p in paths(set(pairs), node)]
    assert length == max(sum(weights[n] for n in p) for p in every)
    assert path in every and sum(weights[n] for n in path) == length


def test_longest_path_of_nothing():
    assert graphs.longest_path([], {}) == (0.0, ())


@given(edges, st.integers(0, 7))
def test_reachable(pairs, start):
    found = graphs.reachable(pairs, start)
    assert start in found and all(b in found for a, b in pairs if a in found)
    assert all(n == start or any(b == n and a in found for a, b in pairs) for n in found)

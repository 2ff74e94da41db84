"""The shortest cycle of a graph, against all closed walks of a length."""

from hypothesis import given
from hypothesis import strategies as st

from meshc.support.graphs import shortest_cycle

edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14)


def least_length(pairs):
    """The length of the shortest closed walk, 0 where there is none."""
    walks = set(pairs)
    for length in range(1, 9):
        if any(a == b for a, b in walks):
            return length
        walks = {(a, d) for a, b in walks for c, d in pairs if b == c}
    return 0


@given(edges)
def test_it_is_a_cycle_and_no_other_is_shorter(pairs):
    found = shortest_cycle(pairs)
    assert len(found) == least_length(pairs)
    assert all(pair in pairs for pair in zip(found, found[1:] + found[:1], strict=True))


def test_of_equal_ones_it_begins_at_the_node_named_first():
    assert shortest_cycle([("c", "d"), ("d", "c"), ("a", "b"), ("b", "a")]) == ("c", "d")
    assert shortest_cycle([("b", "a"), ("a", "b"), ("a", "a")]) == ("a",)

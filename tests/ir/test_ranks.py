"""Parts of dims that ranks hold: the header's check against the elements themselves."""

from hypothesis import given
from hypothesis import strategies as st

from meshc.ir.ranks import RankPart, Ranks, rank_mistakes

SMALL = st.integers(1, 7)


@given(SMALL, SMALL, SMALL, st.integers(0, 7), st.integers(1, 4))
def test_parts_hold_each_element_once(count, own, whole, team, copies):
    part, dims = RankPart("P", "W", team, copies), {"P": own, "W": whole}
    alike = (team or own) == own
    held = [
        element
        for rank in range(0, count, copies if alike else 1)
        for element in part.elements(rank, dims)
        if element is not None
    ]
    found = list(rank_mistakes(Ranks(count, (part,)), dims, "graph"))
    assert (not found) == (held == list(range(whole)))

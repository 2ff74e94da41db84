"""Heads dealt to ranks: none is left out, and those that read a key head have it."""

from itertools import product

from meshc.analysis.heads import head_shares


def test_every_query_is_some_ranks_beside_its_key_head():
    for keys, group, ranks in product(range(1, 10), range(1, 6), (1, 2, 3, 4, 8)):
        share = head_shares(keys * group, keys, ranks)
        found = set()
        for rank in range(ranks):
            team, place = divmod(rank, share.copies)
            first = team * share.team + place * share.queries
            last = min(first + share.queries, (team + 1) * share.team, keys * group)
            mine = range(team * share.keys, (team + 1) * share.keys)
            assert all(query // group in mine for query in range(first, last))
            found |= {*range(first, last)}
        assert found == {*range(keys * group)}


def test_shares():
    assert head_shares(32, 8, 2) == (16, 4, 16, 1)
    assert head_shares(9, 9, 2) == (5, 5, 5, 1)
    assert head_shares(9, 3, 2) == (6, 2, 6, 1)
    assert head_shares(32, 4, 8) == (4, 1, 8, 2)

"""How heads of attention are dealt to ranks: GPUs that compute a model together."""

from __future__ import annotations

from typing import NamedTuple


class HeadShares(NamedTuple):
    """What a rank has: ``queries`` and ``keys`` are its heads, some of the last ranks' padding;
    ``copies`` ranks have the same key heads, and share the ``team`` of queries that read them."""

    queries: int
    keys: int
    team: int
    copies: int


def head_shares(queries: int, keys: int, ranks: int) -> HeadShares:
    """The share of a rank of so many heads.

    A rank has whole groups: the next key heads with all queries that read them. Where there are
    more ranks than key heads, several ranks of a team have the same one, and a share of its queries
    each; ranks that are left over have padding.
    """
    group = queries // keys
    copies = max(1, min(ranks // keys, group))
    own = -(-keys // ranks)
    team = own * group
    return HeadShares(-(-team // copies), own, team, copies)

"""Traffic between blocks of a cluster: the formulas, and what blocks would really read and send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.cuda.dsmem import (
    Attention,
    LatentAttention,
    gather_bytes,
    printed_traffic,
    reduce_bytes,
    split_head,
    split_token,
    split_token_latent,
    traffic,
)

POWERS = st.sampled_from([1, 2, 4, 8, 16])


def tree_rounds(cluster: int) -> list[int]:
    """Strides of Algorithms 1 and 2."""
    strides, stride = [], 1
    while stride < cluster:
        strides.append(stride)
        stride *= 2
    return strides


@given(st.integers(1, 4096), st.integers(1, 16))
def test_ranked_collectives_read_or_send_every_peers_part_once(size: int, cluster: int) -> None:
    pairs = [(a, b) for a in range(cluster) for b in range(cluster) if a != b]
    assert reduce_bytes(size, cluster) == size * len(pairs)
    assert gather_bytes(size * cluster, cluster) == size * len(pairs)


@given(st.integers(1, 4096), POWERS)
def test_trees_as_printed_are_their_rounds(size: int, cluster: int) -> None:
    """Each round sends the whole vector (reduce) or all segments gathered so far (gather)."""
    rounds = tree_rounds(cluster)
    assert reduce_bytes(size, cluster, "tree") == sum(size * cluster for _ in rounds)
    assert gather_bytes(size * cluster, cluster, "tree") == sum(size * s * cluster for s in rounds)


@pytest.mark.parametrize("count", [reduce_bytes, gather_bytes])
@pytest.mark.parametrize("cluster", [3, 6, 12])
def test_trees_are_for_powers_of_two(count, cluster: int) -> None:
    with pytest.raises(ValueError, match="no power of two"):
        count(4, cluster, "tree")
    blocks = cluster if count is reduce_bytes else 1
    assert count(4, cluster) == 4 * blocks * (cluster - 1)


def test_llama_2_7b() -> None:
    """One head per cluster of four: 96 of 384 rows each, 128 sums, a weight and a maximum."""
    shape = Attention(4096, 32, 32, 128)
    collectives = split_token(shape)
    assert [c.values for c in collectives] == [384, 130]
    assert traffic(collectives, 4) == 4 * 12 * (96 + 130)


def test_grouped_heads_share_a_cluster() -> None:
    shape = Attention(4096, 32, 8, 128, batch=2)
    assert [c.values for c in split_token(shape)] == [2 * 768, 2 * 520]
    assert [c.values for c in split_head(shape, 1000)] == [2 * 4 * 1000, 2 * 4096]


@given(POWERS.filter(lambda n: n > 1), st.sampled_from([64, 128, 256]), st.integers(1, 1 << 14))
def test_printed_totals(cluster: int, head: int, context: int) -> None:
    """The appendix's totals are ours without softmax statistics, in the tree scheme."""
    shape = Attention(4096, 32, 32, head)
    gather, sums = split_token(shape)
    vector = reduce_bytes(sums.values - 2, cluster, "tree")
    printed = printed_traffic("split_token", cluster, H=head)
    assert printed == vector + gather_bytes(gather.values, cluster, "tree")
    by_head = traffic(split_head(shape, context), cluster, "tree", value_bytes=1)
    assert printed_traffic("split_head", cluster, S=context, D=4096) == by_head


def test_latent_attention_reduces_all_latent_lanes() -> None:
    """DeepSeek-V2-Lite. The printed formula has a block's share of them, and no rope lanes."""
    shape = LatentAttention(2048, 16, latent=512, rope=64, query=128, value=128)
    collectives = split_token_latent(shape, 4)
    assert [(c.kind, c.values) for c in collectives] == [
        ("read", 3 * 192),
        ("read", 576 - 192),
        ("gather", 512),
        ("reduce", 514),
        ("gather", 128),
    ]
    printed = printed_traffic("latent", 4, H=128, L=512)
    assert printed == 12 * 32 + 2 * 12 * 128 + 8 * 128 + 8 * 128
    ours = traffic(collectives, 4, "tree", value_bytes=1)
    rope, statistics, latent = 12 * 16, 8 * 2, 8 * (512 - 128)
    once = 576 - 192 - 12 * 128  # one block alone reads the new latent
    value = 12 * 32 - 8 * 128  # gathered, where the paper reduces partial sums
    assert ours - printed == rope + statistics + latent + once + value


def test_blocks_of_several_heads_read_their_own_queries_alone() -> None:
    shape = LatentAttention(2048, 16, latent=512, rope=64, query=128, value=128, group=4, batch=3)
    collectives = split_token_latent(shape, 2)
    # Of 84 groups of rows the first block has 42: three heads and 96 lanes of the last, of which it
    # lacks the rotary ones. The other has the rest of that head, and needs the third's.
    assert [(c.kind, c.values) for c in collectives] == [
        ("read", 3 * (64 + 128 + 96 + 3 * 64)),
        ("read", 0),
        ("gather", 2 * 2048),
        ("reduce", 2 * 2 * 514),
        ("gather", 2048),
        ("reduce", 2 * 514),
        ("gather", 3 * 512),
    ]


def test_one_block_moves_nothing() -> None:
    shape = Attention(4096, 32, 32, 128)
    assert traffic(split_token(shape), 1) == traffic(split_head(shape, 100), 1) == 0

"""What a block takes of its core, and how many clusters run at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshc.analysis.cuda.blocks import block_memory, coresident, waves
from meshc.devices import device

H100 = device("h100")


def test_two_blocks_of_a_core_share_its_memory() -> None:
    assert block_memory(H100) == 227 * 1024
    assert block_memory(H100, 2) == 113 * 1024


def test_clusters_at_once() -> None:
    """Public sweeps: 120 of 132 multiprocessors have a block of a cluster of 8."""
    assert [n * coresident(H100, n) for n in (1, 2, 4, 8, 16)] == [132, 132, 124, 120, 112]
    assert [coresident(H100, n, 2) for n in (1, 2, 4, 8, 16)] == [264, 132, 66, 31, 15]


@given(st.integers(1, 300), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2]))
def test_waves_hold_all_clusters(clusters: int, cluster: int, resident: int) -> None:
    found = waves(H100, clusters, cluster, resident)
    assert sum(found) == clusters
    assert all(0 < n <= coresident(H100, cluster, resident) for n in found)


def test_a_cluster_that_no_group_of_cores_holds() -> None:
    small = H100.with_numbers(cluster_domains="6,6")
    assert waves(small, 4, 8, 1) == ()

"""Heads and blocks of a cluster of latent attention: what fits, and what is predicted fastest."""

from dataclasses import replace

import pytest

from meshc.analysis.cuda.blocks import latent_shared_bytes
from meshc.analysis.cuda.dsmem import LatentAttention, split_token_latent, traffic
from meshc.cost import latent
from meshc.devices import device

LITE = LatentAttention(2048, 16, latent=512, rope=64, query=128, value=128)
H200 = device("h200")


@pytest.mark.parametrize("context", [1024, 4096, 16384])
def test_the_choice_is_the_fastest_that_fits(context: int) -> None:
    found = latent.candidates(H200, LITE, context)
    assert {c.group for c in found} == {1, 2, 4, 8, 16}
    chosen = latent.choose(H200, LITE, context)
    assert chosen is not None
    assert chosen.seconds == min(c.seconds for c in found)
    for c in found:
        one = replace(LITE, group=c.group)
        moved = traffic(split_token_latent(one, c.cluster), c.cluster) if c.cluster > 1 else 0
        assert c.dsmem_bytes == 16 // c.group * moved
        assert c.blocks == 16 // c.group * c.cluster


def test_one_head_of_a_cluster_waits_for_global_memory_and_more_for_tensor_cores() -> None:
    cycles = {g: latent_shared_bytes(replace(LITE, group=g)) / 128 for g in (1, 2, 4, 8, 16)}
    assert cycles == {1: 43, 2: 69, 4: 35, 8: 35, 16: 35}
    arriving = H200.cores * 1152 / H200.read_bytes_per_second / H200.seconds(1)
    assert arriving == pytest.approx(62, abs=0.5)


def test_every_cluster_reads_the_latents_for_itself() -> None:
    one, four = (latent.read_bytes(replace(LITE, group=g), 4096) for g in (1, 4))
    assert one - four == 2 * (16 - 4) * 576 * (2048 + 4096)


def test_every_cluster_makes_the_latent_of_queries_for_itself() -> None:
    low = replace(LITE, query_rank=768, group=4)
    weights = 16 * 192 * (768 - 2048) + 4 * 768 * 2048  # of queries; of their latent, four times
    assert latent.read_bytes(low, 512) - latent.read_bytes(replace(LITE, group=4), 512) == (
        2 * weights
    )


@pytest.mark.parametrize("context", [1024, 16384])
def test_a_cluster_for_each_head_reads_too_much(context: int) -> None:
    chosen = latent.choose(H200, LITE, context)
    assert chosen is not None
    assert (chosen.group, chosen.cluster, chosen.waves) == (4, 16, 1)


def test_what_does_not_fit_is_said() -> None:
    wide = replace(LITE, latent=576)
    assert latent.choose(H200, wide, 1024) is None
    assert any("latents of 576" in words for words in latent.all_misfits(H200, wide))

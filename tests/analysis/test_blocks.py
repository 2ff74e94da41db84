"""What a block takes of its core, and how many clusters run at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reduced import each

from meshc.analysis.cuda.blocks import (
    LEAST_STAGES,
    MOST_REGISTERS,
    MOST_STAGES,
    block_memory,
    coresident,
    latent_memory,
    memory_limits,
    most_resident,
    registers,
    rows_plan,
    shared_memory,
    waves,
)
from meshc.analysis.cuda.dsmem import Attention, LatentAttention, traffic
from meshc.backends.cuda.kernels.attention_block import kernel as attention
from meshc.backends.cuda.kernels.rows_product import kernel as rows
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.cost.clusters import collectives, misfits
from meshc.devices import device

H100, H200 = device("h100"), device("h200")


def placed(parts):
    """Parts in the order of their places, each before those that have its memory later."""
    for part in parts:
        yield part
        yield from placed(part.then)


SHAPES = [
    Attention(4096, 32, 32, 128),
    Attention(4096, 32, 8, 128, batch=2),
    Attention(8192, 64, 8, 128),
    Attention(576, 9, 3, 64, batch=4),
    Attention(3072, 32, 32, 96),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("flow", ["split_token", "split_head"])
@pytest.mark.parametrize("cluster", [2, 4])
@pytest.mark.parametrize("resident", [1, 2])
def test_plan_of_attention_is_that_of_the_kernel(
    shape: Attention, resident: int, cluster: int, flow: str
) -> None:
    sizes = shape.batch, shape.hidden, shape.heads, shape.kv_heads, shape.head
    one = attention.Attention(*sizes, "f16", 16, 1e-5, 0.1)
    plan = shared_memory(H100, shape, cluster, flow, 300, resident)
    if not plan.fits or misfits(H100, shape, cluster, flow, 300):
        with pytest.raises(DoesNotFit):
            attention.plan(one, H100, cluster, flow, 300, resident)
        return
    kernel = attention.plan(one, H100, cluster, flow, 300, resident)
    ring, *parts = kernel.arena.parts
    every = [*placed(plan.parts)]
    assert [(p.name, p.bytes) for p in every] == [(p.name, p.bytes) for p in parts]
    assert (plan.tile_bytes, plan.stages) == (kernel.tile_bytes, kernel.stages)
    assert plan.bytes == kernel.arena.bytes
    assert ring.bytes == plan.stages * plan.tile_bytes
    moved = traffic(collectives(shape, cluster, flow, 300), cluster)
    assert shape.kv_heads * moved == kernel.dsmem_bytes([300] * shape.batch)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize(("width", "rows_"), [(4096, 22016), (11008, 4096), (576, 49152)])
def test_plan_of_rows_is_that_of_the_kernel(width: int, rows_: int, batch: int) -> None:
    kernel = rows.plan(rows.RowsProduct(batch, width, rows_, "f16"), H100)
    plan = rows_plan(H100, width, rows_, batch)
    assert plan.memory.fits
    assert sorted((p.name, p.bytes) for p in plan.memory.parts) == sorted(
        (p.name, p.bytes) for p in kernel.arena.parts[1:]
    )
    assert plan.memory.bytes == kernel.arena.bytes
    assert (plan.cluster, plan.dsmem_bytes) == (kernel.cluster, kernel.dsmem_bytes)


@pytest.mark.parametrize(
    ("width", "rows_"), [(4096, 22016), (4096, 28672), (11008, 4096), (576, 3072), (8192, 57344)]
)
def test_products_of_one_vector_leave_room_for_the_next_grid(width: int, rows_: int) -> None:
    """Two blocks fit a core, each with a ring that keeps memory busy or with all its tiles."""
    memory = rows_plan(H200, width, rows_, 1).memory
    assert memory.bytes <= block_memory(H200, 2)
    assert memory.bytes_in_flight >= H200.bytes_in_flight or memory.stages == MOST_STAGES


def test_products_of_many_vectors_take_the_whole_core() -> None:
    memory = rows_plan(H200, 4096, 28672, 16).memory
    assert block_memory(H200, 2) < memory.bytes <= block_memory(H200)
    assert memory.bytes_in_flight >= H200.bytes_in_flight


@given(
    st.sampled_from([64, 96, 128, 256]),
    st.integers(1, 8),
    st.integers(1, 2048),
    st.integers(1, 16),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2]),
)
def test_a_plan_that_fits_is_within_its_limit(head, group, eights, batch, cluster, resident):
    shape = Attention(8 * eights, group, 1, head, batch)
    plan = shared_memory(H100, shape, cluster, resident=resident)
    assert plan.fits == (plan.bytes <= plan.limit)
    assert plan.stages <= MOST_STAGES
    assert (plan.stages >= LEAST_STAGES) == plan.fits
    reserved = H100.clusters.block_reserved_bytes
    assert resident * (plan.limit + reserved) <= H100.clusters.core_memory_bytes


def test_two_blocks_of_a_core_share_its_memory() -> None:
    assert block_memory(H100) == 227 * 1024
    assert block_memory(H100, 2) == 113 * 1024
    assert memory_limits(H100) == (113 * 1024, 227 * 1024)
    assert memory_limits(H100, 2) == (113 * 1024,)


def test_attention_leaves_room_for_the_next_grid_where_that_costs_no_bandwidth() -> None:
    few, many = Attention(4096, 32, 32, 128), Attention(4096, 32, 32, 128, batch=8)
    held, whole = shared_memory(H200, few, 4), shared_memory(H200, many, 4)
    assert held == shared_memory(H200, few, 4, resident=2)
    assert held.bytes_in_flight >= H200.bytes_in_flight
    assert shared_memory(H200, many, 4, resident=2).bytes_in_flight < H200.bytes_in_flight
    assert whole.bytes_in_flight >= H200.bytes_in_flight and whole.bytes > block_memory(H200, 2)


def test_latent_attention_does_so_too() -> None:
    few, many = (LatentAttention(2048, 16, 512, 64, 128, 128, n, 1) for n in (1, 16))
    held, whole = (latent_memory(H200, one, 8) for one in (few, many))
    assert held.bytes <= block_memory(H200, 2) < whole.bytes
    assert held.bytes_in_flight >= H200.bytes_in_flight


def test_one_block_has_a_plan_too() -> None:
    kernel = attention.plan(
        attention.Attention(1, 4096, 32, 32, 128, "f16", 16, 1e-5, 0.1), H100, 1
    )
    plan = shared_memory(H100, SHAPES[0], 1)
    assert plan.bytes == kernel.arena.bytes


def test_scores_of_a_long_context_do_not_fit_when_split_by_head() -> None:
    shape = Attention(4096, 32, 32, 128)
    assert shared_memory(H100, shape, 4, "split_head", 8192).fits
    assert not shared_memory(H100, shape, 4, "split_head", 32768).fits


def test_registers_follow_the_group() -> None:
    found = [registers(Attention(4096, h, 1, 128, 16)) for h in (1, 4, 8, 9, 64)]
    assert found == [96, 136, MOST_REGISTERS, 136, 136]
    assert most_resident(H100, Attention(4096, 32, 32, 128)) == 2
    assert most_resident(H100, Attention(4096, 32, 16, 128)) == 2
    assert most_resident(H100, Attention(4096, 32, 8, 128)) == 1


@pytest.mark.cuda_compiler
@pytest.mark.parametrize(
    ("shape", "resident"),
    each(
        [
            (Attention(4096, 32, 32, 128), 2),
            (Attention(576, 8, 4, 64), 2),
            (Attention(576, 9, 3, 64), 1),
            (Attention(4096, 32, 8, 128), 1),
            (Attention(4096, 32, 32, 128, batch=16), 1),
            (Attention(4096, 64, 1, 64), 1),
        ],
        6,
    ),
)
def test_registers_are_enough_for_the_kernel(shape: Attention, resident: int) -> None:
    sizes = shape.batch, shape.hidden, shape.heads, shape.kv_heads, shape.head
    one = attention.Attention(*sizes, "f16", 16, 1e-5, 0.1)
    plan = attention.plan(one, H100, 4, resident=resident)
    kernel = compile_cubin(attention.text(plan, "attention")).kernels["attention"]
    assert (kernel.spill_bytes, kernel.stack_bytes) == (0, 0)
    assert kernel.registers <= (registers(shape) if resident > 1 else MOST_REGISTERS)
    assert resident <= most_resident(H100, shape)


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

"""Operations: what overlaps, what stays flat as meshes grow, and how costs add."""

from math import ceil

import pytest

from meshc.cost import operations, reductions
from meshc.cost.operations import Tile, cyclic_shift
from meshc.cost.terms import MECHANISMS, Cost
from meshc.devices import device

WSE2 = device("wse2")


def gemm(size, p, hops=2):
    edge = ceil(size / p)
    return cyclic_shift(Tile(edge, edge, edge), p, WSE2, hops).total


def test_interleaving_keeps_small_products_flat_where_cannon_grows():
    """WaferLLM Figure 9, GEMM 2K from 360x360 to 720x720 cores."""
    assert gemm(2048, 720) / gemm(2048, 360) == pytest.approx(1, abs=0.05)
    assert gemm(2048, 720, 719) / gemm(2048, 360, 359) > 1.5
    assert gemm(2048, 720, 719) > 2 * gemm(2048, 720)


def test_hidden_transfers_cost_nothing_but_their_last_cycle():
    tile = Tile(64, 64, 64)
    near, far = cyclic_shift(tile, 8, WSE2, 2), cyclic_shift(tile, 8, WSE2, 7)
    assert near == far and near.waits == near.transfer == 0
    assert cyclic_shift(tile, 8, WSE2, 10**6).waits > 0


def test_one_step_moves_nothing():
    assert cyclic_shift(Tile(1, 1, 1), 1, WSE2, 10**6).waits == 0
    assert operations.shifts(0, 8, 2, WSE2).total == 0


def test_a_chain_is_near_the_vendors_simulator():
    """A reduce of 128 words over 15 cores took 317 cycles there, its program start included."""
    assert 128 < reductions.reduce_cost((15,), 128, WSE2).total < 317


def test_costs_add_and_scale():
    one = Cost(1, 2, 3, 4, 5)
    assert (one + one) == one * 2 == 2 * one and one.total == 15
    assert one.parts() == dict(zip(MECHANISMS, (1, 2, 3, 4, 5), strict=True))
    assert sum([one, one], Cost()) == one * 2


def test_a_message_has_its_parts():
    assert operations.message(10, 3, WSE2) == Cost(transfer=13, stages=24.5)


def test_two_phases_beat_one_at_wafer_size():
    one, two = (reductions.tree_cost(g, 720, 8, WSE2).total for g in ((720,), (27, 27)))
    chain = 719 + 718 * 5 + 8 + 24.5
    # The last group has 18 cores, whose sum waits for that of the 26 groups of 27 in front of it.
    groups = 26 + 25 * 5 + 25 * 27 + 24 * 5 + 2 * (8 + 24.5)
    cast = 720 + 8 + 24.5
    assert (one, two) == (chain + cast, groups + cast)
    assert reductions.ring_cost(720, 8, WSE2).total > two

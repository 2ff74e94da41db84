"""Costs of products: what the paper says of the algorithms holds of the predictions."""

from dataclasses import replace

import pytest

from meshc.cost.products import Tiles, product_costs
from meshc.devices import device

WSE2 = device("wse2")


def costs(side, extent=2048, **changes):
    share = -(-extent // side)
    tiles = Tiles(side, side, share, share, share, 2, False, False)
    return product_costs(replace(tiles, **changes), WSE2)


@pytest.mark.parametrize("side", [4, 16, 90, 360, 720])
def test_mesh_gemm_is_never_behind(side):
    found = costs(side)
    assert found["cyclic_shift"].cycles <= found["cannon"].cycles
    assert found["cyclic_shift"].cycles <= found["summa"].cycles
    assert found["cyclic_shift"].hops == 2 and found["cyclic_shift"].stages == 1


def test_only_mesh_gemm_stays_flat_where_work_runs_out():
    """GEMM 2K from 360 to 720 cores a side: Cannon's ways outgrow the work (WaferLLM Fig. 9)."""
    few, many = costs(360), costs(720)
    assert many["cyclic_shift"].cycles < 1.6 * few["cyclic_shift"].cycles
    assert many["cannon"].cycles > 2 * few["cannon"].cycles


def test_memory_of_allgather_grows_with_the_mesh():
    share = {n: costs(n, 16 * n)["allgather"].bytes for n in (4, 8, 16)}
    assert share[8] == 2 * share[4] and share[16] == 4 * share[4]
    fixed = {costs(n, 16 * n)["cyclic_shift"].bytes for n in (4, 8, 16)}
    assert len(fixed) == 1


def test_aligning_on_the_cores_costs_half_a_turn():
    by_host, by_cores = costs(8, 64), costs(8, 64, turn_left=True, turn_right=True)
    assert by_cores["cyclic_shift"].cycles > by_host["cyclic_shift"].cycles
    assert by_cores["cyclic_shift"].colors == 2 * by_host["cyclic_shift"].colors
    assert by_cores["summa"] == by_host["summa"]

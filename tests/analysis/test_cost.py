"""The cost model against published measurements and against its own limits."""

from math import ceil, sqrt

import pytest

from meshc.analysis import cost, reduction
from meshc.devices import device

WSE2 = device("wse2")
# hidden, heads * head dim is the same (full multi-head attention is what was timed), FFN, layers
MODELS = {
    "llama3-8b": (4096, 14336, 32),
    "llama2-13b": (5120, 13824, 40),
    "codellama-34b": (8192, 22016, 48),
    "qwen2-72b": (8192, 29568, 80),
}
# WaferLLM Table 3: prefill tokens per second per request, 4096 tokens, P x P cores.
PREFILL = {
    "llama3-8b": {480: 20320.6, 600: 25037.2, 720: 27686.5},
    "llama2-13b": {480: 13685.1, 600: 16854.2, 720: 17498.3},
    "codellama-34b": {480: 5471.4, 600: 7540.1, 720: 8526.0},
    "qwen2-72b": {480: 2785.2, 600: 3775.5, 720: 4421.6},
}
# WaferLLM Table 4: decode tokens per second per request, 4096 tokens of context.
DECODE = {
    "llama3-8b": {420: 2699.9, 540: 2501.5, 660: 2243.3},
    "llama2-13b": {420: 2039.2, 540: 1899.4, 660: 1739.8},
    "codellama-34b": {420: 1450.8, 540: 1407.7, 660: 1359.2},
    "qwen2-72b": {420: 839.7, 540: 824.3, 660: 787.1},
}


def prefill_rate(model, p, tokens=4096):
    hidden, inner, layers = MODELS[model]
    rows, e, f = ceil(tokens / p), ceil(hidden / p), ceil(inner / p)
    tiles = [(rows, e, e)] * 4 + [(rows, e, rows), (rows, rows, e)]
    tiles += [(rows, e, f)] * 2 + [(rows, f, e)]
    cycles = sum(cost.cyclic_shift(cost.Tile(*t), p, WSE2).cycles for t in tiles)
    return tokens * WSE2.clock_hz / (cycles * layers)


def decode_rate(model, p, context=4096):
    hidden, inner, layers = MODELS[model]
    e, f, s = ceil(hidden / p), ceil(inner / p), ceil(context / p)
    group = ceil(sqrt(p))
    groups = (group, ceil(p / group))
    # two norms, q, k, v, score maximum and sum folded into one, S.V, output, gate and up, down
    payload = [1, 1, e, e, e, s, e + 2, e, 2 * f, e]
    cycles = sum(cost.centred_tree(groups, p, n / 2, WSE2) for n in payload)
    products = [(e, e)] * 4 + [(e, f)] * 2 + [(f, e), (e, s), (s, e)]
    macs = sum(k * n for k, n in products) / WSE2.macs("f16")
    started = 7 * e + 2 * s  # one vector operation for each weight row; gate and up share theirs
    return WSE2.clock_hz / ((cycles + macs + started * WSE2.op_cycles) * layers)


@pytest.mark.parametrize("model", MODELS)
def test_prefill_of_the_paper(model):
    for p, rate in PREFILL[model].items():
        assert prefill_rate(model, p) == pytest.approx(rate, rel=0.025)


@pytest.mark.parametrize("model", MODELS)
def test_decode_of_the_paper(model):
    for p, rate in DECODE[model].items():
        assert decode_rate(model, p) == pytest.approx(rate, rel=0.02)


def gemm(size, p, hops=2):
    edge = ceil(size / p)
    return cost.cyclic_shift(cost.Tile(edge, edge, edge), p, WSE2, hops).cycles


def test_interleaving_keeps_small_products_flat_where_cannon_grows():
    """WaferLLM Figure 9, GEMM 2K from 360x360 to 720x720 cores."""
    assert gemm(2048, 720) / gemm(2048, 360) == pytest.approx(1, abs=0.05)
    assert gemm(2048, 720, 719) / gemm(2048, 360, 359) > 1.5
    assert gemm(2048, 720, 719) > 2 * gemm(2048, 720)


def test_hidden_transfers_cost_nothing_but_their_last_cycle():
    tile = cost.Tile(64, 64, 64)
    near, far = cost.cyclic_shift(tile, 8, WSE2, 2), cost.cyclic_shift(tile, 8, WSE2, 7)
    assert near == far and near.transfer == 0
    assert cost.cyclic_shift(tile, 8, WSE2, 10**6).transfer > 0


def test_one_step_moves_nothing():
    tile = cost.Tile(1, 1, 1)
    assert cost.cyclic_shift(tile, 1, WSE2, 10**6).transfer == 0
    assert cost.cyclic_shift_transposed(tile, 1, WSE2, 10**6).transfer == 0
    assert cost.alignment(tile, 1, WSE2).cycles == 0


def test_pipelined_chain_is_near_the_vendors_simulator():
    """A reduce of 128 words over 15 cores took 317 cycles there, its program start included."""
    assert 128 < cost.pipelined_chain(128, 15) < 317


def test_costs_add_and_scale():
    one = cost.Cost(1, 2, 3)
    assert (one + one) == one * 2 == 2 * one and one.cycles == 6


def test_kv_shift_does_not_depend_on_the_mesh():
    assert cost.kv_shift(16, WSE2).cycles < 100
    assert cost.broadcast(16, 720, WSE2).cycles > 720


def test_broadcast_over_a_crossbar_is_one_hop():
    h100 = device("h100")
    assert cost.broadcast(16, 16, h100) == cost.broadcast(16, 2, h100)


def test_two_phases_beat_one_at_wafer_size():
    link = cost.link_cost(WSE2)
    one, two = ((reduction.tree_cycles(g, 720, 8, link)) for g in ((720,), (27, 27)))
    assert two < one / 3
    assert reduction.ring_cycles(720, 8, link) > two

"""Layers of transformers on a wafer: what the forms say, and the device's own constants."""

from math import ceil

import pytest

from meshc.cost import operations, transformers
from meshc.cost.least_squares import fitted
from meshc.cost.operations import Tile
from meshc.cost.transformers import LADDER, T10, WAFERLLM, Layer
from meshc.devices import device
from meshc.driver.reproduction.wafer_llm import MODELS, TOKENS, layer_of
from meshc.published import table

WSE2 = device("wse2")
OWN = {"vector_cycles": 3.6, "result_cycles": 3.5, "step_cycles": 250}
STEPS = {"route_cycles": 25, "op_cycles": 27}
LLAMA = Layer(4096, 14336)


@pytest.mark.parametrize("model", MODELS)
def test_numbers_of_the_device_have_the_prompts_of_the_paper(model):
    """The constants of passes are fitted to Table 3, by the tile product that passes count."""
    layer, count = layer_of(model)
    for row in table("waferllm", "3").where(model=model, system="WaferLLM"):
        side = row.whole("side")
        tiles = transformers.products(layer, side, TOKENS)
        cycles = count * sum(operations.cyclic_shift(tile, side, WSE2).total for tile in tiles)
        assert TOKENS / WSE2.seconds(cycles) == pytest.approx(row.number("rate"), rel=0.025)


@pytest.mark.parametrize("model", MODELS)
def test_numbers_of_the_device_have_the_steps_of_the_paper(model):
    layer, count = layer_of(model)
    own = {name: WSE2.real(name) for name in ("route_cycles", "op_cycles")}
    for row in table("waferllm", "4").where(model=model, system="WaferLLM"):
        cost = WAFERLLM.step_layer(layer, row.whole("side"), TOKENS, own, WSE2)
        rate = 1 / WSE2.seconds(count * cost.total)
        assert rate == pytest.approx(row.number("rate"), rel=0.04)


def test_a_layer_has_the_multiply_adds_of_its_matrices():
    """On sides that divide all extents nothing is padded."""
    side, tokens, layer = 64, 512, Layer(512, 1024)
    tiles = transformers.products(layer, side, tokens)
    macs = sum(tile.m * tile.k * tile.n for tile in tiles) * side**3
    assert macs == tokens * (4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512 * tokens)
    steps = sum(k * n for k, n in transformers.matrices(layer, side, tokens)) * side**2
    assert steps == 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512 * tokens


def test_messages_hide_behind_large_tiles_and_not_behind_small_ones():
    large, small = Tile(64, 64, 64), Tile(2, 2, 2)
    far = transformers.mesh_gemm(large, 8, OWN, WSE2, hops=7)
    assert far == transformers.mesh_gemm(large, 8, OWN, WSE2)
    near, away = (transformers.mesh_gemm(small, 720, OWN, WSE2, hops=h) for h in (2, 719))
    assert away.total > 2 * near.total


def test_systems_of_others_grow_with_the_mesh_where_the_papers_shrinks():
    moves = {"word_hop_cycles": 2, "step_hop_cycles": 100} | OWN
    for system in (T10, LADDER):
        few, many = (
            system.prompt_layer(LLAMA, side, TOKENS, moves, WSE2).total for side in (480, 720)
        )
        assert many > few
    few, many = (WAFERLLM.prompt_layer(LLAMA, side, TOKENS, OWN, WSE2).total for side in (480, 720))
    assert many < few


def test_a_reduction_to_roots_saves_the_way_back():
    groups = transformers.balanced(720)
    assert groups == (27, 27)
    whole, half = (
        transformers.centred_tree(groups, 720, STEPS, WSE2, back=back).total
        for back in (True, False)
    )
    assert whole - half == 360


def test_weights_without_room_go_twice():
    side = 100
    room = WSE2.room_bytes // transformers.ELEMENT_BYTES * side**2
    fits = transformers.replaced(room, side, OWN, WSE2)
    more = transformers.replaced(2 * room, side, OWN, WSE2)
    words = ceil(WSE2.room_bytes / WSE2.link.word_bytes)
    assert fits.transfer == pytest.approx(2 * side * (words + 1), rel=1e-3)
    assert more.transfer == pytest.approx(2 * side * (3 * words + 1), rel=1e-3)


def test_a_fit_finds_what_made_the_times():
    def times(found):
        return [max(found["a"] * x + found["b"], 5.0) for x in (1, 2, 3, 9)]

    assert fitted({"a": 1, "b": 1}, times, times({"a": 2.5, "b": 4})) == pytest.approx(
        {"a": 2.5, "b": 4}
    )


def test_a_fit_has_no_negative_constants():
    """Times that fall with their count are met by the fixed part alone."""
    found = fitted(
        {"a": 1, "b": 1}, lambda c: [c["a"] * x + c["b"] for x in (1, 2, 3)], [3, 2.9, 2.8]
    )
    assert found["a"] == 0 and found["b"] == pytest.approx(2.9, rel=0.01)

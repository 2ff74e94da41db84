"""Attention by tiles of tensor cores and statement by statement, as emitted steps have them."""

import json
from dataclasses import replace

import pytest

import meshc
from meshc.cost.tasks.attended import Attended, attended
from meshc.cost.tasks.phase_times import step_time
from meshc.cost.tasks.stages import Piece
from meshc.cost.tasks.tile_times import TileTimes
from meshc.devices import device
from meshc.ir.ops import task

LLAMA = {"model_type": "llama", "num_key_value_heads": 2}
LATENTS = {
    "model_type": "deepseek_v2", "kv_lora_rank": 64, "q_lora_rank": None, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "first_k_dense_replace": 9,
}  # fmt: skip
BOTH = {
    "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2,
    "vocab_size": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip


def compiled(folder, config, **options):
    (folder / "config.json").write_text(json.dumps({**BOTH, **config}))
    usual = {"target": "cuda", "phase": "decode", "dtype": "f16", "device": "h200", "seq": 1024}
    return meshc.compile(folder, **usual | options)


def attentions_of(module):
    families = (op for op in module.walk() if isinstance(op, task.Family))
    return [found for found in map(attended, families) if found is not None]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("odd"), {**LLAMA, "head_dim": 72})


def test_heads_of_odd_lanes_are_attended_statement_by_statement(odd):
    check(odd, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "by_tiles"),
    [
        ({**LLAMA, "head_dim": 64}, True),
        ({**LLAMA, "head_dim": 272}, False),
        (LATENTS, True),
        ({**LATENTS, "qk_rope_head_dim": 24}, False),
    ],
)
def test_the_event_model_attends_as_the_step_does(config, by_tiles, tmp_path):
    check(compiled(tmp_path, config), by_tiles)


def check(result, by_tiles):
    (told,) = (d for d in result.remarks if d.code == "step-of-tasks")
    assert ("statement by statement" not in told.message) == by_tiles
    found = attentions_of(result.modules["decode"])
    assert found and {one.by_tiles for one in found} == {by_tiles}


@pytest.mark.slow
def test_lanes_that_blocks_share_are_attended_statement_by_statement(tmp_path):
    few = device("h200").with_numbers(cores=8)
    config, how = {**LLAMA, "head_dim": 64}, {"dataflow": "split_head", "cluster": 2}
    found = attentions_of(compiled(tmp_path, config, device=few, **how).modules["decode"])
    scores, sums = found
    assert (scores.lanes, scores.values, sums.lanes, sums.values) == ((32,), 0, (), 32)
    assert not scores.by_tiles and not sums.by_tiles


def test_instructions_are_those_of_the_busiest_scheduler():
    """Of 4 queries, 48 tokens and heads of 72 lanes eight warps have elements of scores, of sums
    nine, for three of which the others wait."""
    shape = Attended(4, 48, (72,), 72)
    assert shape.issued(False) == 8 * 300 + 8 * 72 * 4.6 + 12 * 48 * 6.5
    assert shape.issued(True) == 8 * 300 + 8 * 72 * 17.2 + 12 * 48 * 23.3
    assert replace(shape, values=0).issued(False) == 8 * 72 * 4.6
    assert replace(shape, lanes=(320,)).issued(False) == 8 * 300 + 8 * 320 * 10.6 + 12 * 48 * 6.5


def test_statements_take_longer_than_tiles(odd, monkeypatch):
    module = odd.modules["decode"]
    computing = [step_time(module, {"pos": 1023}).spent.computing]
    monkeypatch.setattr(Attended, "by_tiles", True)
    computing.append(step_time(module, {"pos": 1023}).spent.computing)
    assert computing[0] > 2 * computing[1]
    times, tile = TileTimes(device("h200")), Piece(16384, "attention", 4)
    slow = replace(tile, issued=Attended(4, 48, (72,), 72).issued(False) / (4 * 48 * 72))
    assert times.piece(slow) > 10 * times.piece(tile)

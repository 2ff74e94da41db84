"""Models whose layers are of several kinds, one loop after the other, as CUDA kernels."""

import pytest
from layer_kinds import Kind, check, compiled

from meshc.backends.cuda import ahead, from_json
from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.steps import step_program
from meshc.ir.ops import graph
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DENSE, WIDE = Kind(1, 2, 2, 96, 10000.0), Kind(2, 2, 2, 160, 10000.0)
OTHER = Kind(2, 4, 2, 160, 500.0, gated=False)
KERNELS = {"dataflow": "split_token"}
"""Asks for a step of several kernels."""


@pytest.mark.parametrize(
    ("kinds", "room", "options"),
    [
        ((DENSE, WIDE), False, {"cluster": 2}),
        pytest.param((WIDE, DENSE, OTHER), True, {"cluster": 1}, marks=pytest.mark.slow),
        ((WIDE, DENSE, OTHER), False, {"cluster": 2}),
    ],
    ids=["other features", "room beside each other", "other heads, angles and activation"],
)
def test_prompt_and_steps_agree_with_float64(kinds, room, options, tmp_path, monkeypatch):
    """Without ``room`` beside each other kernels prefetch what the next one reads."""
    monkeypatch.setattr(ahead, "_fit_together", lambda *_: room)
    result = compiled(tmp_path, kinds, **options)
    program = from_json(result.files["manifest.json"])
    assert [stage.layers for stage in program.stages] == [kind.layers for kind in kinds]
    check(result, kinds)


def test_stages_share_kernels_and_tables_that_are_the_same(tmp_path):
    program = from_json(compiled(tmp_path, (DENSE, WIDE), **KERNELS).files["manifest.json"])
    assert {"attention_block", "ffn_inner", "ffn_inner_2"} <= program.kernels.keys()
    assert "attention_block_2" not in program.kernels
    assert len(program.frequencies) == 1
    assert program.buffers["keys"].shape[0] == 1 and program.buffers["keys_2"].shape[0] == 2
    assert program.weights["down_2"].sources == ("w2_1",)
    program = from_json(compiled(tmp_path, (DENSE, OTHER), **KERNELS).files["manifest.json"])
    assert "attention_block_2" in program.kernels and len(program.frequencies) == 2
    assert program.stages[1].launches[0].arguments[-2:] == ("cosines_2", "sines_2")


def test_what_is_prefetched_behind_a_stage_is_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "_fit_together", lambda *_: False)
    program = from_json(compiled(tmp_path, (WIDE, DENSE), **KERNELS).files["manifest.json"])
    last = [
        launch.arguments[-1] for launch, _ in program.launches() if "ffn_outer" in launch.kernel
    ]
    assert last == ["qkv[1]", "qkv_2[0]", ""]
    # Stages of other heads deal their weights out in another way than the text of a kernel says.
    program = from_json(compiled(tmp_path, (WIDE, OTHER), **KERNELS).files["manifest.json"])
    last = [
        launch.arguments[-1] for launch, _ in program.launches() if "ffn_outer" in launch.kernel
    ]
    assert last[:2] == ["qkv[1]", ""]


def test_a_cache_of_two_loops_is_refused(tmp_path):
    """No model in the language shares one; a graph that is written by hand may."""
    module = compiled(tmp_path, (WIDE, WIDE), **KERNELS).modules["decode"]
    first, second = (op for op in module.function.body.ops if isinstance(op, graph.Repeat))
    states = {param.value for param in module.function.params if param.role == "state"}
    mine = next(n for n, value in enumerate(second.operands) if value in states)
    second.operands[mine] = next(value for value in first.operands if value in states)
    with pytest.raises(MeshcError, match=r"cuda-graph.*share the cache"):
        step_program(module, "stages", 16)

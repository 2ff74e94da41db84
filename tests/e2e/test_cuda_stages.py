"""Models whose layers are of several kinds, one loop after the other, with chunks of prompts."""

import pytest
from layer_kinds import Kind, check, compiled

from meshc.backends.cuda import ChunkGraph, from_json
from meshc.backends.cuda.chunk_launches import chunk_of
from meshc.backends.cuda.executor import CXX
from meshc.ir.ops import graph
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

DENSE, WIDE = Kind(1, 2, 2, 96, 10000.0), Kind(2, 2, 2, 160, 10000.0)
OTHER = Kind(2, 4, 2, 160, 500.0, gated=False)


@pytest.mark.parametrize(
    "kinds",
    [pytest.param((DENSE, WIDE), marks=pytest.mark.slow), (WIDE, DENSE, OTHER)],
    ids=["other features", "other heads, angles and activation"],
)
def test_prompt_and_steps_agree_with_float64(kinds, tmp_path):
    result = compiled(tmp_path, kinds, chunk=8)
    program = from_json(result.files["manifest.json"])
    assert [stage.layers for stage in program.prefills[0].stages] == [kind.layers for kind in kinds]
    check(result, kinds)


def test_stages_share_kernels_and_tables_that_are_the_same(tmp_path):
    program = from_json(compiled(tmp_path, (DENSE, WIDE), chunk=8).files["manifest.json"])
    assert {"chunk_attention", "chunk_ffn_inner", "chunk_ffn_inner_2"} <= program.kernels.keys()
    assert not {"chunk_attention_2", "chunk_heads_2"} & program.kernels.keys()
    assert len(program.frequencies) == 1
    assert program.buffers["keys"].shape[0] == 1 and program.buffers["keys_2"].shape[0] == 2
    assert program.weights["down_2"].sources == ("w2_1",)
    program = from_json(compiled(tmp_path, (DENSE, OTHER), chunk=8).files["manifest.json"])
    assert "chunk_attention_2" in program.kernels and len(program.frequencies) == 2
    (heads,) = (one for one in program.prefills[0].stages[1].launches if "heads" in one.kernel)
    assert heads.arguments[-2:] == ("cosines_2", "sines_2")


def test_a_cache_of_two_loops_is_refused(tmp_path):
    """No model in the language shares one; a graph that is written by hand may."""
    module = compiled(tmp_path, (WIDE, WIDE), chunk=8, compile_to="graph").modules["decode"]
    first, second = (op for op in module.function.body.ops if isinstance(op, graph.Repeat))
    states = {param.value for param in module.function.params if param.role == "state"}
    mine = next(n for n, value in enumerate(second.operands) if value in states)
    second.operands[mine] = next(value for value in first.operands if value in states)
    with pytest.raises(MeshcError, match=r"cuda-graph.*share the cache"):
        chunk_of(ChunkGraph(module, 8), 16, "multimem")

"""tensor-parallel: what all ranks compute together is what the whole graph means, over drawn models
with any grouping of heads, any number of ranks and odd sizes; caches are parts of the whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import check_same, random_trace, state_results
from meshc.interp.graph import run_graph
from meshc.interp.together import rank_inputs, rank_part, run_parts, run_ranks
from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.graph.tensor_parallel import TensorParallel
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

DATA = Path(__file__).parents[1] / "data"
BOUND = {np.float64: 1e-12, np.float32: 2e-5}
"""Of the largest value: rounding of sums in another order, through two layers."""


def graph_of(model: str, phase: str = "decode", seq: int = 6, layers: int = 2) -> Module:
    loaded = load_any(model, Diagnostics())
    request = CompileRequest(device="ideal", seq=seq, layers=layers or None)
    return PassManager(pipeline_to("graph")).run(graph_module(loaded, phase, request))


def dealt(module: Module, count: int, **options: object) -> Module:
    """The graph of a rank, by way of its text."""
    passes = [TensorParallel(count, **options)]  # type: ignore[arg-type]
    text = print_module(PassManager(passes).run(clone_module(module)))
    return parse_module(Source("rank.meshir", text))


def judge(whole: Module, rank: Module, seed: int, dtype: type = np.float64, steps: int = 3) -> None:
    """Every step of a random trace, states carried on: all ranks have the results of the whole
    graph, and their parts of its states."""
    count = rank.ranks.count if rank.ranks else 1
    trace = random_trace(whole, seed, steps)
    states = state_results(whole.function)
    held: dict[str, np.ndarray] = {}
    own: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    for inputs, scalars in trace.steps:
        given = {**trace.constant, **inputs}
        wanted = run_graph(whole, {**given, **held}, scalars, dtype)
        parts = [{**rank_inputs(rank, given, n), **own[n]} for n in range(count)]
        found = run_parts(rank, parts, scalars, dtype)
        for index, want in enumerate(wanted):
            kind = tensor_type(rank.function.body.ops[-1].tensors()[index])
            for number in range(count):
                part = rank_part(rank, kind, want, number)
                assert found[number][index].shape == part.shape
                error = np.abs(found[number][index] - part).max()
                assert error <= BOUND[dtype] * max(np.abs(want).max(), 1)
        held = {name: wanted[i] for name, i in states.items()}
        own = [{name: found[n][i] for name, i in states.items()} for n in range(count)]


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, object]:
    keys = draw(st.integers(1, 5))
    family = draw(st.sampled_from(["Qwen2", "Llama", "Qwen3"]))
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "hidden_act": "silu",
        "hidden_size": draw(st.integers(3, 20)),
        "intermediate_size": draw(st.integers(1, 24)),
        "num_attention_heads": keys * draw(st.integers(1, 4)),
        "num_key_value_heads": keys,
        "head_dim": 2 * draw(st.integers(1, 3)),
        "num_hidden_layers": 2,
        "vocab_size": draw(st.integers(2, 30)),
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": "float32",
    }


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configurations(), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_random_models_over_any_number_of_ranks(
    tmp_path_factory: pytest.TempPathFactory,
    config: dict[str, object],
    count: int,
    seed: int,
    narrow: bool,
) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(config))
    whole = graph_of(str(folder), "decode" if seed % 2 else "prefill")
    judge(whole, dealt(whole, count), seed, np.float32 if narrow else np.float64)


@pytest.mark.parametrize(
    ("model", "experts", "count"),
    [
        ("tiny_experts/qwen2-moe-6x2", "whole", 4),
        ("tiny_experts/qwen2-moe-6x2", "features", 3),
        ("tiny_experts/qwen3-moe-7x3", "whole", 2),
        ("tiny_gpt_oss/gpt-oss-5x2-yarn", "whole", 3),
        ("tiny_latent_experts/deepseek-v3-8x3", "whole", 3),
    ],
)
def test_experts_and_latents_over_ranks(model: str, experts: str, count: int) -> None:
    whole = graph_of(str(DATA / model), layers=0)
    rank = dealt(whole, count, experts=experts)
    assert rank.ranks is not None
    expert_dims = {op.dim for op in whole.walk() if isinstance(op, graph.TopK)}
    assert bool(expert_dims & {p.whole for p in rank.ranks.parts}) == (experts == "whole")
    judge(whole, rank, 1)


FAMILIES = sorted(path.name for path in (DATA / "tiny_families").iterdir() if path.is_dir())


@pytest.mark.parametrize("model", FAMILIES)
def test_a_model_of_every_family_over_ranks(model: str) -> None:
    """Positions that are learned, norms and biases of all kinds, windows, scaled RoPE: what no
    drawn configuration has."""
    whole = graph_of(str(DATA / "tiny_families" / model), layers=0)
    judge(whole, dealt(whole, 2 + FAMILIES.index(model) % 2), 1, steps=2)


def test_a_layer_of_a_dense_model_meets_twice() -> None:
    """Behind the attention and behind the feed-forward layer; a rank has its share of weights."""
    rank = dealt(graph_of("llama-3-8b", layers=1), 8)
    (loop,) = (op for op in rank.walk() if isinstance(op, graph.Repeat))
    inside = [op.NAME for op in loop.regions[0].walk() if isinstance(op, ranks.RankOp)]
    assert inside == ["graph.all_reduce", "graph.all_reduce"]
    extents = {name: rank.dims[name] for name in rank.dims if name.endswith("_rank")}
    assert extents == {"H_rank": 4, "G_rank": 1, "F_rank": 1792, "V_rank": 16032}


def test_the_shape_of_llama_3_3_70b_over_eight_ranks(tmp_path: Path) -> None:
    """Heads, key heads and the ratios of widths of the model, narrow: 64 heads, 8 key heads."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 128,
        "intermediate_size": 448,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 2,
        "num_hidden_layers": 2,
        "vocab_size": 2004,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole = graph_of(str(tmp_path))
    judge(whole, dealt(whole, 8), 3, np.float32)


def test_multiples_and_dims_that_stay_whole() -> None:
    whole = graph_of(str(DATA / "tiny" / "llama-9h3-tied"))
    rank = dealt(whole, 3, multiple=8, keep=("V",))
    assert "V_rank" not in rank.dims
    assert rank.dims["F_rank"] % 8 == 0
    assert not any(isinstance(op, (ranks.RankEmbed, ranks.AllGather)) for op in rank.walk())
    judge(whole, rank, 5)


def test_one_rank_is_the_whole_graph() -> None:
    whole = graph_of(str(DATA / "tiny" / "llama-3h1"))
    assert print_module(dealt(whole, 1)) == print_module(whole)


def test_kernels_of_a_rank_leave_sums_to_the_ranks() -> None:
    """Blocks without residual, whose bodies mean what the ops meant; look-ups in parts of a table
    are no kernel, so the vocabulary stays whole."""
    loaded = load_any(str(DATA / "tiny_cuda" / "llama-4h2"), Diagnostics())
    request = CompileRequest(device="h200", seq=16, dtype="f16", target="cuda")
    whole = graph_module(loaded, "decode", request)
    whole = PassManager(pipeline_to("graph")).run(whole)
    steps = parse_pipeline("tensor-parallel{ranks=2,multiple=8,keep=[V]},fuse-chunk")
    rank = PassManager(steps).run(clone_module(whole))
    kernels = [(op.kernel, op.partial) for op in rank.walk() if isinstance(op, graph.Fuse)]
    assert kernels == [
        ("embed", False),
        ("attention_block", True),
        ("ffn_block", True),
        ("head", False),
    ]
    judge(whole, rank, 4)


def test_a_rank_alone_is_refused() -> None:
    whole = graph_of(str(DATA / "tiny" / "llama-3h1"))
    rank = dealt(whole, 2)
    inputs, scalars = random_trace(rank, 1, 1).steps[0]
    arrays = rank_inputs(rank, {**random_trace(whole, 1, 1).constant, **inputs}, 0)
    with pytest.raises(MeshcError, match="interp-ranks"):
        run_graph(rank, arrays, scalars)


def test_the_failure_of_a_rank_is_told() -> None:
    """One rank cannot go on: the others, which wait for it, do not hide why."""
    whole = graph_of(str(DATA / "tiny" / "llama-3h1"))
    rank = dealt(whole, 3)
    trace = random_trace(whole, 1, 1)
    inputs, scalars = trace.steps[0]
    with pytest.raises(MeshcError, match="token id"):
        run_ranks(rank, {**trace.constant, **inputs, "tokens": np.array([[10**6]])}, scalars)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("F = 12", "F = 13"), "do not hold each element of F"),
        (("part dim = F_rank, whole = F", "part dim = F_rank, whole = Q"), "Q is no dim"),
        (("ranks count = 2\n  part dim = F_rank, whole = F\n", ""), "the header says no ranks"),
        (("whole = F}", "whole = E}"), "has no 'part dim = F_rank, whole = E'"),
        (("ranks count = 2", "ranks many = 2"), "how many there are"),
        (("whole = F\n", "whole = F, part = 2\n"), "a part is a dim of a whole dim"),
    ],
)
def test_what_is_wrong_with_ranks_is_told(change: tuple[str, str], message: str) -> None:
    text = """module @m level(graph) {
  dims L = 1, E = 8, F = 12, F_rank = 6
  ranks count = 2
  part dim = F_rank, whole = F
  func @main(in %x: f32[L, E], weight %w: f32[E, F_rank]) -> (f32[L, F]) {
    %h = graph.matmul %x, %w {contract = [E]} : f32[L, F_rank]
    %y = graph.all_gather %h {dim = F_rank, whole = F} : f32[L, F]
    graph.return %y
  }
}
"""
    PassManager([]).run(parse_module(Source("m.meshir", text)))
    assert change[0] in text
    with pytest.raises(MeshcError, match=message):
        PassManager(pipeline_to("graph")).run(
            parse_module(Source("m.meshir", text.replace(*change)))
        )


def test_a_sum_that_nobody_completes_is_noticed() -> None:
    """What --check runs around a pass: without its all_reduce a rank has other results."""
    whole = graph_of(str(DATA / "tiny" / "llama-9h3-tied"))
    text = print_module(dealt(whole, 3))
    assert check_same(whole, parse_module(Source("rank.meshir", text))).agrees
    broken = text.replace("%x_2 = graph.add %x_1, %o_sum ", "%x_2 = graph.add %x_1, %o ")
    assert broken != text
    with pytest.raises(MeshcError, match="interp-mismatch"):
        check_same(whole, parse_module(Source("rank.meshir", broken)))


def test_results_that_ranks_do_not_have_alike_are_noticed() -> None:
    text = """module @m level(graph) {
  dims L = 1, E = 8, F = 6
  func @main(in %x: f32[L, F], weight %w: f32[F, E]) -> (f32[L, E]) {
    %y = graph.matmul %x, %w {contract = [F]} : f32[L, E]
    graph.return %y
  }
}
"""
    whole = parse_module(Source("m.meshir", text))
    text = text.replace(
        "F = 6\n", "F = 6, F_rank = 3\n  ranks count = 2\n  part dim = F_rank, whole = F\n"
    )
    part = "%p = graph.rank_part %x {dim = F_rank, whole = F} : f32[L, F_rank]\n    %y"
    text = text.replace("f32[F, E]", "f32[F_rank, E]").replace("%y = graph", f"{part} = graph")
    text = text.replace("%x, %w {contract = [F]}", "%p, %w {contract = [F_rank]}")
    with pytest.raises(MeshcError, match="results of rank 1 are not those of rank 0"):
        check_same(whole, parse_module(Source("m.meshir", text)))

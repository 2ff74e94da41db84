"""Kernels of ranks on the GPUs of a node in the executor: blocks that leave parts of sums, and
collectives between them, give the logits of the graph of the whole model."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshc.backends.cuda import CpuMachine, CpuNode, LanguageModel
from meshc.backends.cuda.executor import CXX, FIRST, WATCHED, Mode, modes
from meshc.backends.cuda.executor.cpu_machine import toolchain_for
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.program import DealtAxis, RankShare, StepProgram, from_json
from meshc.backends.cuda.ranks import RankTensors
from meshc.backends.cuda.steps import step_program
from meshc.driver import CompileRequest, graph_module, load_any, open_weights
from meshc.interp.check import Session
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.native import Toolchain

TINY = Path(__file__).parents[2] / "data" / "tiny_cuda"
PROMPT, STEPS = [5, 17, 3, 40, 11], 4

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def graph_of(model: str) -> Module:
    request = CompileRequest(device="h200", seq=32, dtype="f16", target="cuda")
    loaded = load_any(str(TINY / model), Diagnostics())
    return PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))


def altered(module: Module, window: int, factor: float) -> Module:
    """``module`` with a ``window`` of attention, what is added to the residual times ``factor``."""
    for op in module.walk():
        if isinstance(op, graph.Softmax):
            op.window = window
    for loop in [op for op in module.walk() if isinstance(op, graph.Repeat) and factor != 1]:
        (body,) = loop.regions
        for added in [op for op in body.ops if isinstance(op, graph.Add)]:
            change = added.tensors()[1]
            scaled = graph.Scale([change], factor=factor)
            scaled.results = [Value(f"{added.result.name}_scaled", change.type)]
            body.ops.insert(body.ops.index(added), scaled)
            added.operands[1] = scaled.result
    return module


def of_ranks(module: Module, count: int, more: str = "") -> Module:
    deal = f"tensor-parallel{{ranks={count},multiple=8,keep=[V]}}"
    steps = parse_pipeline(f"{deal},fuse-all-reduce,fuse-cluster{more}")
    return PassManager(steps).run(clone_module(module))


def tensors_of(model: str) -> dict[str, np.ndarray]:
    place, loaded = TINY / model, load_any(str(TINY / model), Diagnostics())
    opened = open_weights(place, loaded.config, None, Diagnostics())
    return {name: np.asarray(opened[name]) for name in opened}


def decoded(model: LanguageModel, prompt: list[int] = PROMPT) -> tuple[list[int], np.ndarray]:
    logits: list[np.ndarray] = []
    tokens = list(model.generate(prompt, STEPS, lambda _, row: logits.append(row)))
    return tokens, np.array(logits)


def interpreted(
    module: Module, tensors: dict, tokens: list[int], prompt: list[int] = PROMPT
) -> np.ndarray:
    """Logits of the whole graph behind the prompt and behind all but the last of ``tokens``."""
    session = Session(module, tensors)
    rows = []
    for position, token in enumerate([*prompt, *tokens[:-1]]):
        (logits,) = session.step({"tokens": np.array([[token]])}, {"pos": position})
        rows.append(logits.reshape(-1))
    return np.array(rows[len(prompt) - 1 :])


def check(
    model: str,
    count: int,
    chunks: bool,
    more: str = "",
    transport: str = "multimem",
    mode: Mode = FIRST,
    tools: Toolchain | None = None,
    window: int = 0,
    factor: float = 1.0,
) -> None:
    whole = altered(graph_of(model), window, factor)
    rank = of_ranks(whole, count, more)
    program, texts = step_program(rank, model, 16, transport)
    if not chunks:
        program = of_single_tokens(program)
    tools = tools or toolchain_for(0)
    node = CpuNode(program.kernels, {**texts, **headers()}, count, mode, tools)
    tensors = tensors_of(model)
    tokens, logits = decoded(LanguageModel(program, node, tensors))
    wanted = interpreted(whole, tensors, tokens)
    assert tokens == wanted.argmax(1).tolist()
    assert np.abs(logits - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


def of_single_tokens(program: StepProgram) -> StepProgram:
    """``program`` without what reads chunks of prompts."""
    used = {launch.kernel for launch, _ in program.launches()}
    kernels = {name: kernel for name, kernel in program.kernels.items() if name in used}
    return replace(program, prefill=None, kernels=kernels)


def test_two_ranks_of_a_model() -> None:
    check("llama-4h2", 2, chunks=False)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["{cluster=2}", "{cluster=2,dataflow=split_head}", ""])
@pytest.mark.parametrize(("model", "count"), [("llama-4h2", 3), ("qwen2-2h1-bf16", 2)])
def test_ranks_by_both_dataflows_and_in_chunks(model: str, count: int, more: str) -> None:
    """Of three ranks, one has padding for heads; ranks of the second model share its key head."""
    check(model, count, chunks=True, more=more)


@pytest.mark.slow
@pytest.mark.parametrize("dataflow", ["split_token", "split_head"])
def test_ranks_attend_to_windows(dataflow: str) -> None:
    check("llama-4h2", 2, chunks=True, more=f"{{cluster=2,dataflow={dataflow}}}", window=3)


@pytest.mark.slow
def test_ranks_multiply_their_parts_of_sums() -> None:
    check("llama-4h2", 2, chunks=True, more="{cluster=2}", factor=0.4)


def test_windows_and_multipliers_reach_the_kernels_of_ranks() -> None:
    rank = of_ranks(altered(graph_of("llama-4h2"), 3, 0.4), 2)
    _, texts = step_program(rank, "altered", 16)
    assert "int WINDOW = 3;" in texts["attention_block.cu"]
    for file in ("attention_block.cu", "ffn_outer.cu", "head.cu"):
        assert ("float FACTOR = 0.4f;" in texts[file]) == (file != "head.cu"), file


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek-4h", "deepseek-4h-low-rank", "deepseek-2h-yarn-bf16"])
def test_ranks_share_heads_of_latent_attention(model: str) -> None:
    """Each rank has the whole cache of latents, and heads of its own."""
    check(model, 2, chunks=True)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["multimem", "peers"])
def test_all_schedules_give_the_same_tokens(transport: str) -> None:
    for mode in modes():
        check("llama-4h2", 3, chunks=False, transport=transport, mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["multimem", "peers"])
def test_no_kernel_of_a_rank_races(transport: str) -> None:
    """Shared memory of every kernel, and in collectives plain accesses of symmetric memory."""
    check("llama-4h2", 2, chunks=False, transport=transport, tools=WATCHED)


@pytest.mark.parametrize(("transport", "reach"), [("multimem", "@all"), ("peers", "@each")])
def test_a_step_meets_in_front_of_each_norm(transport: str, reach: str) -> None:
    """In front of both blocks of a layer and of the logits; nothing else joins GPUs."""
    program, _ = step_program(of_ranks(graph_of("llama-4h2"), 2), "llama", 16, transport)
    (stage,) = program.stages
    met = [
        [launch.arguments for launch in launches if program.kernels[launch.kernel].meets]
        for launches in (program.before, stage.launches, program.after)
    ]
    ends = "@rank", "@ranks"
    gains = [[], ["norm_of_attention[]", "norm_of_ffn[]"], ["norm_of_head"]]
    assert met == [
        [
            (f"sums{reach}", "residual", gain, f"normed{reach}", "sums", "signals@each", 1, *ends)
            for gain in part
        ]
        for part in gains
    ]
    assert from_json(program.to_json()) == program


@given(
    whole=st.integers(1, 40),
    ranks=st.integers(1, 9),
    multiple=st.integers(1, 4),
    axis=st.integers(0, 2),
)
def test_every_element_of_a_tensor_has_one_rank(whole, ranks, multiple, axis) -> None:
    """Parts side by side are the tensor with zeros behind it."""
    own = ceil(ceil(whole / ranks) / multiple) * multiple
    shape = tuple(whole if n == axis else 2 for n in range(3))
    tensor = np.arange(1, np.prod(shape) + 1).reshape(shape)
    share = RankShare(ranks, "peers", {"w": (DealtAxis(axis, whole, own, 0, 1),)})
    parts = [RankTensors(share, {"w": tensor}, rank)["w"] for rank in range(ranks)]
    assert {part.shape[axis] for part in parts} == {own}
    joined = np.moveaxis(np.concatenate(parts, axis), axis, 0)
    np.testing.assert_array_equal(joined[:whole], np.moveaxis(tensor, axis, 0))
    assert not joined[whole:].any()


def test_ranks_of_a_team_share_elements() -> None:
    """Six query heads of two key heads over four ranks: three of each team, two and one."""
    queries, keys = DealtAxis(0, 6, 2, 3, 2), DealtAxis(0, 2, 1, 0, 2)
    share = RankShare(4, "peers", {"q": (queries,), "k": (keys,)})
    tensors = {"q": np.arange(1, 7), "k": np.arange(1, 3)}
    parts = [RankTensors(share, tensors, rank) for rank in range(4)]
    assert [part["q"].tolist() for part in parts] == [[1, 2], [3, 0], [4, 5], [6, 0]]
    assert [part["k"].tolist() for part in parts] == [[1], [1], [2], [2]]


def test_a_gpu_that_holds_other_values_is_told() -> None:
    node = CpuNode({}, {}, 2)
    node.store("logits", np.zeros(4, np.float32))
    node.store_of(1, "logits", np.ones(4, np.float32))
    with pytest.raises(MeshcError, match="hold different values in logits"):
        node.read("logits")


def test_what_one_machine_does_not_run_is_refused() -> None:
    rank = of_ranks(graph_of("llama-4h2"), 2)
    program, texts = step_program(rank, "llama", 16)
    with pytest.raises(MeshcError, match="run-refused"):
        LanguageModel(program, CpuMachine({}, texts), {})


def test_parts_of_the_vocabulary_are_no_kernels() -> None:
    steps = parse_pipeline("tensor-parallel{ranks=2,multiple=8},fuse-cluster")
    rank = PassManager(steps).run(graph_of("llama-4h2"))
    with pytest.raises(MeshcError, match=r"graph.rank_embed is part of no kernel"):
        step_program(rank, "llama", 16)

"""Kernels of ranks in the executor: blocks without residual sum, collectives on the host, give the
logits of the graph of the whole model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda import CpuMachine, LanguageModel
from meshc.backends.cuda.emit import emit
from meshc.backends.cuda.executor import CXX
from meshc.backends.cuda.executor.cpu_machine import toolchain_for
from meshc.backends.cuda.library import headers
from meshc.backends.cuda.program import ALL_REDUCE, StepProgram
from meshc.backends.cuda.ranks import on_all_ranks
from meshc.backends.cuda.steps import step_program
from meshc.driver import CompileRequest, graph_module, load_any, open_weights
from meshc.interp.check import Session
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[2] / "data" / "tiny_cuda"
PROMPT, STEPS = [5, 17, 3, 40, 11], 4

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def graph_of(model: str) -> Module:
    request = CompileRequest(device="h200", seq=32, dtype="f16", target="cuda")
    loaded = load_any(str(TINY / model), Diagnostics())
    return PassManager(pipeline_to("graph")).run(graph_module(loaded, "decode", request))


def of_ranks(module: Module, count: int, more: str = "") -> Module:
    deal = f"tensor-parallel{{ranks={count},multiple=8,keep=[V]}}"
    steps = parse_pipeline(f"{deal},fuse-cluster{more}")
    return PassManager(steps).run(clone_module(module))


def tensors_of(model: str) -> dict[str, np.ndarray]:
    place, loaded = TINY / model, load_any(str(TINY / model), Diagnostics())
    opened = open_weights(place, loaded.config, None, Diagnostics())
    return {name: np.asarray(opened[name]) for name in opened}


def decoded(model: LanguageModel) -> tuple[list[int], np.ndarray]:
    logits: list[np.ndarray] = []
    tokens = list(model.generate(PROMPT, STEPS, lambda _, row: logits.append(row)))
    return tokens, np.array(logits)


def interpreted(module: Module, tensors: dict, tokens: list[int]) -> np.ndarray:
    """Logits of the whole graph behind the prompt and behind all but the last of ``tokens``."""
    session = Session(module, tensors)
    rows = []
    for position, token in enumerate([*PROMPT, *tokens[:-1]]):
        (logits,) = session.step({"tokens": np.array([[token]])}, {"pos": position})
        rows.append(logits.reshape(-1))
    return np.array(rows[len(PROMPT) - 1 :])


def check(model: str, count: int, chunks: bool, more: str = "") -> None:
    whole = graph_of(model)
    rank = of_ranks(whole, count, more)
    program, texts = step_program(rank, model, 16)
    if not chunks:
        program = of_single_tokens(program)
    files, tensors = {**texts, **headers()}, tensors_of(model)
    tools = toolchain_for(0)
    results = on_all_ranks(
        program,
        rank,
        tensors,
        lambda: CpuMachine(program.kernels, files, toolchain=tools),
        decoded,
    )
    tokens, logits = results[0]
    for others in results[1:]:
        assert others[0] == tokens
        np.testing.assert_array_equal(others[1], logits)
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
@pytest.mark.parametrize("model", ["deepseek-4h", "deepseek-4h-low-rank", "deepseek-2h-yarn-bf16"])
def test_ranks_share_heads_of_latent_attention(model: str) -> None:
    """Each rank has the whole cache of latents, and heads of its own."""
    check(model, 2, chunks=True)


def test_a_layer_meets_twice() -> None:
    """Behind the attention and behind the feed-forward layer, which clears the sums."""
    program, _ = step_program(of_ranks(graph_of("llama-4h2"), 2), "llama", 16)
    (stage,) = program.stages
    met = [launch.arguments for launch in stage.launches if launch.kernel == ALL_REDUCE]
    assert met == [("sums", "residual", ""), ("residual", "sums", "sums")]


def test_what_one_machine_does_not_run_is_refused() -> None:
    rank = of_ranks(graph_of("llama-4h2"), 2)
    program, texts = step_program(rank, "llama", 16)
    with pytest.raises(MeshcError, match="run-refused"):
        LanguageModel(program, CpuMachine({}, texts), {})
    with pytest.raises(MeshcError, match="the graph of one rank"):
        emit(rank, "llama", 16)


def test_parts_of_the_vocabulary_are_no_kernels() -> None:
    steps = parse_pipeline("tensor-parallel{ranks=2,multiple=8},fuse-cluster")
    rank = PassManager(steps).run(graph_of("llama-4h2"))
    with pytest.raises(MeshcError, match=r"graph.rank_embed is part of no kernel"):
        step_program(rank, "llama", 16)

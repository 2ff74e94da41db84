"""SmolLM2-135M in the graphs that tensor-parallel makes, all ranks in the interpreter and as CUDA
kernels in the executor: the tokens of transformers. Its nine query heads and three key heads come
out even over three ranks alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda import CpuNode, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX
from meshc.driver import CompileRequest, compile_loaded, graph_module, load_any, open_weights
from meshc.frontend.checkpoints import find_packaged_weights
from meshc.interp.inputs import wanted_inputs
from meshc.interp.together import rank_inputs, run_parts
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import Diagnostics

PROMPTS = json.loads((Path(__file__).parents[1] / "data" / "smollm2_oracle.json").read_text())
MODEL = "smollm2-135m"
PASSES = "canonicalize,eliminate-transpose"

pytestmark = [pytest.mark.models, pytest.mark.smollm2, pytest.mark.slow]


@cache
def tensors() -> Mapping[str, np.ndarray]:
    place, loaded = find_packaged_weights(MODEL), load_any(MODEL, Diagnostics())
    assert place is not None
    opened = open_weights(place, loaded.config, None, Diagnostics())
    return {name: np.asarray(opened[name], np.float32) for name in opened}


def step(tokens: int, requests: int, more: str) -> Module:
    request = CompileRequest(device="ideal", seq=32)
    module = graph_module(load_any(MODEL, Diagnostics()), "decode", request)
    batch = f"batch-tokens{{tokens={tokens},requests={requests}}}"
    return PassManager(parse_pipeline(f"{PASSES},{batch}{more}")).run(module)


def generated(module: Module, prompts: list[list[int]], count: int) -> list[list[int]]:
    """``count`` greedy tokens behind each prompt. All prompts are read at once, token by token of
    the batch, some of one and some of the other; then all requests decode side by side."""
    ranks = module.ranks.count if module.ranks else 1
    size = module.dims["B"]
    states = [want.name for want in wanted_inputs(module) if want.role == "state"]
    weights = [rank_inputs(module, tensors(), n) for n in range(ranks)]
    held: list[dict[str, np.ndarray]] = [{} for _ in range(ranks)]
    waiting = [list(prompt) for prompt in prompts]
    known = [0] * len(prompts)
    found: list[list[int]] = [[] for _ in prompts]
    while any(len(tokens) < count for tokens in found):
        ids, owners, positions = [0] * size, [0] * size, [-1] * size
        place = 0
        for owner, queue in enumerate(waiting):
            while queue and place < size:
                ids[place], owners[place], positions[place] = queue.pop(0), owner, known[owner]
                known[owner] += 1
                place += 1
        inputs = {"tokens": np.array(ids).reshape(size, 1)}
        each = [{**weights[n], **held[n], **inputs} for n in range(ranks)]
        results = run_parts(module, each, {"owner": owners, "pos": positions}, np.float32)
        held = [dict(zip(states, own[1:], strict=True)) for own in results]
        for own in results[1:]:
            np.testing.assert_array_equal(own[0], results[0][0])
        for owner, queue in enumerate(waiting):
            if not queue:
                last = max(i for i in range(size) if owners[i] == owner and positions[i] >= 0)
                found[owner].append(int(results[0][0][last].argmax()))
                queue.append(found[owner][-1])
    return [tokens[:count] for tokens in found]


@pytest.mark.parametrize(
    ("ranks", "split"), [(1, ""), (2, ""), (3, ",split-tokens{at=5}"), (4, ",split-tokens{at=2}")]
)
def test_first_tokens_of_two_prompts(ranks: int, split: str) -> None:
    module = step(8, 2, f",tensor-parallel{{ranks={ranks}}}{split}")
    chosen = [PROMPTS[0], PROMPTS[5]]
    found = generated(module, [prompt["prompt_ids"] for prompt in chosen], 5)
    assert found == [prompt["tokens"][:5] for prompt in chosen]


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("ranks", [2, 3])
def test_first_tokens_by_cuda_kernels_of_ranks(ranks: int) -> None:
    """Emulated GPUs in the executor that meet in collectives: a prompt of five tokens in a chunk,
    then token by token."""
    request = CompileRequest(
        device="h100", seq=16, dtype="bf16", target="cuda", gpus=ranks, chunk=8
    )
    files = compile_loaded(load_any(MODEL, Diagnostics()), request, (), Diagnostics()).files
    program = from_json(files["manifest.json"])
    node = CpuNode(program.kernels, files, ranks)
    model, chosen = LanguageModel(program, node, tensors()), PROMPTS[0]
    found = list(model.generate(chosen["prompt_ids"], 3, lambda _, row: None))
    assert found == chosen["tokens"][:3]
    assert node.link_bytes > 0

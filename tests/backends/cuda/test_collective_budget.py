"""How many multiprocessors collectives of ranks take: one number of the device, which the cost of a
node, the op of the graph, emitted grids and the page on GPUs go by."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from rank_programs import of_ranks
from test_cuda_ranks import graph_of

from meshc.analysis.cuda.stream_turns import COMMUNICATION, blocks_alone
from meshc.backends.cuda.chunk import Chunk
from meshc.backends.cuda.chunk_launches import ChunkGraph, chunk_of
from meshc.backends.cuda.halves import splitting_of
from meshc.backends.cuda.overlapping import Splitting
from meshc.backends.cuda.queues import Cut
from meshc.cost.nodes.iteration_batches import prompts
from meshc.cost.nodes.overlap import fused_only
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.nodes.splitting import best_schedule
from meshc.devices import Device, device, device_names
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import given_module
from meshc.driver.served_shapes import served_model
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.ops import ranks
from meshc.support.diagnostics import Diagnostics, MeshcError

ROOT = Path(__file__).parents[3]
DATA = ROOT / "meshc" / "devices" / "data"
PAGE = ROOT / "docs" / "cuda-gpus.md"
TOKENS = 64


@cache
def graph_of_model() -> Module:
    return graph_of("llama-4h2")


def on(gpu: Device, more: str = "") -> Module:
    module = clone_module(graph_of_model())
    module.device = gpu
    return of_ranks(module, 2, more)


def chunk(module: Module, splitting: Splitting | None = None) -> Chunk:
    return chunk_of(ChunkGraph(module, TOKENS, splitting), 16, "multimem")[0]


def gpu_file(folder: Path, budget: int) -> Path:
    """An H100 whose collectives have another budget, as a user writes it."""
    text = (DATA / "h100.toml").read_text(encoding="utf-8")
    changed, count = re.subn(r"(collective_blocks = \{value = )\d+", rf"\g<1>{budget}", text)
    assert count == 1
    path = folder / "h100.toml"
    path.write_text(changed, encoding="utf-8")
    return path


def grids(chunk: Chunk) -> dict[str, int]:
    """Blocks of the kernels in which GPUs meet."""
    return {name: kernel.blocks for name, kernel in chunk.kernels.items() if kernel.meets}


@pytest.mark.parametrize("budget", [1, 2, 8, 12])
def test_one_number_changes_cost_op_and_grids(budget: int, tmp_path: Path) -> None:
    path = gpu_file(tmp_path, budget)
    gpu, alone = device(str(path)), blocks_alone(budget)
    module = on(gpu)
    sums = [op for op in module.walk() if isinstance(op, ranks.AllReduceResidualRmsNorm)]
    assert [op.multiprocessors for op in sums] == [alone] * 3

    request = CompileRequest(
        device=str(path), target="cuda", gpus=2, chunk=TOKENS, overlap="40", seq=128
    )
    tiny = load_any(str(ROOT / "tests" / "data" / "tiny_cuda" / "llama-4h2"), Diagnostics())
    step = given_module(tiny, "decode", request, Diagnostics())
    asked = splitting_of(request, step, Diagnostics())
    assert asked == Splitting(TOKENS, budget, (Cut(41, 40),))
    made = chunk(module, asked)
    found, least = grids(made), min(alone, made.tokens)
    wanted = {"chunk_all_reduce_norm": least, "beside_chunk_all_reduce_norm": budget}
    assert found == {**wanted, "chunk_last_all_reduce_norm": 1}
    words = made.buffers["chunk_signals"].shape[0]
    assert words == 2 * max(found.values())  # a word of each block for each sender

    costs = Ranks(served_model("llama-3.3-70b"), device("h100x8"), 8)
    other = Ranks(costs.model, costs.device.with_numbers(collective_blocks=budget), 8)
    batch = prompts([1024])
    assert other.alone == alone
    assert other.fused(1024, other.alone) == costs.fused(1024, alone)
    slower = fused_only(other, batch).seconds - fused_only(costs, batch).seconds
    assert (slower > 0) - (slower < 0) == (budget < 8) - (budget > 8)
    spans = best_schedule(other, batch).spans
    assert all(s.multiprocessors <= budget for s in spans if s.stream == COMMUNICATION)


def test_cuts_are_those_of_the_same_number(tmp_path: Path) -> None:
    """What ``--overlap auto`` asks the cost of a node with, and what it then has emitted."""
    model = load_any("llama-3.3-70b", Diagnostics())
    found = []
    for budget in (2, 4):
        request = CompileRequest(
            device=str(gpu_file(tmp_path, budget)), target="cuda", gpus=8, chunk=1024,
            overlap="auto", seq=4096, dtype="bf16",
        )  # fmt: skip
        step = given_module(model, "decode", request, Diagnostics())
        asked = splitting_of(request, step, Diagnostics())
        assert asked is not None and asked.multiprocessors <= budget
        found.append(asked.multiprocessors)
    assert found == [2, 4]


def test_more_beside_other_kernels_than_the_op_may_take_is_refused() -> None:
    module = on(device("h100"), "{multiprocessors=3}")
    asked = Splitting(TOKENS, 4, (Cut(41, 40),))
    with pytest.raises(MeshcError, match=r"would have 4 multiprocessors, of 3 that"):
        chunk(module, asked)
    assert grids(chunk(module))["chunk_all_reduce_norm"] == 3


def test_a_device_without_the_number_is_refused() -> None:
    none = device("h100").with_numbers(collective_blocks=None)
    with pytest.raises(MeshcError, match=r"device-number.*collective_blocks"):
        on(none)
    with pytest.raises(MeshcError, match="bad-pass-option"):
        on(none, "{multiprocessors=-1}")


def test_the_page_and_nodes_have_the_number_of_their_gpu() -> None:
    numbers = {name: device(name) for name in device_names()}
    given = {
        n: d.whole("collective_blocks")
        for n, d in numbers.items()
        if "collective_blocks" in d.numbers
    }
    for name, number in given.items():
        gpu = name.partition("x")[0]
        assert given.get(gpu, number) == number, name
    (shown,) = re.findall(
        r"`collective_blocks` of the device: (\d+) on h100 and h200", PAGE.read_text()
    )
    assert {given["h100"], given["h200"]} == {int(shown)}

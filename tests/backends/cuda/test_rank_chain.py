"""Launches of a rank join kernels by buffers of fixed names: only the chain of sums over ranks and
blocks that these stand for becomes a program; every other one is refused."""

from __future__ import annotations

from functools import cache

import pytest
from rank_programs import of_ranks
from test_cuda_ranks import graph_of

import meshc
from meshc.backends.cuda.chunk_launches import ChunkGraph, chunk_of
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.support.diagnostics import MeshcError

SUM = "graph.all_reduce_residual_rms_norm"


@cache
def whole() -> Module:
    return graph_of("llama-4h2")


@cache
def text() -> str:
    return meshc.print_module(of_ranks(whole(), 2))


def refusal(module: Module) -> str:
    with pytest.raises(MeshcError) as caught:
        chunk_of(ChunkGraph(module, 16), 16, "multimem")
    (found,) = caught.value.diagnostics
    assert found.code == "cuda-graph"
    return found.message


_LOOP = "%x_4_part, %cache_k_2, %cache_v_2 = graph.repeat %x, "

CHAINS = {
    "another residual": (f"%x_2 = {SUM} %o, %x_1_1", f"%x_2 = {SUM} %o, %x_1", f"{SUM} reads %x_1"),
    "another part": (f"{SUM} %o, %x_1_1", f"{SUM} %x_1_part, %x_1_1", f"{SUM} reads %x_1_part"),
    "the residual in the place of the part": (
        f"{SUM} %x_4_part, %x_4",
        f"{SUM} %x_4, %x_4_part",
        f"{SUM} reads %x_4",
    ),
    "what another block has read": (
        "graph.fuse %h_1, %w_gate_1",
        "graph.fuse %h, %w_gate_1",
        "ffn_block reads %h",
    ),
    "the residual that is not normed": (
        "graph.fuse %h_2, %emb",
        "graph.fuse %x_4_1, %emb",
        "head reads %x_4_1",
    ),
    "no zeros in front of the loop": (
        f"{_LOOP}%x_part",
        f"{_LOOP}%x",
        "a loop of layers reads %x",
    ),
    "the part for the residual": (
        "graph.yield %x_2, %y,",
        "graph.yield %y, %x_2,",
        "carries more than",
    ),
    "an older residual": (
        "graph.yield %x_2, %y,",
        "graph.yield %x_1_1, %y,",
        "carries more than",
    ),
    "the residual as well": (
        "graph.return %result,",
        "graph.return %x_4_1,",
        "gives the logits",
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", CHAINS)
def test_ranks_in_another_chain_are_refused(name: str) -> None:
    old, new, words = CHAINS[name]
    assert text().count(old) == 1
    changed = text().replace(old, new)
    if name == "the residual as well":
        changed = changed.replace("-> (f16[B, L, V],", "-> (f16[B, L, E],")
    assert words in refusal(meshc.parse(changed, "rank.meshir"))


def test_a_chain_without_the_first_sum_is_refused() -> None:
    lines = text().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if SUM in line)
    name = lines[place].split()[0].rstrip(",")
    rest = [line.replace(f"graph.fuse {name},", "graph.fuse %x_1,") for line in lines]
    changed = "".join(rest[:place] + rest[place + 1 :]).replace("%x_1_1,", "%x_1,")
    message = refusal(meshc.parse(changed, "rank.meshir"))
    assert message == f"the kernels of a layer of this model are attention_block, {SUM}, ffn_block"


def test_sums_that_no_pass_has_fused_are_refused() -> None:
    passes = "tensor-parallel{ranks=2,multiple=8,keep=[V]},fuse-chunk"
    module = meshc.PassManager(meshc.parse_pipeline(passes)).run(clone_module(whole()))
    words = "the attention_block of a rank begins with a norm of its own"
    assert refusal(module).startswith(words)


def test_a_gain_that_is_no_weight_is_refused() -> None:
    """Norms read gains that were packed when the program was loaded."""
    old = f"{SUM} %x_4_part, %x_4, %final_norm"
    assert text().count(old) == 1
    changed = text().replace("weight %final_norm: f16[E]", "in %final_norm: f16[E]")
    assert "%final_norm" in refusal(meshc.parse(changed, "rank.meshir"))

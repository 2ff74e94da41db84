"""What the next kernel reads first is brought towards L2 where its blocks find no room yet."""

import json
from functools import cache

import mutation_judge
import numpy as np
import pytest
from reduced import only
from test_cuda_grids import CONFIG

from meshc.analysis.cuda.blocks import block_memory
from meshc.backends.cuda import CpuMachine, LanguageModel, ahead, from_json
from meshc.backends.cuda.executor import CXX, QUICK, Library
from meshc.backends.cuda.kernels.attention_block import kernel as attention
from meshc.backends.cuda.kernels.rows_product import kernel as rows
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

H200 = device("h200")


@cache
def compiled(batch, model="llama-3-8b"):
    report = Diagnostics()
    request = CompileRequest(
        target="cuda", dataflow="split_token", dtype="bf16", seq=4096, batch=batch
    )
    result = compile_loaded(load_any(model, report), request, (), report)
    return from_json(result.files["manifest.json"]), result.files


def test_kernels_that_fill_a_multiprocessor_prefetch():
    program, files = compiled(8)
    names = [launch.kernel for launch in program.stages[0].launches]
    assert all(program.kernels[name].shared_bytes > block_memory(H200, 2) for name in names)
    ahead = [launch.arguments[-1] for launch in program.stages[0].launches]
    assert ahead == ["gate_up[]", "down[]", "qkv[+1]"]
    assert all("mc::prefetch_groups<" in files[f"{name}.cu"] for name in names)
    steps = [launch for launch, _ in program.launches() if launch.kernel == "ffn_outer"]
    assert [launch.arguments[-1] for launch in steps] == [
        *(f"qkv[{n}]" for n in range(1, program.layers)), ""
    ]  # fmt: skip


def test_kernels_that_leave_room_do_not():
    program, files = compiled(1, "llama-2-7b")
    names = {launch.kernel for launch, _ in program.launches()}
    assert all(program.kernels[name].shared_bytes <= block_memory(H200, 2) for name in names)
    assert not any("mc::prefetch_groups<" in text for text in files.values())


def test_each_pair_of_kernels_is_looked_at():
    """The outer product of a model with wide features alone fills a multiprocessor."""
    program, files = compiled(1)
    assert [launch.arguments[-1] for launch in program.stages[0].launches] == [
        "sines",
        "down[]",
        "residual",
    ]
    texts = [name for name, text in files.items() if "mc::prefetch_groups<" in text]
    assert texts == ["ffn_inner.cu"]


def test_prompts_share_kernels_and_prefetch_nothing():
    for batch in (1, 8):
        program, _ = compiled(batch)
        prompt = program.prefill_launches(program.prefill.tokens, True)
        counts = {launch.kernel: len(launch.arguments) for launch, _ in program.launches()}
        for launch, _ in prompt:
            assert counts.get(launch.kernel, len(launch.arguments)) == len(launch.arguments)


SHAPES = [(1, 4096, 32, 32, 128), (8, 512, 16, 2, 64), (1, 264, 6, 3, 64)]


@pytest.mark.parametrize("cluster", [1, 2, 3, 4])
@pytest.mark.parametrize("dataflow", ["split_token", "split_head"])
@pytest.mark.parametrize("sizes", SHAPES)
def test_attention_blocks_begin_where_is_prefetched(sizes, dataflow, cluster):
    """As attention_block.cu and attention_split_head.cu say."""
    shape = attention.Attention(*sizes, "f16", 16, 1e-5, 0.1)
    try:
        plan = attention.plan(shape, H200, cluster, dataflow, 100)
    except attention.DoesNotFit:
        return
    found = plan.first_reads()
    own = shape.sizes.rows // 16
    starts = [
        head * own + own * rank // cluster
        for head in range(shape.kv_heads)
        for rank in range(cluster)
    ]
    assert [found.groups * n // found.units for n in range(found.units)] == starts
    assert found.group_bytes == -(-shape.hidden // 16) * 512
    # A block's own groups, in order, hold what is prefetched for it.
    assert found.bytes <= min(np.diff([*starts, found.groups])) * found.group_bytes


def test_clusters_that_share_a_key_head_read_in_turns():
    shape = attention.Attention(1, 4096, 32, 8, 128, "f16", 16, 1e-5, 0.1)
    assert attention.plan(shape, H200, 4, heads=2).first_reads() is None


@pytest.mark.parametrize(("cores", "cluster"), [(132, 1), (132, 2), (128, 4), (7, 1)])
def test_products_begin_where_is_prefetched(cores, cluster):
    plan = rows.plan(
        rows.RowsProduct(1, 4096, 22016, "f16"), H200.with_numbers(cores=cores), cluster
    )
    found = plan.first_reads()
    assert found.units * cluster == plan.blocks and found.groups == 22016 // 16
    assert found.group_bytes == 4096 * 16 * 2
    assert found.bytes == min(found.groups // found.units * 131072, cluster * 49152)
    few = rows.plan(rows.RowsProduct(1, 64, 16, "f16"), H200.with_numbers(cores=cores), cluster)
    assert few.first_reads().units == 1


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("kernel", only(["attention", "lanes", "product"], "lanes", "product"))
def test_prefetched_bytes(kernel):
    """Of all blocks of the next grid, by those of this one; none without weights."""
    rig = mutation_judge.rig(f"{kernel}, then weights of the next")
    wanted = mutation_judge.FOLLOWING.units * mutation_judge.FOLLOWING.bytes
    for following, count in ((mutation_judge.NEXT, wanted), (np.uint64(0), 0)):
        arguments = [*rig.arguments()[:-1], following]
        found = Library(rig.text, toolchain=QUICK).run(rig.kernel, rig.grid, arguments)
        assert found.prefetched_bytes == count


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
def test_a_step_that_prefetches_gives_the_same_logits(tmp_path, monkeypatch):
    """Of a model so small that all kernels would leave room: a prompt in a chunk, then a token."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = []
    for room in (True, False):
        monkeypatch.setattr(ahead, "_fit_together", lambda *_, room=room: room)
        report = Diagnostics()
        request = CompileRequest(target="cuda", dataflow="split_token", dtype="f16", seq=64)
        result = compile_loaded(load_any(str(tmp_path), report), request, (), report)
        program = from_json(result.files["manifest.json"])
        module, rng = result.modules["decode"], np.random.default_rng(1)
        weights = {
            param.value.name: rng.standard_normal(param.value.type.shape(module.dims)) * 0.1
            for param in module.function.params
            if param.role == "weight"
        }
        machine = CpuMachine(program.kernels, result.files, toolchain=QUICK)
        model = LanguageModel(program, machine, weights)
        found.append([model.prefill([3, 1]).tobytes(), model.step([5], [2]).tobytes()])
        following = [launch.arguments[-1] for launch in program.stages[0].launches]
        assert ("gate_up[]" in following, "down[]" in following) == (not room, not room)
    assert found[0] == found[1]

"""Decode steps in the CPU executor beside NumPy in float64: one kernel made of tasks."""

import re
from dataclasses import replace

import layer_kinds
import numpy as np
import pytest
from layer_kinds import BOUND, Kind, check, compiled, expected, weights_of
from reduced import only

from meshc.analysis.tasks.tiles import CACHE_PAGE
from meshc.backends.cuda import CpuMachine, LanguageModel, from_json, gpu_divisions
from meshc.backends.cuda.executor import CXX, FIRST, QUICK, SCHEDULES, Mode
from meshc.backends.cuda.step_times import predicted, step_with_full_caches
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

PLAIN = Kind(2, 2, 2, 96, 10000.0)
MOST_REGISTERS = 168  # at which blocks of nine warps still launch


class KeptKeys(Kind):
    """Layers that keep keys and read none."""

    def text(self, n):
        return f"""    repeat N_{n} {{
      param wk_{n}[E, H_{n}, D], w1_{n}[E, F_{n}], w2_{n}[F_{n}, E]
      kept_{n} = append(cache.k, x @ wk_{n})
      x = x + silu(x @ w1_{n}) @ w2_{n}
    }}
"""

    def layer(self, x, w):
        inner = x @ w["w1"]
        return x + inner / (1 + np.exp(-inner)) @ w["w2"]


def caches_of(program):
    """The names of the caches: of keys, then of values."""
    return [name for name, buffer in program.buffers.items() if buffer.role == "state"]


def logits(result, kind, ids, mode=FIRST):
    """Logits behind each of ``ids``."""
    program, weights = from_json(result.files["manifest.json"]), weights_of((kind,))
    machine = CpuMachine(program.kernels, result.files, mode, QUICK)
    model = LanguageModel(program, machine, weights)
    return np.array([model.step([token], [n])[0] for n, token in enumerate(ids)])


@pytest.mark.parametrize(
    "kind",
    only([PLAIN, Kind(3, 6, 2, 80, 500.0, gated=False), Kind(1, 4, 1, 352, 10000.0)], PLAIN),
    ids=["a key for each head", "shared keys, no gate", "one key for all heads"],
)
def test_a_prompt_and_steps_agree_with_float64(kind, tmp_path):
    check(compiled(tmp_path, (kind,)), (kind,))


def test_every_order_of_threads_and_copies_gives_the_same_bits(tmp_path):
    """No block reads what another one has not computed yet, whoever runs first."""
    result = compiled(tmp_path, (PLAIN,))
    modes = [Mode(s, late, 3) for s in SCHEDULES for late in (False, True)]
    first, *others = (logits(result, PLAIN, [3, 17], mode) for mode in modes)
    assert all((first == other).all() for other in others)


def test_any_number_of_blocks_gives_the_same_bits(tmp_path):
    kind = Kind(2, 4, 2, 96, 10000.0)
    result = compiled(tmp_path, (kind,))
    program, found = from_json(result.files["manifest.json"]), []
    most = program.kernels["step"].blocks
    for blocks in (most, 7, 3, 1, most + 40):
        kernels = {**program.kernels, "step": replace(program.kernels["step"], blocks=blocks)}
        machine = CpuMachine(kernels, result.files, toolchain=QUICK)
        noise = np.random.default_rng(0)
        model = LanguageModel(program, machine, weights_of((kind,)))
        for name in caches_of(program):
            pool = noise.standard_normal(machine.arrays[name].shape).astype(np.float16)
            machine.write(name, pool.view(np.uint16))
        found.append(model.step([3], [program.capacity - 1]))
    assert most > 7
    assert all((one == found[0]).all() for one in found)


def test_parts_of_the_output_that_are_no_divisor_of_a_tile(tmp_path):
    """Three query heads of 64 lanes in one part: two parts fill three quarters of a tile."""
    kind = Kind(1, 192, 64, 32, 10000.0)
    result = compiled(tmp_path, (kind,), chunk=8)
    ids = [3, 17]
    wanted = expected((kind,), weights_of((kind,)), ids)
    found = logits(result, kind, ids)
    assert np.abs(found - wanted).max() <= BOUND * np.abs(wanted).max()


def test_its_kernel_stands_alone_and_the_counter_of_meetings_is_left_at_zero(tmp_path):
    result = compiled(tmp_path, (PLAIN,))
    program = from_json(result.files["manifest.json"])
    kernel = program.kernels["step"]
    assert [launch.kernel for launch, _ in program.launches()] == ["step"]
    assert kernel.whole_grid and program.kernels.keys() == {"step", "prompt", "choose"}
    machine = CpuMachine(program.kernels, result.files, toolchain=QUICK)
    model = LanguageModel(program, machine, weights_of((PLAIN,)))
    for _ in range(2):
        model.step([3], [0])
        assert machine.read("met").tolist() == [0]


@pytest.mark.cuda_compiler
@pytest.mark.parametrize("name", only(["llama-2-7b", "llama-3-8b", "smollm2-135m"], "llama-3-8b"))
def test_its_machine_code_keeps_everything_in_registers(name):
    request = CompileRequest(target="cuda", dtype="f16", seq=4096)
    report = Diagnostics()
    files = compile_loaded(load_any(name, report), request, (), report).files
    for kernel in ("step", "prompt"):
        needs = compile_cubin(files[f"{kernel}.cu"]).kernels[kernel]
        assert (needs.spill_bytes, needs.stack_bytes) == (0, 0)
        assert needs.registers <= MOST_REGISTERS


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ((Kind(1, 2, 2, 96, 100.0, normed=True),), {}),
        ((Kind(1, 8, 1, 96, 100.0),), {}),
        ((Kind(1, 16, 1, 96, 100.0),), {}),
        ((Kind(1, 2, 2, 88, 100.0),), {}),
        ((PLAIN, Kind(1, 2, 2, 96, 500.0)), {}),
        ((PLAIN,), {"page": 1}),
    ],
    ids=["norms of heads", "groups of 8", "groups of 16", "88 features", "two kinds", "page"],
)
def test_what_is_special_to_no_model(kinds, options, tmp_path):
    check(compiled(tmp_path, kinds, **options), kinds)


def test_parts_of_an_output_whose_weights_kernels_of_prompts_share(tmp_path, monkeypatch):
    """Two key heads, and tasks that have the width of one."""
    for name, value in (("WIDE", 0), ("MOST_RECORDS", 0), ("PARTS", (2, 1))):
        monkeypatch.setattr(gpu_divisions, name, value)
    kinds = (Kind(2, 4, 2, 96, 10000.0),)
    result = compiled(tmp_path, kinds, chunk=8)
    assert "* part) * 256" in result.files["step.cu"]
    check(result, kinds)


def test_tiles_are_those_of_the_device(tmp_path):
    """Half a tile of weights and tokens, and none that is no whole number of blocks."""
    h200, kinds = device("h200"), (Kind(1, 4, 2, 352, 10000.0),)
    result = compiled(tmp_path, kinds, device=h200.with_numbers(tile_bytes=8192))
    assert "TILE_BYTES = 8192;" in result.files["step.cu"]
    check(result, kinds)
    with pytest.raises(MeshcError, match=r"\[device-number\].* is 1000, no multiple of 512"):
        compiled(tmp_path, kinds, device=h200.with_numbers(tile_bytes=1000))


def test_a_step_in_which_nothing_attends(tmp_path):
    kinds = (KeptKeys(2, 1, 1, 96, 0.0),)
    check(compiled(tmp_path, kinds), kinds)


@pytest.mark.parametrize(
    "options", [{}, {"persistent": True}, {"cluster": 2}, {"dataflow": "split_token"}]
)
def test_the_step_is_one_kernel_and_its_predicted_time_is_told(options, tmp_path):
    result = compiled(tmp_path, (PLAIN,), **options)
    (told,) = (d for d in result.remarks if d.code == "step-of-tasks")
    program = from_json(result.files["manifest.json"])
    assert [launch.kernel for launch, _ in program.launches()] == ["step"]
    time = predicted(result.modules["decode"])
    assert time.startswith("predicted ") and " with 63 tokens before it" in time
    assert told.message.endswith(time) and result.summary()[-1].endswith(time)


def test_predictions_know_pages_that_are_not_as_usual(tmp_path):
    module = compiled(tmp_path, (PLAIN,), page=1).modules["decode"]
    assert module.options[CACHE_PAGE] == 1


def test_a_dataflow_has_the_clusters_that_are_predicted_to_be_fastest(tmp_path):
    result = compiled(tmp_path, (PLAIN,), dataflow="split_token")
    times = {}
    for size in device("h200").clusters.sizes:
        module = compiled(tmp_path, (PLAIN,), cluster=size).modules["decode"]
        times[size] = step_with_full_caches(module).seconds
    best = min(times, key=times.__getitem__)
    assert f"clusters of {best} blocks" in "\n".join(d.message for d in result.remarks)
    assert from_json(result.files["manifest.json"]).kernels["step"].cluster == best
    with pytest.raises(MeshcError, match=r"\[bad-argument\]: --dataflow .* not known of b200"):
        compiled(tmp_path, (PLAIN,), dataflow="split_token", device="b200")


def test_a_device_without_the_numbers_of_the_model_of_time_has_no_prediction(tmp_path):
    result = compiled(tmp_path, (PLAIN,), device="b200")
    assert predicted(result.modules["decode"]) == ""
    (told,) = (d for d in result.remarks if d.code == "step-of-tasks")
    assert told.message == "the decode step is one kernel made of tasks"


def test_blocks_may_share_the_lanes_of_heads(tmp_path):
    """In the caches as well, so steps read prompts and kernels of chunks do not."""
    kinds = (Kind(2, 4, 2, 96, 10000.0),)
    few = device("h200").with_numbers(cores=8)
    result = compiled(tmp_path, kinds, dataflow="split_head", cluster=2, device=few)
    program = from_json(result.files["manifest.json"])
    assert not program.prefills and program.kernels["step"].cluster == 2
    assert {buffer.shape[2:] for buffer in program.buffers.values() if buffer.role == "state"} == {
        (4, 16, 32)
    }
    (told,) = (d for d in result.remarks if d.code == "prompt-by-steps")
    assert "keep caches in another order" in told.message
    check(result, kinds)
    with pytest.raises(MeshcError, match=r"\[cuda-graph\]: kernels that read prompts keep caches"):
        compiled(tmp_path, kinds, dataflow="split_head", cluster=2, device=few, chunk=8)


def test_prompts_of_a_model_without_kernels_of_its_own(tmp_path, monkeypatch):
    """Heads of 40 lanes: tasks read them too."""
    monkeypatch.setattr(layer_kinds, "HEAD", 40)
    kinds = (Kind(1, 2, 2, 88, 100.0, gated=False, normed=True),)
    result = compiled(tmp_path, kinds)
    program = from_json(result.files["manifest.json"])
    assert program.kernels.keys() == {"step", "prompt", "choose"}
    assert program.prefills[0].tokens == 16
    (told,) = (d for d in result.remarks if d.code == "prompt-of-tasks")
    assert told.message.endswith("attend attends statement by statement, which is slow")
    check(result, kinds)


@pytest.mark.slow
def test_prompts_are_read_by_as_many_tokens_as_a_block_has_room_for(tmp_path):
    kinds, small = (
        (Kind(2, 2, 2, 1600, 10000.0),),
        device("h200").with_numbers(memory_bytes=88_600),
    )
    result = compiled(tmp_path, kinds, device=small)
    assert from_json(result.files["manifest.json"]).prefills[0].tokens == 8
    check(result, kinds)


@pytest.mark.slow
def test_tasks_attend_for_fewer_tokens_before_a_chunk_has_fewer(tmp_path):
    """Tasks that attend for 16 tokens of two heads, which 32 queries are, would leave room for a
    chunk of 8 alone; those of fewer leave it for 16."""
    kinds = (Kind(2, 2, 2, 1600, 10000.0),)
    queries = {}
    for memory in (95_600, 200_000):
        small = device("h200").with_numbers(memory_bytes=memory)
        result = compiled(tmp_path, kinds, device=small)
        assert from_json(result.files["manifest.json"]).prefills[0].tokens == 16
        queries[memory] = set(re.findall(r"GroupAttention<T, (\d+),", result.files["prompt.cu"]))
        check(result, kinds)
    assert max(map(int, queries[95_600])) < max(map(int, queries[200_000]))


def test_a_block_has_room_for_prompts_where_it_has_room_for_steps(tmp_path, monkeypatch):
    """Their left sides lie in memory."""
    monkeypatch.setattr(layer_kinds, "HIDDEN", 4096)
    small = device("h200").with_numbers(memory_bytes=96_000)
    result = compiled(tmp_path, (PLAIN,), device=small)
    (reader,) = from_json(result.files["manifest.json"]).prefills
    assert reader.tokens == 16


def test_a_device_that_is_no_gpu_is_refused(tmp_path):
    with pytest.raises(MeshcError, match=r"\[cuda-graph\]") as caught:
        compiled(tmp_path, (PLAIN,), device="wse2")
    assert "device wse2 is no GPU with clusters" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "csl", "persistent": True}, "--persistent .* --target csl do not take it"),
        ({"gpus": 2, "cluster": 2}, "--cluster is 2, but with --gpus 2 .* no clusters"),
        ({"gpus": 2, "dataflow": "split_token"}, "--dataflow is split_token, but with --gpus 2"),
    ],
)
def test_other_targets_and_clusters_on_several_gpus_are_refused(options, words, tmp_path):
    with pytest.raises(MeshcError, match=rf"\[bad-argument\]: {words}"):
        compiled(tmp_path, (PLAIN,), **options)


@pytest.mark.parametrize("cluster", only([2, 8], 2))
@pytest.mark.slow
def test_clusters_that_are_asked_for_have_key_heads(cluster, tmp_path):
    """A prompt by kernels, which share their caches, and steps of as many clusters as there are."""
    result = compiled(tmp_path, (PLAIN,), cluster=cluster)
    kernel = from_json(result.files["manifest.json"]).kernels["step"]
    assert kernel.cluster == cluster
    assert kernel.blocks == {2: 132, 8: 120}[cluster]
    assert "mc::cluster_put<CLUSTER>" in result.files["step.cu"]
    check(result, (PLAIN,))


def test_clusters_that_a_device_lacks_are_refused(tmp_path):
    with pytest.raises(MeshcError, match="clusters of 3 blocks"):
        compiled(tmp_path, (PLAIN,), cluster=3)

"""Plans of models on GPUs and nodes, beside what compiling and scheduling them gives."""

from pathlib import Path

import pytest

from meshc.backends import cuda
from meshc.backends.cuda import gpu_steps
from meshc.backends.cuda.halves import node_of
from meshc.backends.cuda.memory import memory_of
from meshc.cost.prompt_kernels import PromptKernels
from meshc.cost.served_graphs import served_of
from meshc.cost.tasks.phase_times import step_time
from meshc.cost.tasks.tile_times import Links, TileTimes
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.compiling import given_module
from meshc.driver.node_scheduling import NodeRequest, node_report
from meshc.driver.planning.plans import PlanRequest, plan
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[2] / "data" / "tiny"


def planned(model, where, phase="decode", gpus=None, **fields):
    request = CompileRequest(device=where, phase=phase, **{"seq": 64, **fields})
    return plan(load_any(str(model), Diagnostics()), PlanRequest(request, gpus))


@pytest.mark.parametrize(("model", "batch"), [("llama-9h3-tied", 1), ("qwen2-7h1", 3)])
def test_a_step_has_the_memory_and_the_time_of_its_program(model, batch):
    (found,) = planned(TINY / model, "h200", batch=batch).phases
    request = CompileRequest(target="cuda", device="h200", persistent=True, seq=64, batch=batch)
    program = compile_loaded(load_any(str(TINY / model), Diagnostics()), request)
    memory = memory_of(cuda.from_json(program.files[cuda.MANIFEST]))
    assert found.room.needed == memory.total and sum(found.room.buffers.values()) == memory.total
    step = step_time(program.modules["decode"], {"pos": 63})
    assert found.prediction.seconds == pytest.approx(step.seconds)
    assert found.prediction.bound == step.ceiling <= step.seconds
    assert found.tokens == batch and found.tokens_per_second == pytest.approx(batch / step.seconds)
    assert {one.kind for one in found.prediction.inputs} >= {"calibrated", "datasheet"}


def test_the_memory_of_clusters_has_what_one_layer_gives():
    """What all 32 give would leave a block no room for tiles."""
    (step,) = planned("llama-3-8b", "h200", cluster=8, persistent=True).phases
    assert step.fits and step.prediction is not None


def test_layers_are_dealt_to_nodes_in_time_and_memory():
    """Of two layers each node has one, beside the tables of words and logits; a step still passes
    both, and its nodes hand a row on, which is said."""
    (alone,) = planned(TINY / "llama-3h1", "h200").phases
    found = planned(TINY / "llama-3h1", "h200", nodes=2)
    (step,) = found.phases
    assert found.nodes == 2 and sum(step.room.buffers.values()) == step.room.needed
    layer = compile_loaded(
        load_any(str(TINY / "llama-3h1"), Diagnostics()),
        CompileRequest(target="cuda", device="h200", seq=64, layers=1),
    )
    one = memory_of(cuda.from_json(layer.files[cuda.MANIFEST]))
    assert (step.room.uses["weights"], step.room.uses["caches"]) == (one.weights, one.caches)
    assert step.room.uses["weights"] < alone.room.uses["weights"]
    assert step.prediction.seconds > 0.9 * alone.prediction.seconds
    assert any("nodes" in one for one in step.prediction.left_out)


@pytest.mark.parametrize(
    ("model", "seq", "rel"), [(TINY / "llama-9h3-tied", 64, 1e-9), ("smollm2-135m", 1024, 0.005)]
)
def test_a_prompt_takes_what_its_chunks_and_its_last_token_take(model, seq, rel, monkeypatch):
    """Each run is followed, of which the prediction follows five at the most."""
    monkeypatch.setattr(gpu_steps, "WORTH_KERNELS", 2048)
    (found,) = planned(model, "h200", "prefill", seq=seq, layers=2).phases
    request = CompileRequest(target="cuda", device="h200", seq=seq, layers=2)
    program = compile_loaded(load_any(str(model), Diagnostics()), request)
    step = step_time(program.modules["decode"], {"pos": seq - 1})
    reader = program.prompts["prompt"]
    runs = [step_time(reader, {"pos": first, "len": 16}) for first in range(0, seq - 1, 16)]
    assert found.prediction.seconds == pytest.approx(
        step.seconds + sum(one.seconds for one in runs), rel=rel
    )
    assert found.prediction.bound == pytest.approx(
        step.ceiling + sum(one.ceiling for one in runs), rel=rel
    )
    assert found.tokens == seq and found.prediction.parts[-1].cost.total == step.seconds


def test_kernels_read_long_prompts_and_tasks_and_a_step_what_is_left():
    """Of 2,084 tokens a chunk, two runs of tasks and the last token."""
    seq = 2084
    (found,) = planned("smollm2-135m", "h200", "prefill", seq=seq, layers=2).phases
    request = CompileRequest(target="cuda", device="h200", seq=seq, layers=2)
    program = compile_loaded(load_any("smollm2-135m", Diagnostics()), request)
    loaded = load_any("smollm2-135m", Diagnostics())
    model = served_of(given_module(loaded, "decode", request, Diagnostics()))
    kernels = PromptKernels(device("h200"), model, 2048, 64)
    assert kernels.chunks(seq) == [(0, 2048)]
    reader = program.prompts["prompt"]
    runs = [step_time(reader, {"pos": first, "len": 16}) for first in (2048, 2064, 2080)]
    last = step_time(program.modules["decode"], {"pos": seq - 1})
    assert found.prediction.model == "chunks"
    assert found.prediction.seconds == pytest.approx(
        kernels.predicted([(0, 2048)], False).seconds
        + sum(one.seconds for one in runs)
        + last.seconds
    )


def test_ranks_read_prompts_by_the_tasks_of_their_program():
    """Of 138 tokens two runs of 64, one of the nine that are left, and the last token; GPUs meet
    over the links of a node."""
    seq = 138
    (found,) = planned("smollm2-135m", "h200", "prefill", gpus=2, seq=seq, layers=2).phases
    request = CompileRequest(target="cuda", device="h200", gpus=2, seq=seq, layers=2)
    program = compile_loaded(load_any("smollm2-135m", Diagnostics()), request)
    many, few = program.prompts["long_prompt"], program.prompts["prompt"]
    times = TileTimes(device("h200"), links=Links.of(node_of(device("h200"), 2)))
    runs = [
        *(step_time(many, {"pos": pos, "len": 64, "rank": 0}, times) for pos in (0, 64)),
        step_time(few, {"pos": 128, "len": 16, "rank": 0}, times),
        step_time(program.modules["decode"], {"pos": seq - 1, "rank": 0}, times),
    ]
    assert found.prediction.seconds == pytest.approx(sum(run.seconds for run in runs))
    assert found.prediction.bytes == sum(run.bytes for run in runs)
    assert [words.rpartition("up to ")[2] for words in found.chosen] == [
        "16 tokens of a prompt at once",
        "64 tokens of a prompt at once where more than 16 are left",
    ]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_chunk_that_is_asked_for_is_read_by_kernels_of_as_many_tokens(gpus):
    """Of 300 tokens two chunks of 128 and one of the rest, whose logits are wanted."""
    asked = {"gpus": gpus, "seq": 300, "layers": 2}
    plans = {
        chunk: planned("smollm2-135m", "h200", "prefill", chunk=chunk, **asked).phases[0]
        for chunk in (None, 128)
    }
    found = plans[128].prediction
    assert found.model == ("chunks" if gpus == 1 else "kernels")
    parts = {one.name: one.times for one in found.parts}
    assert parts["logits" if gpus == 1 else "head"] == 1 and 3 * 2 in parts.values()
    assert found.seconds != plans[None].prediction.seconds


@pytest.mark.parametrize(
    ("where", "phase", "said"),
    [("wse2", "both", "no GPU"), ("h200x8", "prefill", "no GPU"), ("h200", "decode", "no prompts")],
)
def test_a_chunk_that_nothing_reads_is_refused(where, phase, said):
    with pytest.raises(MeshcError, match=said):
        planned("smollm2-135m", where, phase, chunk=16)


def test_energy_is_the_power_over_the_time_and_that_of_the_bytes():
    gpu = device("h200").with_numbers(busy_watts=200, joules_per_byte=1e-10)
    for phase in planned("smollm2-135m", gpu, "both", gpus=2, batch=3, layers=2).phases:
        found = phase.prediction
        spent = 2 * (200 * found.seconds + 1e-10 * found.bytes)
        assert phase.joules == pytest.approx(spent / phase.tokens)
        assert {"busy_watts", "joules_per_byte"} <= {one.name for one in found.inputs}
    (unknown,) = planned("smollm2-135m", "b200", layers=2).phases
    assert unknown.joules is None


def test_prompts_of_weights_that_stay_quantised_are_read_by_tasks():
    kept = {"keep_quantised": ("all=q4_0",), "seq": 200, "layers": 2}
    (found,) = planned("smollm2-135m", "h200", "prefill", **kept).phases
    request = CompileRequest(target="cuda", device="h200", **kept)
    program = compile_loaded(load_any("smollm2-135m", Diagnostics()), request)
    read = [("long_prompt", pos, 64) for pos in (0, 64, 128)] + [("prompt", 192, 16)]
    runs = [
        step_time(program.prompts[name], {"pos": pos, "len": tokens}) for name, pos, tokens in read
    ]
    last = step_time(program.modules["decode"], {"pos": 199})
    expected = last.seconds + sum(run.seconds for run in runs)
    assert found.prediction.seconds == pytest.approx(expected, rel=0.005)
    with pytest.raises(MeshcError, match="16 bits"):
        planned("smollm2-135m", "h200x8", **kept)


def test_a_program_without_room_for_kernels_has_none_and_fits():
    """Between what tasks alone take and what kernels take beside them."""
    need = {}
    for worth in (0, 10**6):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gpu_steps, "WORTH_KERNELS", worth)
            (found,) = planned("smollm2-135m", "h200", seq=1024, layers=2).phases
            need[worth] = found.room.needed
    small = device("h200").with_numbers(global_memory_bytes=need[0] - 1)
    assert need[10**6] < need[0] - 1
    (found,) = planned("smollm2-135m", small, seq=1024, layers=2).phases
    request = CompileRequest(target="cuda", device=small, seq=1024, layers=2)
    made = compile_loaded(load_any("smollm2-135m", Diagnostics()), request)
    assert found.fits and "chunk_head.cu" not in made.files


def test_prompts_that_steps_read_take_a_step_a_token():
    """A device whose blocks have no room for a chunk."""
    small = device("h200").with_numbers(memory_bytes=78_400)
    (found,) = planned("smollm2-135m", small, "prefill", seq=5, layers=2).phases
    request = CompileRequest(target="cuda", device=small, seq=5, layers=2)
    program = compile_loaded(load_any("smollm2-135m", Diagnostics()), request)
    assert not program.prompts and "token by token" in found.chosen[0]
    steps = [step_time(program.modules["decode"], {"pos": pos}).seconds for pos in range(5)]
    assert found.prediction.seconds == pytest.approx(sum(steps))


@pytest.mark.slow
def test_more_gpus_would_fit_and_a_shorter_cache_does():
    small = device("h200").with_numbers(global_memory_bytes=300_000_000)
    (found,) = planned("smollm2-135m", small, seq=2048).phases
    assert not found.fits and found.violates.keys() == {"M"}
    flags = dict(text.removeprefix("--").split() for text in found.cures)
    assert flags.keys() == {"gpus", "seq"} and int(flags["seq"]) == found.kv_tokens
    seq, model = int(flags["seq"]), load_any("smollm2-135m", Diagnostics())
    request = CompileRequest(target="cuda", device=small, persistent=True, seq=seq)
    assert compile_loaded(model, request).files
    # A step that meets by a counter, whose prompts are read by steps, keeps less scratch, by which
    # nine pages more fit.
    with pytest.raises(MeshcError, match="does-not-fit"):
        compile_loaded(model, CompileRequest(**vars(request) | {"seq": seq + 208}))
    (dealt,) = planned("smollm2-135m", small, gpus=int(flags["gpus"]), seq=2048).phases
    assert dealt.fits


def test_a_part_of_a_model_takes_less_and_its_sums_are_told():
    (whole,) = planned("smollm2-135m", "h100", layers=2).phases
    (part,) = planned("smollm2-135m", "h100", gpus=2, layers=2).phases
    names = {one.name: one for one in part.prediction.parts}
    assert part.room.needed < whole.room.needed
    assert names["o_sum"].times == names["y_sum"].times == 2 and not part.prediction.left_out
    assert {"hop_cycles", "link_bytes_per_second"} <= {one.name for one in part.prediction.inputs}
    (unknown,) = planned("smollm2-135m", "gh200", gpus=2, layers=2).phases
    assert "what 2 GPUs tell each other" in unknown.prediction.left_out[0]
    assert unknown.prediction.parts and not any(
        "hop" in one.name for one in unknown.prediction.inputs
    )


def test_what_nothing_predicts_says_so():
    for phase in planned("smollm2-135m", "b200", "both").phases:
        assert phase.fits and phase.prediction is None and "'tile_bytes'" in phase.silent


def test_mixtures_of_experts_are_steps_of_tasks():
    alone = planned("mixtral-8x7b", "h200", "both", layers=2)
    dealt = planned("mixtral-8x7b", "h200", gpus=8, layers=2)
    for phase in (*alone.phases, *dealt.phases):
        assert phase.fits and phase.prediction.model == "events"


def test_a_node_takes_what_its_schedule_takes():
    prefill, decode = planned("llama-3-8b", "h100x8", "both", seq=1024).phases
    report = node_report(NodeRequest("llama-3-8b", "h100x8", 1024, "fuse-only"))
    assert prefill.prediction.seconds == pytest.approx(report.seconds)
    assert prefill.tokens == 1024 and decode.tokens == 1
    assert decode.joules > prefill.joules > 0
    kernels = {one.name: one.times for one in decode.prediction.parts}
    assert kernels["all_reduce_norm"] == 64 and kernels["head"] == 1


def test_published_servers_predict_where_a_node_has_no_kernels():
    (found,) = planned("qwen3-30b-a3b", "h100x2").phases
    assert found.prediction.model == "servers" and found.joules > 0
    (alone,) = planned("gpt-oss-20b", "h100x2", gpus=1).phases
    assert alone.tokens_per_second < found.tokens_per_second * 10
    assert alone.room.uses["weights"] > found.room.uses["caches"]


def test_nodes_are_short_by_gpu_and_more_would_fit():
    (found,) = planned("llama-3.3-70b", "h100x8", gpus=1).phases
    assert not found.fits and found.room.left < 0 and found.cures == ("--gpus 2",)
    assert planned("llama-3.3-70b", "h100x8", gpus=2).fits


def test_caches_of_a_node_hold_what_is_left():
    (found,) = planned("llama-3-8b", "h100x4", seq=1024).phases
    (full,) = planned("llama-3-8b", "h100x4", seq=found.kv_tokens).phases
    assert full.fits
    assert not planned("llama-3-8b", "h100x4", seq=found.kv_tokens + 1).fits


def test_a_step_waits_for_the_gpu_that_has_an_expert():
    """Of Mixtral's eight experts two are chosen, each of which one GPU of eight has whole."""
    (found,) = planned("mixtral-8x7b", "h100x8", gpus=8, layers=2, seq=256).phases
    (experts,) = (part for part in found.prediction.parts if part.name == "experts")
    size = 3 * 4096 * 14336 * 2
    least = size / device("h100x8").read_bytes_per_second
    assert experts.cost.total / experts.times > least


def test_latents_are_planned_on_a_node():
    (found,) = planned("deepseek-v2-lite", "h100x8", gpus=8, seq=256).phases
    assert found.prediction is not None and found.prediction.total > 0 and not found.silent

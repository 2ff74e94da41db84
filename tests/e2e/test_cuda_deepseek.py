"""A deepseek_v2 model as CUDA kernels in the CPU executor: the logits of the graph interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from reduced import each

from meshc.backends.cuda import CpuMachine, LanguageModel, from_json
from meshc.backends.cuda.executor import CXX, QUICK, Mode, modes
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

MOST_REGISTERS = 168  # at which blocks of nine warps still launch
CONFIG = {
    "model_type": "deepseek_v2",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "vocab_size": 200,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "torch_dtype": "float16",
}


YARN = {
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
    }
}


LOW_RANK = {"q_lora_rank": 80, "qk_rope_head_dim": 32}


def compiled(folder: Path, changes=None, **options):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(changes or {})}))
    report = Diagnostics()
    request = CompileRequest(target="cuda", dtype="f16", **{"seq": 100, **options})
    return compile_loaded(load_any(str(folder), report), request, (), report)


def weights_of(module):
    rng = np.random.default_rng(1)
    tensors = {}
    for param in module.function.params:
        if param.role == "weight":
            spread = 1.0 if "norm" in param.value.name else 0.08
            drawn = rng.standard_normal(param.value.type.shape(module.dims)) * spread
            tensors[param.value.name] = drawn.astype(np.float16).astype(np.float64)
    return tensors


@pytest.mark.parametrize(
    "options",
    each(
        [
            {"changes": LOW_RANK},
            {"changes": YARN},
            {},
            {"page": 1},
            {"page": 64},
        ],
        5,
    ),
)
def test_logits_are_those_of_the_graph(options, tmp_path: Path):
    result = compiled(tmp_path, **options)
    graph = compiled(tmp_path, options.get("changes"), compile_to="graph")
    module = graph.modules["decode"]
    tensors = weights_of(module)
    program = from_json(result.files["manifest.json"])
    machine = CpuMachine(program.kernels, result.files, Mode("shuffled", True), toolchain=QUICK)
    model = LanguageModel(program, machine, tensors)
    names = [p.value.name for p in module.function.params if p.role == "state"]
    states = {}
    for position, token in enumerate([3, 17, 199, 0, 42, 42, 8]):
        inputs = {"tokens": np.array([[token]]), **tensors, **states}
        logits, *caches = run_graph(module, inputs, {"pos": position})
        states = dict(zip(names, caches, strict=True))
        (found,) = model.step([token], [position])
        # What is cached is rounded to 16 bits; everything else is f32.
        assert np.abs(found - logits.reshape(-1)).max() <= 2.0**-9 * np.abs(logits).max()
        assert found.argmax() == logits.argmax()


def test_the_step_is_made_of_tasks(tmp_path: Path):
    """Tasks attend over latents as the library does, which needs no other kernels."""
    result = compiled(tmp_path)
    (told,) = (d for d in result.remarks if d.code.startswith("step-of-"))
    assert told.code == "step-of-tasks" and "statement by statement" not in told.message
    launches = from_json(result.files["manifest.json"]).launches()
    assert {launch.kernel for launch, _ in launches} == {"step"}
    assert "mc::TileAttention<T, 4, 80, 64, 64, WARPS, 80, true>" in result.files["step.cu"]


@pytest.mark.parametrize(
    "options", [{"serving": "chunks", "batch": 2, "batch_tokens": 8}, {"batch": 2, "drafts": 3}]
)
def test_new_rows_of_latents_stand_among_cached_ones(options, tmp_path: Path):
    result = compiled(tmp_path, **options)
    (told,) = (d for d in result.remarks if d.code == "step-of-tasks")
    assert "statement by statement" not in told.message
    assert "mc::NewRows<T, 80>{fresh, fresh, pos}" in result.files["step.cu"]


def test_latents_of_odd_lanes_are_attended_slowly_which_is_told(tmp_path: Path):
    result = compiled(tmp_path, {"qk_rope_head_dim": 24})
    (told,) = (d for d in result.remarks if d.code.startswith("step-of-"))
    assert told.message.endswith("attend attends statement by statement, which is slow")


@pytest.mark.slow
@pytest.mark.cuda_compiler
@pytest.mark.parametrize("changes", [{}, {"num_attention_heads": 128, "q_lora_rank": 1536}])
def test_steps_of_published_sizes_have_the_registers(changes, tmp_path: Path):
    """The sizes of DeepSeek-V2-Lite and DeepSeek-V2, with one layer."""
    sizes = {
        "hidden_size": 2048, "num_attention_heads": 16, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "intermediate_size": 10944, "num_hidden_layers": 1, "first_k_dense_replace": 1,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    result = compiled(tmp_path, sizes | changes, seq=4096)
    assert "mc::TileAttention<T, 16, 576, 512, 16, WARPS, 576, true>" in result.files["step.cu"]
    needs = compile_cubin(result.files["step.cu"]).kernels["step"]
    assert (needs.spill_bytes, needs.stack_bytes) == (0, 0)
    assert needs.registers <= MOST_REGISTERS


@pytest.mark.slow
def test_all_modes_agree_to_the_bit(tmp_path: Path):
    """A prompt and a step behind it, in every schedule with early and late copies."""
    result = compiled(tmp_path, batch=2, page=1)
    program = from_json(result.files["manifest.json"])
    tensors = weights_of(compiled(tmp_path, compile_to="graph").modules["decode"])
    found = set()
    for mode in modes((3,)):
        model = LanguageModel(
            program, CpuMachine(program.kernels, result.files, mode, toolchain=QUICK), tensors
        )
        prompt = model.prefill([3, 17, 199])
        step = model.step([8, 5], [3, 0])
        found.add(prompt.tobytes() + step.tobytes())
    assert len(found) == 1

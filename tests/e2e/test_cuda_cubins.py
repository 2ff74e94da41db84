"""Emitted kernels as machine code for sm_90a: what they need."""

import json
from functools import cache

import pytest
from reduced import only

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

MODELS = {
    "smollm2-135m": {},
    "llama-2-7b": {"dtype": "bf16"},
    "llama-3-8b": {"page": 1},
}
# A block of 288 threads has registers as one of 384: 65536 / 384, in steps of 8.
MOST_REGISTERS, MOST_SHARED_BYTES = 168, 232448


pytestmark = pytest.mark.cuda_compiler


@cache
def compiled(model):
    """Kernels of a decode step by name, and their cubins."""
    report = Diagnostics()
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 4096} | MODELS[model])
    result = compile_loaded(load_any(model, report), request, (), report)
    kernels = from_json(result.files["manifest.json"]).kernels
    return kernels, {name: compile_cubin(result.files[k.file]) for name, k in kernels.items()}


@pytest.mark.slow
@pytest.mark.parametrize("model", only(MODELS, "llama-3-8b"))
def test_kernels_fit_a_block_without_spills(model):
    kernels, cubins = compiled(model)
    for name, kernel in kernels.items():
        needs = cubins[name].kernels[name]
        assert (needs.spill_bytes, needs.stack_bytes) == (0, 0), name
        assert needs.registers <= MOST_REGISTERS, name
        assert needs.shared_bytes == 0, name  # all of it is dynamic, laid out by the compiler
        assert kernel.shared_bytes <= MOST_SHARED_BYTES, name
        assert needs.max_threads == kernel.threads, name
        assert needs.cluster in (None, kernel.cluster), name
        assert cubins[name].warnings == (), name


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "batch"), [("bf16", 1), ("f16", 5), ("bf16", 16)])
def test_coded_caches_do_not_spill(dtype, batch):
    """Steps and prompts over keys and values of eight bits."""
    asked = {"dtype": dtype, "batch": batch, "seq": 4096, "kv_dtype": "fp8_e4m3"}
    found = meshc.compile("llama-3-8b", target="cuda", device="h200", **asked)
    for kernel, entry in from_json(found.files["manifest.json"]).kernels.items():
        needs = compile_cubin(found.files[entry.file]).kernels[kernel]
        assert (needs.spill_bytes, needs.stack_bytes) == (0, 0), kernel
        assert needs.registers <= MOST_REGISTERS, kernel


CONFIGS = {
    "mistral, window": ("mistral", {"sliding_window": 4096, "intermediate_size": 14336}),
    "granite": ("granite", {"residual_multiplier": 0.22, "attention_multiplier": 0.0078125,
                            "embedding_multiplier": 12.0, "logits_scaling": 16.0,
                            "attention_bias": True, "mlp_bias": True,
                            "intermediate_size": 12800}),
    "gemma": ("gemma", {"intermediate_size": 24576, "head_dim": 256, "hidden_size": 3072,
                        "num_attention_heads": 16, "num_key_value_heads": 16}),
}  # fmt: skip
SIZES = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "num_hidden_layers": 2, "vocab_size": 32000, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_windows_and_multipliers_do_not_spill(name, tmp_path):
    """Decode steps and chunks of 512 tokens."""
    family, own = CONFIGS[name]
    named = {"model_type": family, "architectures": [f"{family.capitalize()}ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(named | SIZES | own))
    found = meshc.compile(str(tmp_path), target="cuda", dtype="bf16", seq=8192, chunk=512)
    for kernel, entry in from_json(found.files["manifest.json"]).kernels.items():
        needs = compile_cubin(found.files[entry.file]).kernels[kernel]
        assert (needs.spill_bytes, needs.stack_bytes) == (0, 0), kernel
        assert needs.registers <= MOST_REGISTERS, kernel

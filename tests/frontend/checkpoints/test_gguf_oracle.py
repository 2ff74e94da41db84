"""Programs from GGUF files against transformers: its own reading of the file, as far as that knows
the architecture, and its reading of the same weights in the Hugging Face form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

pytest.importorskip("gguf")
pytest.importorskip("safetensors")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import gguf
import gguf_checkpoints as checkpoints
import llama_cpp_files as files
import torch
import transformers

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.models,
    pytest.mark.filterwarnings("default"),
]
PROMPT = [3, 14, 15, 9, 26, 5, 31]
COUNT = 4


def answers(file: Path) -> tuple[list[int], np.ndarray]:
    """Tokens and logits of the emitted Python program."""
    request = CompileRequest(mesh="2x2", seq=len(PROMPT) + COUNT, dtype="f32")
    with compile_loaded(load_any(str(file), Diagnostics()), request).load() as program:
        found = program.generate(PROMPT, COUNT, ignore_eos=True)
    return list(found.tokens), found.logits


def theirs(folder: Path, **options: Any) -> tuple[list[int], np.ndarray]:
    """Of transformers, one whole sequence at a time, without caches."""
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **plain, **options
    ).eval()
    ids, rows = list(PROMPT), []
    for _ in range(COUNT):
        with torch.no_grad():
            row = model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()
        rows.append(row)
        ids.append(int(row.argmax()))
    return ids[len(PROMPT) :], np.array(rows)


def check(found: tuple[list[int], np.ndarray], wanted: tuple[list[int], np.ndarray]) -> None:
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1], wanted[1], atol=2e-4 * np.abs(wanted[1]).max())


@pytest.mark.parametrize("name", [name for name in checkpoints.SAME if "internlm2" not in name])
def test_the_weights_in_the_hugging_face_form(name: str, tmp_path: Path) -> None:
    """All but internlm2, which transformers does not have."""
    folder, file = checkpoints.write_both(name, tmp_path)
    check(answers(file), theirs(folder))


# Configs that transformers' reading of a GGUF file gives: it passes over many keys, so what those
# say must be its defaults.
COMMON = {
    "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48,
    "intermediate_size": 40, "num_hidden_layers": 2, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}  # fmt: skip
READ: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "head_dim": 8},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 26, "head_dim": 256,
        "sliding_window": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 18, "head_dim": 256,
        "sliding_window": 4, "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 128,
        "sliding_window": None, "pad_token_id": 0,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "norm_topk_prob": False,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "head_dim": 8,
    },
    "stablelm": {
        "architectures": ["StableLmForCausalLM"], "hidden_size": 64, "layer_norm_eps": 1e-5,
        "use_qkv_bias": True, "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        },
    },
    "starcoder2": {
        "architectures": ["Starcoder2ForCausalLM"], "norm_epsilon": 1e-5, "use_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 24, "n_head": 4, "n_layer": 2,
        "n_positions": 1024, "vocab_size": 48, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", READ)
def test_transformers_own_reading_of_the_file(family: str, kind: str, tmp_path: Path) -> None:
    known = {} if family == "gpt2" else COMMON
    config = {**known, **READ[family], "model_type": family, "dtype": "float32"}
    if family in ("stablelm", "starcoder2"):
        config = {k: v for k, v in config.items() if k != "rms_norm_eps"}
    if kind != "F32":  # rows fill blocks
        wide = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "n_embd": 64}
        config |= {k: v for k, v in wide.items() if k in config and config[k] != 256}
    tensors = checkpoints.drawn(config, tmp_path / "hf")

    def with_vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list([f"t{n}" for n in range(config["vocab_size"])])
        writer.add_pad_token_id(0)

    file = files.write_gguf(tmp_path / "m.gguf", config, tensors, kind, with_vocabulary)
    check(answers(file), theirs(tmp_path, gguf_file=file.name))

"""Tiny random models, saved by Hugging Face transformers: llama and qwen2 with odd sizes, those
with heads that CUDA kernels have, deepseek_v2 among them, those with experts, those with sinks and
windows, dense ones with windows, and granite with its multipliers.

Usage: python tools/oracle/tiny_models.py [tests/data]

Each model becomes a directory with ``config.json`` and ``model.safetensors`` as transformers writes
them, and ``expected.json``: a prompt, the greedy tokens after it, the two best logits of each
step, and all logits after the prompt. The weights depend on the seed only.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import transformers
from hf_model import greedy

PROMPT_LENGTH = 7
TOKENS = 12


@dataclass(frozen=True)
class TinyModel:
    """One model to make; ``settings`` go to its config class."""

    name: str
    family: str
    settings: dict[str, object]
    dtype: torch.dtype = torch.float32
    shards: bool = False
    place: str = "tiny"  # the folder among the tests' data


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Short, so that the twelve dimensions fall into all three ranges of wavelengths.
    "original_max_position_embeddings": 32,
}

_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 32,
}


_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}


def _sizes(
    hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int, layers: int
) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _latent_sizes(heads: int, rank: int) -> dict[str, object]:
    """Latent attention over ``rank`` lanes, dense layers alone, queries of full rank."""
    common = _sizes(64, heads, heads, 16, 48, 89, 2)
    del common["head_dim"]
    return common | {
        "kv_lora_rank": rank,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "first_k_dense_replace": 2,
    }


def _with_experts(experts: int, chosen: int, features: int = 0) -> dict[str, object]:
    """How many experts there are and how many of them a token is sent to; the ``features`` of one,
    where the config does not call them ``intermediate_size``."""
    sizes = {"num_experts_per_tok": chosen}
    sizes |= {"num_experts": experts, "moe_intermediate_size": features} if features else {}
    return sizes if features else sizes | {"num_local_experts": experts}


def _routed(experts: int, chosen: int, features: int) -> dict[str, object]:
    """As `_with_experts`, by the keys of deepseek."""
    sizes = {"n_routed_experts": experts, "num_experts_per_tok": chosen}
    return sizes | {"moe_intermediate_size": features}


_SMALL_LATENT = {
    "hidden_size": 20,
    "intermediate_size": 26,
    "vocab_size": 47,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "first_k_dense_replace": 1,
}

TINY_MODELS = (
    TinyModel("llama-3h1", "llama", _sizes(24, 3, 1, 8, 40, 61, 2)),
    TinyModel(
        "llama-9h3-tied",
        "llama",
        {**_sizes(36, 9, 3, 4, 50, 97, 2), "tie_word_embeddings": True},
        torch.bfloat16,
    ),
    TinyModel(
        "llama-5h-mha",
        "llama",
        {**_sizes(35, 5, 5, 6, 33, 53, 3), "rms_norm_eps": 1e-5, "hidden_act": "gelu"},
        torch.float16,
    ),
    TinyModel(
        "llama-rope3",
        "llama",
        {**_sizes(36, 4, 2, 12, 45, 71, 2), "rope_parameters": _LLAMA3_ROPE},
        torch.bfloat16,
    ),
    TinyModel(
        "llama-biased-f16",
        "llama",
        {**_sizes(22, 2, 2, 10, 31, 47, 2), "attention_bias": True, "mlp_bias": True},
        torch.float16,
    ),
    TinyModel(
        "llama-linear-sharded",
        "llama",
        {
            **_sizes(21, 3, 1, 6, 28, 43, 2),
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5},
        },
        shards=True,
    ),
    TinyModel(
        "qwen2-7h1",
        "qwen2",
        {**_sizes(28, 7, 1, 4, 39, 67, 2), "rms_norm_eps": 1e-6},
    ),
    TinyModel(
        "qwen2-6h2-tied-bf16",
        "qwen2",
        {**_sizes(30, 6, 2, 8, 37, 59, 2), "tie_word_embeddings": True},
        torch.bfloat16,
    ),
    TinyModel(
        "llama-4h2",
        "llama",
        {**_sizes(32, 4, 2, 64, 48, 107, 2), "tie_word_embeddings": True},
        torch.float16,
        place="tiny_cuda",
    ),
    TinyModel(
        "qwen2-2h1-bf16",
        "qwen2",
        _sizes(32, 2, 1, 64, 48, 79, 2),
        torch.bfloat16,
        place="tiny_cuda",
    ),
    TinyModel("deepseek-4h", "deepseek_v2", _latent_sizes(4, 32), torch.float16, place="tiny_cuda"),
    TinyModel(
        "deepseek-2h-yarn-bf16",
        "deepseek_v2",
        {**_latent_sizes(2, 64), "rope_parameters": _YARN_ROPE},
        torch.bfloat16,
        place="tiny_cuda",
    ),
    TinyModel(
        "deepseek-4h-low-rank",
        "deepseek_v2",
        {**_latent_sizes(4, 32), "q_lora_rank": 40},
        torch.float16,
        place="tiny_cuda",
    ),
    TinyModel(
        "mixtral-5x2",
        "mixtral",
        {**_sizes(20, 4, 2, 6, 14, 53, 2), **_with_experts(5, 2)},
        place="tiny_experts",
    ),
    TinyModel(
        "mixtral-3x1-bf16",
        "mixtral",
        {**_sizes(24, 3, 1, 4, 11, 47, 2), **_with_experts(3, 1)},
        torch.bfloat16,
        place="tiny_experts",
    ),
    TinyModel(
        "qwen3-moe-7x3",
        "qwen3_moe",
        {**_sizes(18, 6, 3, 4, 29, 59, 2), **_with_experts(7, 3, 6), "norm_topk_prob": True},
        place="tiny_experts",
    ),
    TinyModel(
        "qwen3-moe-8x2-f16",
        "qwen3_moe",
        {**_sizes(22, 4, 1, 6, 29, 43, 3), **_with_experts(8, 2, 5), "norm_topk_prob": False},
        torch.float16,
        place="tiny_experts",
    ),
    TinyModel(
        "qwen2-moe-6x2",
        "qwen2_moe",
        {
            **_sizes(20, 5, 5, 4, 29, 61, 2),
            **_with_experts(6, 2, 7),
            "shared_expert_intermediate_size": 13,
        },
        place="tiny_experts",
    ),
    TinyModel(
        "qwen2-moe-4x3-tied-bf16",
        "qwen2_moe",
        {
            **_sizes(24, 6, 2, 4, 29, 41, 2),
            **_with_experts(4, 3, 9),
            "shared_expert_intermediate_size": 8,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        place="tiny_experts",
    ),
    TinyModel(
        "deepseek-v2-8x3",
        "deepseek_v2",
        {
            **_latent_sizes(2, 10),
            **_SMALL_LATENT,
            **_routed(8, 3, 9),
            "n_shared_experts": 2,
        },
        place="tiny_latent_experts",
    ),
    TinyModel(
        "deepseek-v2-6x2-groups-bf16",
        "deepseek_v2",
        {
            **_latent_sizes(3, 12),
            **_SMALL_LATENT,
            **_routed(6, 2, 7),
            "hidden_size": 24,
            "q_lora_rank": 14,
            "first_k_dense_replace": 0,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 3,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
        },
        torch.bfloat16,
        place="tiny_latent_experts",
    ),
    TinyModel(
        "deepseek-v3-8x3",
        "deepseek_v3",
        {
            **_latent_sizes(2, 10),
            **_SMALL_LATENT,
            **_routed(8, 3, 9),
            "num_hidden_layers": 3,
            "q_lora_rank": 14,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
        },
        place="tiny_latent_experts",
    ),
    TinyModel(
        "gpt-oss-5x2-yarn",
        "gpt_oss",
        {
            **_sizes(20, 6, 2, 4, 9, 53, 3),
            **_with_experts(5, 2),
            "sliding_window": 5,
            "swiglu_limit": 1.25,
            "swiglu_alpha": 1.5,
            "rope_parameters": _GPT_OSS_ROPE,
        },
        place="tiny_gpt_oss",
    ),
    TinyModel(
        "gpt-oss-8x3-bf16",
        "gpt_oss",
        {
            **_sizes(24, 4, 1, 6, 7, 47, 2),
            **_with_experts(8, 3),
            "sliding_window": 2,  # of a window of 1 the cache of transformers keeps all
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
        torch.bfloat16,
        place="tiny_gpt_oss",
    ),
    TinyModel(
        "mistral-6h2",
        "mistral",
        {**_sizes(20, 6, 2, 4, 26, 53, 3), "sliding_window": 5},
        place="tiny_dense",
    ),
    TinyModel(
        "mistral-3h1-bf16",
        "mistral",
        {**_sizes(18, 3, 1, 6, 25, 47, 2), "sliding_window": 3, "tie_word_embeddings": True},
        torch.bfloat16,
        place="tiny_dense",
    ),
    TinyModel(
        "granite-6h2-biased",
        "granite",
        {
            **_sizes(18, 6, 2, 4, 26, 53, 3),
            "attention_bias": True,
            "mlp_bias": True,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.35,
            "logits_scaling": 1.7,
        },
        place="tiny_scaled",
    ),
    TinyModel(
        "granite-3h1-tied-bf16",
        "granite",
        {
            **_sizes(21, 3, 1, 6, 25, 47, 2),
            "tie_word_embeddings": True,
            "embedding_multiplier": 0.5,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.8,
            "logits_scaling": 2.5,
        },
        torch.bfloat16,
        place="tiny_scaled",
    ),
    TinyModel(
        "qwen3-moe-6x2-dense",
        "qwen3_moe",
        {**_sizes(20, 4, 2, 4, 11, 57, 3), **_with_experts(6, 2, 7), "mlp_only_layers": [0]},
        place="tiny_experts",
    ),
    TinyModel(
        "qwen2-moe-5x2-dense-bf16",
        "qwen2_moe",
        {
            **_sizes(20, 5, 5, 4, 13, 49, 2),
            **_with_experts(5, 2, 6),
            "shared_expert_intermediate_size": 9,
            "decoder_sparse_step": 2,
        },
        torch.bfloat16,
        place="tiny_experts",
    ),
)


_FAMILIES = {
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "glm": (transformers.GlmConfig, transformers.GlmForCausalLM),
    "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "stablelm": (transformers.StableLmConfig, transformers.StableLmForCausalLM),
    "starcoder2": (transformers.Starcoder2Config, transformers.Starcoder2ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    "granite": (transformers.GraniteConfig, transformers.GraniteForCausalLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "cohere": (transformers.CohereConfig, transformers.CohereForCausalLM),
    "cohere2": (transformers.Cohere2Config, transformers.Cohere2ForCausalLM),
    "olmo": (transformers.OlmoConfig, transformers.OlmoForCausalLM),
    "nemotron": (transformers.NemotronConfig, transformers.NemotronForCausalLM),
    "glm4": (transformers.Glm4Config, transformers.Glm4ForCausalLM),
    "exaone4": (transformers.Exaone4Config, transformers.Exaone4ForCausalLM),
    "granitemoe": (transformers.GraniteMoeConfig, transformers.GraniteMoeForCausalLM),
    "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
}


def make(model: TinyModel, folder: Path, seed: int = 0) -> None:
    """Write the directory of ``model`` under ``folder``."""
    target = folder / model.name
    save(model, target, seed)
    fields = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in expected_outputs(target, seed).items()
    ]
    text = "{\n" + ",\n".join(fields) + "\n}\n"
    (target / "expected.json").write_text(text, encoding="utf-8")


def save(model: TinyModel, target: Path, seed: int = 0) -> None:
    """Write the checkpoint of ``model`` to the directory ``target``."""
    torch.manual_seed(seed)
    network = _network(model)
    target.mkdir(parents=True, exist_ok=True)
    limit = {"max_shard_size": "10KB"} if model.shards else {}
    network.save_pretrained(target, **limit)
    (target / "generation_config.json").unlink(missing_ok=True)


def load(folder: Path) -> transformers.PreTrainedModel:
    """The model saved in ``folder``, in float32.

    It is loaded again: casting a half-precision model back would keep its rounded RoPE table.
    """
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()


def expected_outputs(folder: Path, seed: int) -> dict[str, object]:
    """What the model saved in ``folder``, computed in float32, answers to a random prompt."""
    network = load(folder)
    generator = torch.Generator().manual_seed(seed + 1)
    vocab = network.config.vocab_size
    prompt = [int(i) for i in torch.randint(0, vocab, (PROMPT_LENGTH,), generator=generator)]
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([prompt])).logits[0, -1]
    steps = [asdict(step) for step in greedy(network, prompt, TOKENS)]
    return {
        "prompt_ids": prompt,
        "tokens": [step["ids"][0] for step in steps],
        "second_tokens": [step["ids"][1] for step in steps],
        "best_logits": [round(step["logits"][0], 6) for step in steps],
        "second_logits": [round(step["logits"][1], 6) for step in steps],
        "prompt_logits": [round(float(value), 6) for value in logits],
    }


def _network(model: TinyModel) -> transformers.PreTrainedModel:
    """Random weights, larger than usual: with the common 0.02 every logit would be near zero."""
    of_config, kind = _FAMILIES[model.family]
    config = of_config(**model.settings)
    network = kind(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 1 and name.endswith("weight"):
                weight.uniform_(0.5, 1.5)
            else:
                fan_in = 2.0 * weight.shape[-1] ** -0.5
                weight.normal_(0.0, 0.3 if name.endswith("bias") else fan_in)
        for name, buffer in network.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2)
    return network.to(model.dtype)


def main(arguments: list[str]) -> None:
    """Write every model under the folder in ``arguments``, or where the tests read them."""
    folder = Path(arguments[0] if arguments else "tests/data")
    for number, model in enumerate(TINY_MODELS):
        make(model, folder / model.place, seed=number)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Tiny random llama and qwen2 models with odd sizes, saved by Hugging Face transformers.

Usage: python tools/oracle/tiny_models.py [tests/data/tiny]

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


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Short, so that the twelve dimensions fall into all three ranges of wavelengths.
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
)


def make(model: TinyModel, folder: Path, seed: int = 0) -> None:
    """Write the directory of ``model`` under ``folder``."""
    torch.manual_seed(seed)
    network = _network(model)
    target = folder / model.name
    target.mkdir(parents=True, exist_ok=True)
    limit = {"max_shard_size": "10KB"} if model.shards else {}
    network.save_pretrained(target, **limit)
    (target / "generation_config.json").unlink(missing_ok=True)
    fields = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in expected_outputs(target, seed).items()
    ]
    text = "{\n" + ",\n".join(fields) + "\n}\n"
    (target / "expected.json").write_text(text, encoding="utf-8")


def expected_outputs(folder: Path, seed: int) -> dict[str, object]:
    """What the model saved in ``folder``, computed in float32, answers to a random prompt.

    It is loaded again: casting a half-precision model back would keep its rounded RoPE table.
    """
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
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
    if model.family == "qwen2":
        config = transformers.Qwen2Config(**model.settings)
        kind = transformers.Qwen2ForCausalLM
    else:
        config = transformers.LlamaConfig(**model.settings)
        kind = transformers.LlamaForCausalLM
    network = kind(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                fan_in = 2.0 * weight.shape[-1] ** -0.5
                weight.normal_(0.0, 0.3 if name.endswith("bias") else fan_in)
    return network.to(model.dtype)


def main(arguments: list[str]) -> None:
    """Write every model under the folder in ``arguments``, or where the tests read them."""
    folder = Path(arguments[0] if arguments else "tests/data/tiny")
    for number, model in enumerate(TINY_MODELS):
        make(model, folder, seed=number)


if __name__ == "__main__":
    main(sys.argv[1:])

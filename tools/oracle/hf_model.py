"""A Hugging Face transformers model that holds the weights of a meshc checkpoint.

Needs torch and transformers (extra ``oracle``). The model computes in float32 with plain
attention, so its tokens are the reference for compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers

from meshc.frontend.checkpoints import Checkpoint, LinearScaling, Llama3Scaling, ModelConfig

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_PROJECTIONS = {
    "wq": ("self_attn.q_proj.weight", 1),
    "wk": ("self_attn.k_proj.weight", 1),
    "wv": ("self_attn.v_proj.weight", 1),
    "wo": ("self_attn.o_proj.weight", 2),
    "w_gate": ("mlp.gate_proj.weight", 1),
    "w_up": ("mlp.up_proj.weight", 1),
    "w_down": ("mlp.down_proj.weight", 1),
}
_VECTORS = {
    "attn_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "bq": "self_attn.q_proj.bias",
    "bk": "self_attn.k_proj.bias",
    "bv": "self_attn.v_proj.bias",
    "bo": "self_attn.o_proj.bias",
    "b_gate": "mlp.gate_proj.bias",
    "b_up": "mlp.up_proj.bias",
    "b_down": "mlp.down_proj.bias",
}


@dataclass(frozen=True)
class Step:
    """One greedy step: the ids of the two best logits and the logits, best first."""

    ids: tuple[int, int]
    logits: tuple[float, float]


def hf_config(config: ModelConfig) -> transformers.PretrainedConfig:
    """``config`` as a ``LlamaConfig`` or ``Qwen2Config``."""
    common = {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": _ACTIVATIONS[config.activation],
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.eps,
        "tie_word_embeddings": config.tied_embeddings,
        "rope_parameters": _rope_parameters(config),
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
    }
    if config.family == "qwen2":
        return transformers.Qwen2Config(**common)
    return transformers.LlamaConfig(
        **common, attention_bias=config.attention_bias, mlp_bias=config.mlp_bias
    )


def hf_model(checkpoint: Checkpoint) -> transformers.PreTrainedModel:
    """The float32 model with the weights of ``checkpoint``, ready for inference."""
    config = hf_config(checkpoint.config)
    config._attn_implementation = "eager"
    kind = (
        transformers.Qwen2ForCausalLM
        if checkpoint.config.family == "qwen2"
        else transformers.LlamaForCausalLM
    )
    model = kind(config).to(torch.float32).eval()
    missing, surplus = model.load_state_dict(_state(checkpoint), strict=False)
    tied = {"lm_head.weight"} if checkpoint.config.tied_embeddings else set()
    if set(missing) - tied or surplus:
        raise ValueError(f"weights do not match: missing {missing}, surplus {surplus}")
    return model


@torch.no_grad()
def greedy(model: transformers.PreTrainedModel, prompt: list[int], tokens: int) -> list[Step]:
    """``tokens`` greedy steps after ``prompt``; the end token does not stop it."""
    steps = []
    cache, ids = None, torch.tensor([prompt])
    for _ in range(tokens):
        result = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        best = torch.topk(result.logits[0, -1].to(torch.float32), 2)
        first, second = (int(i) for i in best.indices)
        steps.append(Step((first, second), (float(best.values[0]), float(best.values[1]))))
        ids = torch.tensor([[first]])
    return steps


def _rope_parameters(config: ModelConfig) -> dict[str, object]:
    parameters: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling = config.rope_scaling
    if isinstance(scaling, LinearScaling):
        parameters |= {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        parameters |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return parameters


def _state(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    state = {
        "model.embed_tokens.weight": torch.from_numpy(checkpoint.read("embedding")),
        "model.norm.weight": torch.from_numpy(checkpoint.read("final_norm")),
    }
    if not checkpoint.config.tied_embeddings:
        state["lm_head.weight"] = torch.from_numpy(checkpoint.read("lm_head")).T.contiguous()
    for name in checkpoint.names():
        if checkpoint.is_per_layer(name):
            for layer in range(checkpoint.layers):
                stored, tensor = _layer_tensor(checkpoint, name, layer)
                state[f"model.layers.{layer}.{stored}"] = tensor
    return state


def _layer_tensor(checkpoint: Checkpoint, name: str, layer: int) -> tuple[str, torch.Tensor]:
    """The name in a Hugging Face layer and the tensor in its stored form, [out, in]."""
    value = torch.from_numpy(checkpoint.read_layer(name, layer))
    if name in _VECTORS:
        return _VECTORS[name], value.reshape(-1)
    stored, input_dims = _PROJECTIONS[name]
    inputs = int(torch.tensor(value.shape[:input_dims]).prod())
    return stored, value.reshape(inputs, -1).T.contiguous()

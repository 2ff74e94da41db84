"""What a ``config.json`` of deepseek_v2 says beside the keys of other families.

Defaults of absent keys are those of ``DeepseekV2Config`` in transformers. Dense layers are read;
a model with experts is refused by the key that asks for them.
"""

from __future__ import annotations

from meshc.frontend.models.config import SIZE_LIMITS, LatentSizes
from meshc.frontend.models.fields import Fields

EXPERT_KEYS = frozenset({
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim",
    "v_head_dim", "first_k_dense_replace", "moe_layer_freq", "n_routed_experts",
    "n_shared_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group",
    "topk_group", "topk_method", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
    "aux_loss_alpha", "seq_aux", "ep_size", "output_router_logits",
})  # fmt: skip
"""Keys of this family: read here, of experts where no layer has any, or widths that
transformers computes from others."""

_LANES = {
    "rank": ("kv_lora_rank", 512),
    "query": ("qk_nope_head_dim", 128),
    "rope": ("qk_rope_head_dim", 64),
    "value": ("v_head_dim", 128),
}
_DENSE_HELP = "meshc computes deepseek_v2 with dense layers only"
_QUERY_RANK = 1536


def read_latent(fields: Fields, layers: int, heads: int, kv_heads: int) -> LatentSizes:
    """Lanes of the attention; faults, and what is not supported, go to the diagnostics."""
    limit = SIZE_LIMITS["head_dim"]
    sizes = LatentSizes(
        **{name: fields.integer(key, 1, limit, absent) for name, (key, absent) in _LANES.items()},
        query_rank=_query_rank(fields),
    )
    if sizes.rope % 2:
        fields.reject_value("qk_rope_head_dim", "an even number is wanted: RoPE rotates pairs")
    if kv_heads != heads:
        fields.reject_value("num_key_value_heads", f"latent attention has one per head, {heads}")
    _refuse_experts(fields, layers)
    for key in ("attention_bias", "mlp_bias", "tie_word_embeddings"):
        if fields.values.get(key) is True:
            _refuse(fields, key, f"'{key}' is not supported for deepseek_v2")
    return sizes


def _refuse_experts(fields: Fields, layers: int) -> None:
    """Layers from ``first_k_dense_replace`` on have experts, if there are any."""
    dense = fields.integer("first_k_dense_replace", 0, SIZE_LIMITS["layers"], default=0)
    experts = fields.integer("n_routed_experts", 0, 1 << 20, default=0)
    named = "n_routed_experts" if fields.has("n_routed_experts") else "first_k_dense_replace"
    without = "n_routed_experts" in fields.values and not experts
    if dense < layers and not without:
        # Absent, the number of experts is 64.
        count = experts or 64
        message = f"layers from {dense} on have {count} experts ('{named}'), which is not supported"
        _refuse(fields, named, message)


def _query_rank(fields: Fields) -> int:
    """Values that queries are products of: null is none, an absent key is not null."""
    if "q_lora_rank" in fields.values and not fields.has("q_lora_rank"):
        return 0
    return fields.integer("q_lora_rank", 1, SIZE_LIMITS["hidden"], _QUERY_RANK)


def _refuse(fields: Fields, key: str, message: str) -> None:
    fields.reject("config-unsupported", key, message, _DENSE_HELP)

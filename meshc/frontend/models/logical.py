"""The logical tensors of a decoder, and how each is stored under the names of a format.

A linear layer is stored as [out, in]; its logical form is [in, out] with the head dimensions
apart, so that ``x @ w`` is the projection. E hidden, H heads, G key-value heads, D head_dim,
F ffn, V vocab.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshc.frontend.models.config import LatentSizes, ModelConfig


@dataclass(frozen=True)
class Lanes:
    """Lanes ``first`` to ``end`` of each of ``heads`` in a stored ``[heads * lanes, in]``, whose
    dims heads, lanes, in are then put in the order ``axes``."""

    heads: int
    first: int
    end: int
    axes: tuple[int, int, int] = (2, 0, 1)

    def of(self, stored: np.ndarray) -> np.ndarray:
        """These lanes of ``stored``."""
        split = stored.reshape(self.heads, -1, stored.shape[1])
        return split[:, self.first : self.end].transpose(self.axes)


@dataclass(frozen=True)
class LogicalTensor:
    """One logical tensor. For a ``per_layer`` one, ``shape`` is that of a single layer.

    ``hf`` and ``gguf`` are the stored names, with ``{n}`` for the layer. ``rope_heads`` is the
    number of heads of a query or key tensor, whose rows some GGUF files permute; else 0. ``lanes``
    picks it out of a stored tensor that holds several.
    """

    name: str
    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    hf: str
    gguf: str
    per_layer: bool
    transposed: bool
    rope_heads: int = 0
    lanes: Lanes | None = None

    def from_stored(self, stored: np.ndarray, permuted: bool) -> np.ndarray:
        """The logical tensor, C-contiguous, from ``stored`` of ``stored_shape``."""
        if permuted and self.rope_heads:
            stored = rows_to_halves(stored, self.rope_heads)
        if self.lanes is not None:
            return np.ascontiguousarray(self.lanes.of(stored)).reshape(self.shape)
        ordered = stored.T if self.transposed else stored
        return np.ascontiguousarray(ordered).reshape(self.shape)


def rows_to_halves(stored: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from interleaved to rotate-half order.

    llama-type GGUF files hold RoPE pair i in rows 2i and 2i+1 of a head; Hugging Face files, and
    meshc, in rows i and i + D/2. Source: ``permute`` in llama.cpp's ``convert_hf_to_gguf.py``,
    which this undoes.
    """
    pairs = stored.reshape(heads, stored.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(stored.shape)


def logical_tensors(config: ModelConfig) -> tuple[LogicalTensor, ...]:
    """Every logical tensor of ``config``: embedding, those of a layer, final norm, head."""
    embedding = LogicalTensor(
        name="embedding",
        shape=(config.vocab, config.hidden),
        stored_shape=(config.vocab, config.hidden),
        hf="model.embed_tokens.weight",
        gguf="token_embd.weight",
        per_layer=False,
        transposed=False,
    )
    tied = config.tied_embeddings
    lm_head = LogicalTensor(
        name="lm_head",
        shape=(config.hidden, config.vocab),
        stored_shape=(config.vocab, config.hidden),
        hf=embedding.hf if tied else "lm_head.weight",
        gguf=embedding.gguf if tied else "output.weight",
        per_layer=False,
        transposed=True,
    )
    final = _vector("final_norm", (config.hidden,), "model.norm.weight", "output_norm.weight")
    attention = _attention(config) if config.latent is None else _latent(config, config.latent)
    return (embedding, *attention, *_mlp(config), final, lm_head)


def _attention(config: ModelConfig) -> list[LogicalTensor]:
    hidden, queries = (config.hidden,), (config.heads, config.head_dim)
    keys = (config.kv_heads, config.head_dim)
    parts = [
        _layer_vector("attn_norm", hidden, "input_layernorm.weight", "attn_norm.weight"),
        _linear("wq", hidden, queries, "self_attn.q_proj", "attn_q", config.heads),
        _linear("wk", hidden, keys, "self_attn.k_proj", "attn_k", config.kv_heads),
        _linear("wv", hidden, keys, "self_attn.v_proj", "attn_v"),
        _linear("wo", queries, hidden, "self_attn.o_proj", "attn_output"),
    ]
    if config.attention_bias:
        parts += [
            _bias("bq", queries, "self_attn.q_proj", "attn_q", config.heads),
            _bias("bk", keys, "self_attn.k_proj", "attn_k", config.kv_heads),
            _bias("bv", keys, "self_attn.v_proj", "attn_v"),
        ]
    if config.o_bias:
        parts.append(_bias("bo", hidden, "self_attn.o_proj", "attn_output"))
    return parts


def _latent(config: ModelConfig, sizes: LatentSizes) -> list[LogicalTensor]:
    """Latent attention: the stored tensors hold lanes with and without RoPE, or of keys and values,
    side by side. R kv_lora_rank, N, P lanes of a query without and with RoPE, D of a value."""
    hidden, heads = config.hidden, config.heads
    rank, query, rope, value = sizes.rank, sizes.query, sizes.rope, sizes.value
    first, rotary = Lanes(heads, 0, query), Lanes(heads, query, query + rope)
    of_latent, of_key = Lanes(1, 0, rank), Lanes(1, rank, rank + rope)
    keys, values = Lanes(heads, 0, query, (1, 0, 2)), Lanes(heads, query, query + value)
    queries = ("self_attn.q_proj", "attn_q", (heads * (query + rope), hidden))
    shared = ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", (rank + rope, hidden))
    up = ("self_attn.kv_b_proj", "attn_kv_b", (heads * (query + value), rank))
    norm = ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight")
    low_rank: list[LogicalTensor] = []
    source = hidden
    if sizes.query_rank:
        source = sizes.query_rank
        queries = ("self_attn.q_b_proj", "attn_q_b", (heads * (query + rope), source))
        gain = ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight")
        low_rank = [
            _linear("w_query", (hidden,), (source,), "self_attn.q_a_proj", "attn_q_a"),
            _layer_vector("query_norm", (source,), *gain),
        ]
    return [
        _layer_vector("attn_norm", (hidden,), "input_layernorm.weight", "attn_norm.weight"),
        *low_rank,
        _part("wq", (source, heads, query), queries, first),
        _part("wq_rope", (source, heads, rope), queries, rotary),
        _part("w_latent", (hidden, rank), shared, of_latent),
        _part("w_rope", (hidden, rope), shared, of_key),
        _layer_vector("latent_norm", (rank,), *norm),
        _part("w_uk", (query, heads, rank), up, keys),
        _part("w_uv", (rank, heads, value), up, values),
        _linear("wo", (heads, value), (hidden,), "self_attn.o_proj", "attn_output"),
    ]


def _part(
    name: str, shape: tuple[int, ...], stored: tuple[str, str, tuple[int, int]], lanes: Lanes
) -> LogicalTensor:
    hf, gguf, stored_shape = stored
    return LogicalTensor(
        name,
        shape,
        stored_shape,
        f"model.layers.{{n}}.{hf}.weight",
        f"blk.{{n}}.{gguf}.weight",
        True,
        False,
        lanes=lanes,
    )


def _mlp(config: ModelConfig) -> list[LogicalTensor]:
    hidden, ffn = (config.hidden,), (config.ffn,)
    parts = [
        _layer_vector("ffn_norm", hidden, "post_attention_layernorm.weight", "ffn_norm.weight"),
        _linear("w_gate", hidden, ffn, "mlp.gate_proj", "ffn_gate"),
        _linear("w_up", hidden, ffn, "mlp.up_proj", "ffn_up"),
        _linear("w_down", ffn, hidden, "mlp.down_proj", "ffn_down"),
    ]
    if config.mlp_bias:
        parts += [
            _bias("b_gate", ffn, "mlp.gate_proj", "ffn_gate"),
            _bias("b_up", ffn, "mlp.up_proj", "ffn_up"),
            _bias("b_down", hidden, "mlp.down_proj", "ffn_down"),
        ]
    return parts


def _linear(
    name: str,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    hf: str,
    gguf: str,
    rope_heads: int = 0,
) -> LogicalTensor:
    return LogicalTensor(
        name=name,
        shape=inputs + outputs,
        stored_shape=(math.prod(outputs), math.prod(inputs)),
        hf=f"model.layers.{{n}}.{hf}.weight",
        gguf=f"blk.{{n}}.{gguf}.weight",
        per_layer=True,
        transposed=True,
        rope_heads=rope_heads,
    )


def _bias(
    name: str, outputs: tuple[int, ...], hf: str, gguf: str, rope_heads: int = 0
) -> LogicalTensor:
    return _layer_vector(name, outputs, f"{hf}.bias", f"{gguf}.bias", rope_heads)


def _layer_vector(
    name: str, shape: tuple[int, ...], hf: str, gguf: str, rope_heads: int = 0
) -> LogicalTensor:
    return _vector(name, shape, f"model.layers.{{n}}.{hf}", f"blk.{{n}}.{gguf}", True, rope_heads)


def _vector(
    name: str,
    shape: tuple[int, ...],
    hf: str,
    gguf: str,
    per_layer: bool = False,
    rope_heads: int = 0,
) -> LogicalTensor:
    stored = (math.prod(shape),)
    return LogicalTensor(name, shape, stored, hf, gguf, per_layer, False, rope_heads)

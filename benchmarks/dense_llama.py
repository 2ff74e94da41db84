"""A plain dense decoder of the llama family in NumPy: what the distributed program is held to.

Written to be fast in plain NumPy, not to be a weak opponent: float32 throughout, query, key and
value in one product, gate and up in one product, caches allocated once, weights in the order that
BLAS reads with unit stride, no copies of weights or caches in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meshc.frontend.checkpoints import ModelConfig

Array = NDArray[np.float32]


class DenseLlama:
    """One sequence, one token at a time; ``tensors`` are meshc's logical tensors by name.

    Takes models with rotate-half RoPE without scaling, SiLU and no biases.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Array], capacity: int) -> None:
        self.config, self.capacity = config, capacity
        self.embedding = np.asarray(tensors["embedding"], np.float32)
        head = self.embedding if config.tied_embeddings else tensors["lm_head"].T
        self.lm_head = np.ascontiguousarray(head, np.float32)
        self.final_norm = np.asarray(tensors["final_norm"], np.float32)
        self.attn_norm = np.asarray(tensors["attn_norm"], np.float32)
        self.ffn_norm = np.asarray(tensors["ffn_norm"], np.float32)
        self.qkv = _rows(tensors, ("wq", "wk", "wv"))
        self.gate_up = _rows(tensors, ("w_gate", "w_up"))
        wo = np.asarray(tensors["wo"], np.float32)
        self.out = np.ascontiguousarray(
            wo.reshape(config.layers, -1, config.hidden).transpose(0, 2, 1)
        )
        self.down = np.ascontiguousarray(
            np.asarray(tensors["w_down"], np.float32).transpose(0, 2, 1)
        )
        shape = (config.layers, config.kv_heads, capacity, config.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        half = config.head_dim // 2
        angles = np.outer(
            np.arange(capacity), config.rope_theta ** (-np.arange(half, dtype=np.float64) / half)
        )
        self.cos = np.cos(angles).astype(np.float32)
        self.sin = np.sin(angles).astype(np.float32)

    def step(self, token: int, position: int) -> Array:
        """Logits ``[vocab]`` after ``token``, which stands at ``position``."""
        x = self.embedding[token]
        for layer in range(self.config.layers):
            x = x + self.out[layer] @ self._attention(
                self._norm(x, self.attn_norm, layer), layer, position
            )
            x = x + self._feed_forward(self._norm(x, self.ffn_norm, layer), layer)
        logits: Array = self.lm_head @ self._norm(x, self.final_norm[None], 0)
        return logits

    def _norm(self, x: Array, weight: Array, layer: int) -> Array:
        scale = np.float32(1.0) / np.sqrt(
            np.dot(x, x) / np.float32(x.size) + np.float32(self.config.eps)
        )
        scaled: Array = x * scale * weight[layer]
        return scaled

    def _attention(self, h: Array, layer: int, position: int) -> Array:
        c = self.config
        heads = (self.qkv[layer] @ h).reshape(-1, c.head_dim)
        turned = self._rope(heads[: c.heads + c.kv_heads], position)
        self.keys[layer, :, position] = turned[c.heads :]
        self.values[layer, :, position] = heads[c.heads + c.kv_heads :]
        q = turned[: c.heads].reshape(c.kv_heads, -1, c.head_dim)
        scores = q @ self.keys[layer, :, : position + 1].transpose(0, 2, 1)
        scores *= np.float32(c.head_dim**-0.5)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed: Array = (scores @ self.values[layer, :, : position + 1]).reshape(-1)
        return mixed

    def _rope(self, heads: Array, position: int) -> Array:
        half = heads.shape[1] // 2
        low, high = heads[:, :half], heads[:, half:]
        cos, sin = self.cos[position], self.sin[position]
        turned = np.empty_like(heads)
        turned[:, :half] = low * cos - high * sin
        turned[:, half:] = high * cos + low * sin
        return turned

    def _feed_forward(self, h: Array, layer: int) -> Array:
        both = self.gate_up[layer] @ h
        gate, up = both[: self.config.ffn], both[self.config.ffn :]
        y: Array = self.down[layer] @ (gate / (1.0 + np.exp(-gate)) * up)
        return y

    def generate(
        self, ids: Sequence[int], max_tokens: int, on_token: Callable[[int, Array], None]
    ) -> list[int]:
        """Greedy tokens after ``ids``; ``on_token`` is called with each and its logits."""
        for position, token in enumerate(ids[:-1]):
            self.step(token, position)
        token, found = ids[-1], list[int]()
        for position in range(len(ids) - 1, len(ids) - 1 + max_tokens):
            logits = self.step(token, position)
            token = int(logits.argmax())
            found.append(token)
            on_token(token, logits)
        return found


def _rows(tensors: Mapping[str, Array], names: Sequence[str]) -> Array:
    """``[layers, outputs of all names, inputs]``: row by row, so that a product is dot products."""
    parts = [np.asarray(tensors[name], np.float32) for name in names]
    flat = [p.reshape(*p.shape[:2], -1).transpose(0, 2, 1) for p in parts]
    return np.concatenate(flat, axis=1)

"""A plain dense decoder in NumPy, to judge whether weights were read and placed correctly."""

from __future__ import annotations

import math

import numpy as np

from meshc.frontend.checkpoints import Checkpoint, LinearScaling, Llama3Scaling, ModelConfig


class DenseDecoder:
    """Token by token, with a KV cache; all in float32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.weights = {name: checkpoint.read(name) for name in checkpoint.names()}
        self.cache: list[tuple[list[np.ndarray], list[np.ndarray]]] = [
            ([], []) for _ in range(checkpoint.layers)
        ]
        self.frequencies = rope_frequencies(self.config)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """``count`` greedy tokens after ``prompt``."""
        logits = self.prompt_logits(prompt)
        tokens = []
        for _ in range(count):
            tokens.append(int(np.argmax(logits)))
            logits = self.step(tokens[-1])
        return tokens

    def prompt_logits(self, prompt: list[int]) -> np.ndarray:
        """The logits after ``prompt``."""
        return [self.step(token) for token in prompt][-1]

    def step(self, token: int) -> np.ndarray:
        """The logits after one more token."""
        x = self.weights["embedding"][token]
        for layer, (keys, values) in enumerate(self.cache):
            normed = self._norm(x, self.weights["attn_norm"][layer])
            x = x + self._attention(normed, layer, keys, values)
            x = x + self._mlp(self._norm(x, self.weights["ffn_norm"][layer]), layer)
        return self._norm(x, self.weights["final_norm"]) @ self.weights["lm_head"]

    def _norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x) + np.float32(self.config.eps)) * weight

    def _project(self, x: np.ndarray, weight: str, bias: str, layer: int) -> np.ndarray:
        y = np.tensordot(x, self.weights[weight][layer], axes=x.ndim)
        return y + self.weights[bias][layer] if bias in self.weights else y

    def _attention(
        self, x: np.ndarray, layer: int, keys: list[np.ndarray], values: list[np.ndarray]
    ) -> np.ndarray:
        angles = np.float32(len(keys)) * self.frequencies
        query = _rotate(self._project(x, "wq", "bq", layer), angles)
        keys.append(_rotate(self._project(x, "wk", "bk", layer), angles))
        values.append(self._project(x, "wv", "bv", layer))
        group = self.config.heads // self.config.kv_heads
        key = np.repeat(np.stack(keys), group, axis=1)
        value = np.repeat(np.stack(values), group, axis=1)
        scores = np.einsum("hd,shd->hs", query, key) / np.float32(math.sqrt(self.config.head_dim))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        mixed = np.einsum("hs,shd->hd", weights, value)
        return self._project(mixed, "wo", "bo", layer)

    def _mlp(self, x: np.ndarray, layer: int) -> np.ndarray:
        gate = self._project(x, "w_gate", "b_gate", layer)
        gated = _activate(gate, self.config.activation) * self._project(x, "w_up", "b_up", layer)
        return self._project(gated, "w_down", "b_down", layer)


def rope_frequencies(config: ModelConfig) -> np.ndarray:
    """The head_dim / 2 rotation frequencies."""
    frequency = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    scaling = config.rope_scaling
    if isinstance(scaling, LinearScaling):
        frequency = frequency / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        frequency = np.array([_llama3(float(f), scaling) for f in frequency])
    return frequency.astype(np.float32)


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_max_position / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_max_position / scaling.low_freq_factor:
        return frequency / scaling.factor
    part = scaling.original_max_position / wavelength - scaling.low_freq_factor
    part /= scaling.high_freq_factor - scaling.low_freq_factor
    return (1 - part) * frequency / scaling.factor + part * frequency


def _rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _activate(x: np.ndarray, kind: str) -> np.ndarray:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "gelu":
        return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x], dtype=np.float32)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

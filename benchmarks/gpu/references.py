"""What emitted kernels compute, in float64, from the arrays that they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.kernels.head.kernel import Head

Array = NDArray[Any]


def values(words: Array, dtype: str) -> Array:
    """16-bit words of ``f16`` or ``bf16`` in float64."""
    if dtype == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def normed(x: Array, gain: Array, epsilon: float) -> Array:
    """RMSNorm of rows."""
    found: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gain
    return found


def _rounded(x: Array, dtype: str) -> Array:
    """As the cache keeps it."""
    return values(to_words(x, dtype), dtype)


def to_words(x: Array, dtype: str) -> Array:
    """``x`` as words, rounded to nearest even."""
    if dtype == "f16":
        return np.asarray(x, np.float16).view(np.uint16)
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    found: Array = weights / weights.sum(1, keepdims=True)
    return found


def logits(shape: Head, given: dict[str, Array]) -> Array:
    """The logits of the last row of the input."""
    x = given["input"][-1:].astype(np.float64)
    if shape.normed:
        x = normed(x, values(given["gain"], shape.dtype), shape.epsilon)
    found: Array = x @ values(given["matrix"], shape.dtype).T
    return found


def embedded(tokens: Array, table: Array, dtype: str) -> Array:
    """Rows of a table."""
    return values(table[tokens], dtype)


def plain_block(given: dict[str, Array], dtype: str, cached: int, epsilon: float) -> Array:
    """An attention block [batch, hidden] of arrays in the plain layout that other libraries get:
    ``qkv`` [rows, hidden], ``out`` [hidden, attended], caches [batch, kv_heads, capacity, head],
    rotary halves."""
    x, qkv, out = (values(given[name], dtype) for name in ("input", "qkv", "out"))
    pools = [values(given[name], dtype) for name in ("keys", "values")]
    _, kv, _, head = pools[0].shape
    heads = out.shape[1] // head
    rows = normed(x, values(given["norm"], dtype), epsilon) @ qkv.T
    rows = rows.reshape(len(x), heads + 2 * kv, head)
    angles = given["cosines"][cached], given["sines"][cached]
    found = x.copy()
    for b in range(len(x)):
        queries = _halves_rotated(rows[b, :heads], *angles).reshape(kv, heads // kv, head)
        new = _halves_rotated(rows[b, heads : heads + kv], *angles), rows[b, heads + kv :]
        attended = []
        for h in range(kv):
            keys, held = (
                np.concatenate([pool[b, h, :cached], _rounded(n[h : h + 1], dtype)])
                for pool, n in zip(pools, new, strict=True)
            )
            attended.append(_softmax(queries[h] @ keys.T * head**-0.5) @ held)
        found[b] += out @ np.concatenate(attended).reshape(-1)
    return found


def _halves_rotated(x: Array, cosines: Array, sines: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return np.concatenate(turned, axis=-1)

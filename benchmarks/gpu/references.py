"""What emitted kernels compute, in float64, from the arrays that they are given."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.kernels.attention_block.kernel import AttentionPlan
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct

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


def rotated(x: Array, cosines: Array, sines: Array) -> Array:
    """Rotary embedding of interleaved pairs; x [heads, head]."""
    pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * (cosines + 1j * sines)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def attention_block(plan: AttentionPlan, given: dict[str, Array]) -> Array:
    """What ``sums`` [batch, hidden] holds behind the block, from zeros: residual plus output.

    ``given`` has the kernel's arguments by name.
    """
    shape = plan.shape
    parts = plan.cluster if plan.dataflow == "split_head" else 1
    kv, group, head = shape.kv_heads, shape.heads // shape.kv_heads, shape.head
    lanes = head // parts
    # [kv, parts, query heads and key and value, lanes of a part, hidden]
    qkv = values(given["qkv"], shape.dtype).reshape(kv, parts, group + 2, lanes, -1)
    qkv = qkv.swapaxes(1, 2).reshape(kv, group + 2, head, -1)
    out = values(given["out"], shape.dtype).reshape(kv, parts, shape.hidden, group, lanes)
    out = np.moveaxis(out, 1, 3).reshape(kv, shape.hidden, group, head)
    # [pages, kv, place, head]
    pools = [_pool(given[name], shape.dtype, kv, parts, shape.page) for name in ("keys", "values")]
    x = given["residual"].astype(np.float64)
    inputs = normed(x, values(given["norm"], shape.dtype), shape.epsilon)
    found = x.copy()
    for b, length in enumerate(given["cached"]):
        angles = given["cosines"][length], given["sines"][length]
        pages = given["pages"][b]
        for h in range(kv):
            rows = qkv[h] @ inputs[b]
            queries, key = rotated(rows[:group], *angles), rotated(rows[group : group + 1], *angles)
            tokens = np.arange(length)
            old = [pool[pages[tokens // shape.page], h, tokens % shape.page] for pool in pools]
            if plan.swizzled:
                old = [_in_order(rows, tokens) for rows in old]
            keys = np.concatenate([old[0], _rounded(key, shape.dtype)])
            weights = _softmax(queries @ keys.T * shape.scale)
            attended = weights @ np.concatenate([old[1], _rounded(rows[-1:], shape.dtype)])
            found[b] += np.einsum("cgd,gd->c", out[h], attended)
    return found


def _pool(words: Array, dtype: str, kv: int, parts: int, page: int) -> Array:
    pool = values(words, dtype).reshape(
        -1, kv, parts, page, words.size // len(words) // kv // parts // page
    )
    return np.moveaxis(pool, 2, 3).reshape(len(words), kv, page, -1)


def _in_order(rows: Array, positions: Array) -> Array:
    """Rows [tokens, lanes] whose chunks of eight lanes were swizzled by position."""
    chunks = rows.shape[1] // 8
    apart = int(np.gcd(chunks, 8))
    chunk = np.arange(chunks) ^ (positions[:, None] // (8 // apart) % apart)
    split = rows.reshape(len(rows), chunks, 8)
    return split[np.arange(len(rows))[:, None], chunk].reshape(rows.shape)


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


def rows_product(shape: RowsProduct, given: dict[str, Array]) -> Array:
    """The output of a product by rows."""
    x = given["input"].astype(np.float64)
    if shape.input == "normed":
        x = normed(x, values(given["gain"], shape.dtype), shape.epsilon)
    y = x @ values(given["matrix"], shape.dtype).T
    if shape.output == "residual":
        y = y + given["sums"]
    if shape.output != "gated":
        return np.asarray(y)
    gate, value = y[:, 0::2], y[:, 1::2]
    if shape.activation == "silu":
        return np.asarray(gate / (1 + np.exp(-gate)) * value)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return np.asarray(gate * (1 + np.tanh(inner)) / 2 * value)


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

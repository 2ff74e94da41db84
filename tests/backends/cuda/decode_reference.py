"""What the kernels of a decode step must compute, in float64, and inputs for them."""

from dataclasses import dataclass

import numpy as np

from meshc.backends.cuda.kernels.attention_block.kernel import Attention


def to_kind(values, dtype):
    """Values as 16-bit words of ``f16`` or ``bf16``, rounded to nearest even."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    words = values.astype(np.float32).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def from_kind(words, dtype):
    """The values of 16-bit words, in float64."""
    if dtype == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def swizzled(rows, positions):
    """Rows [.., tokens, lanes] with 16-byte chunks exchanged by position; twice puts them back."""
    chunks = rows.shape[-1] // 8
    apart = int(np.gcd(chunks, 8))
    from_chunk = np.arange(chunks) ^ (positions[:, None] // (8 // apart) % apart)
    split = rows.reshape(*rows.shape[:-1], chunks, 8)
    index = np.broadcast_to(from_chunk[..., None], split.shape)
    return np.take_along_axis(split, index, -2).reshape(rows.shape)


def swizzled_pool(pool, pages):
    """A pool [pages, kv_heads, page, head], each page swizzled by its place in a request."""
    page, found = pool.shape[2], pool.copy()
    for own in pages:
        for n, at in enumerate(own):
            found[at] = swizzled(pool[at], n * page + np.arange(page))
    return found


@dataclass
class Case:
    """Inputs of an attention block: weights as logical tensors of words, caches as pools."""

    shape: Attention
    cached: np.ndarray
    residual: np.ndarray
    norm: np.ndarray
    wq: np.ndarray
    wk: np.ndarray
    wv: np.ndarray
    wo: np.ndarray
    bias: tuple
    out_bias: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    pages: np.ndarray
    cosines: np.ndarray
    sines: np.ndarray
    head_norms: tuple = ()  # gains of queries and keys


def make_case(shape: Attention, cached, seed=0):
    """Random inputs for requests that have ``cached`` tokens each; pages lie in random order."""
    rng = np.random.default_rng(seed)

    def words(*extents, spread=1.0):
        return to_kind(rng.standard_normal(extents) * spread, shape.dtype)

    e, h, g, d = shape.hidden, shape.heads, shape.kv_heads, shape.head
    most = max(cached) // shape.page + 1
    count = shape.batch * most
    pages = rng.permutation(count).astype(np.int32).reshape(shape.batch, most)
    positions = max(cached) + 1
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(d // 2) / (d // 2))
    spread = e**-0.5
    bias = (words(h, d), words(g, d), words(g, d)) if shape.bias else ()
    return Case(
        shape,
        np.array(cached, np.int32),
        rng.standard_normal((shape.batch, e)).astype(np.float32),
        words(e),
        words(e, h, d, spread=spread),
        words(e, g, d, spread=spread),
        words(e, g, d, spread=spread),
        words(h, d, e, spread=(h * d) ** -0.5),
        bias,
        words(e) if shape.out_bias else np.zeros(e, np.uint16),
        words(count, g, shape.page, d),
        words(count, g, shape.page, d),
        pages,
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
        (words(d), words(d)) if shape.head_epsilons else (),
    )


def rotated(x, cosines, sines):
    """Rotary embedding of interleaved pairs; x is [heads, head]."""
    even, odd = x[:, 0::2], x[:, 1::2]
    found = np.empty_like(x)
    found[:, 0::2] = even * cosines - odd * sines
    found[:, 1::2] = odd * cosines + even * sines
    return found


def expected(case: Case):
    """Outputs [batch, hidden] and the new keys and values [batch, kv_heads, head]."""
    shape = case.shape
    kind = shape.dtype
    wq, wk, wv, wo = (from_kind(w, kind) for w in (case.wq, case.wk, case.wv, case.wo))
    out = np.zeros((shape.batch, shape.hidden))
    new = np.zeros((2, shape.batch, shape.kv_heads, shape.head))
    for b, length in enumerate(case.cached):
        x = case.residual[b].astype(np.float64)
        normed = x / np.sqrt((x**2).mean() + shape.epsilon) * from_kind(case.norm, kind)
        q, k, v = (np.tensordot(normed, w, 1) for w in (wq, wk, wv))
        if case.bias:
            q, k, v = (a + from_kind(w, kind) for a, w in zip((q, k, v), case.bias, strict=True))
        if case.head_norms:
            q, k = (
                a / np.sqrt((a**2).mean(-1, keepdims=True) + epsilon) * from_kind(gain, kind)
                for a, epsilon, gain in zip(
                    (q, k), shape.head_epsilons, case.head_norms, strict=True
                )
            )
        q = rotated(q, case.cosines[length], case.sines[length])
        k = rotated(k, case.cosines[length], case.sines[length])
        new[:, b] = [from_kind(to_kind(t, kind), kind) for t in (k, v)]
        first = max(0, length + 1 - shape.window) if shape.window else 0
        where = np.arange(first, length)
        page, place = case.pages[b, where // shape.page], where % shape.page
        old = [from_kind(pool[page, :, place], kind) for pool in (case.keys, case.values)]
        every = [np.concatenate([o, n[None]]) for o, n in zip(old, new[:, b], strict=True)]
        keys, values = (np.repeat(t, shape.heads // shape.kv_heads, axis=1) for t in every)
        scores = np.einsum("hd,thd->ht", q, keys) * shape.scale
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        attended = np.einsum("ht,thd->hd", weights, values)
        projected = np.tensordot(attended, wo, 2) + from_kind(case.out_bias, kind)
        out[b] = x + shape.factor * projected
    return out, new

"""Words of 16 bits, caches and rotations as kernels have them, in NumPy."""

import numpy as np


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


def rotated(x, cosines, sines):
    """Rotary embedding of interleaved pairs; x is [heads, head]."""
    even, odd = x[:, 0::2], x[:, 1::2]
    found = np.empty_like(x)
    found[:, 0::2] = even * cosines - odd * sines
    found[:, 1::2] = odd * cosines + even * sines
    return found


def in_columns(tokens):
    """Where values 0 .. 15 of each of ``tokens`` tokens lie, [tokens, 16]: pairs of each four in
    two halves, which tokens 4 to 7 of eight have the other way round."""
    token, k = np.arange(tokens)[:, None], np.arange(16)
    return token * 16 + ((k // 2 % 2) ^ (token // 4 % 2)) * 8 + k // 4 * 2 + k % 2


def columns(rows, tokens):
    """Words [n, width] as columns of up to ``tokens``; what is behind the last token is noise."""
    n, width = rows.shape
    found = np.full((-(-width // 16) * 16, tokens), 0x7E00, np.uint16)  # f16: NaN
    found[:, :n] = 0
    found[:width, :n] = rows.T
    made = np.zeros((found.shape[0] // 16, tokens * 16), np.uint16)
    made[:, in_columns(tokens)] = found.reshape(-1, 16, tokens).transpose(0, 2, 1)
    return made.reshape(-1, tokens, 16)


def rows_of(found, n, width):
    """Rows [n, width] of columns."""
    tokens = found.shape[1]
    values = found.reshape(len(found), -1)[:, in_columns(tokens)]
    return values.transpose(1, 0, 2).reshape(tokens, -1)[:n, :width]

"""Caches that keep floats of eight bits with a scale for each row: what they hold, by a table of
all such floats, and where kernels have it in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from step_caches import Caches

EXPONENTS = range(-15, 8)
NONE = 127 + 8
"""The byte of a scale that is no number, which memory has where nothing was written."""


def _float(code: int) -> float:
    """The float e4m3 of seven bits: four of an exponent, three behind the point."""
    exponent, part = divmod(code, 8)
    return part / 8 * 2.0**-6 if exponent == 0 else (1 + part / 8) * 2.0 ** (exponent - 7)


FLOATS = np.array([_float(code) for code in range(127)])
"""All that are not negative, in order: the last is 448."""


def coded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The floats of rows ``[.., lanes]`` as bytes, and the byte of the scale of each."""
    most = np.abs(values).max(-1)
    scale = np.full(most.shape, EXPONENTS[-1] + 1)
    for exponent in reversed(EXPONENTS):
        scale = np.where(most <= FLOATS[-1] * 2.0**exponent, exponent, scale)
    assert (scale <= EXPONENTS[-1]).all(), "a row has no scale"
    wanted = np.abs(values) / 2.0 ** scale[..., None].astype(float)
    above = np.clip(np.searchsorted(FLOATS, wanted), 1, len(FLOATS) - 1)
    low, high = wanted - FLOATS[above - 1], FLOATS[above] - wanted
    up = (high < low) | ((high == low) & (above % 2 == 0))
    codes = np.where(up, above, above - 1) | np.where(np.signbit(values), 0x80, 0)
    return codes.astype(np.uint8), (scale + 127).astype(np.uint8)


def numbers(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """What floats and scales stand for; NaN where there are none."""
    whole = np.append(FLOATS, np.nan)[codes & 0x7F]
    found = np.where(codes & 0x80, -whole, whole)
    return found * np.where(scales == NONE, np.nan, 2.0 ** (scales.astype(float) - 127))[..., None]


def kept(values: np.ndarray) -> np.ndarray:
    """``values`` as such caches have them."""
    return numbers(*coded(values))


def drawn(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Rows that such caches can hold, of scales that differ."""
    sizes = 2.0 ** rng.integers(-3, 2, shape[:-1])
    return kept(rng.standard_normal(shape) * sizes[..., None])


def unset(run: Caches, caches: Sequence[str]) -> None:
    """Let the memory of caches hold nothing."""
    for pool in map(run.buffer, caches):
        run.machine.write(pool, np.full_like(run.machine.arrays[pool], NONE))


def places(run: Caches, cache: str, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Where floats of rows of a cache ``[layers, requests, tokens, heads, lanes]`` and where the
    bytes of their scales lie in its memory, as one row of bytes."""
    layers, requests, tokens, heads, lanes = np.indices(shape, sparse=True)
    pool = run.machine.arrays[run.buffer(cache)]
    if scales_behind(run):
        every, page, wide = (
            pool.shape[n] for n in ((-2, -3, -1) if run.step.nhd else (-3, -2, -1))
        )
        assert (every, wide) == (shape[3], -(-shape[4] // 16) * 16 + 16)
        own = layers * len(pool[0]) if pool.ndim == 5 else layers * 0
        outer = tokens % page * every + heads if run.step.nhd else heads * page + tokens % page
        row = ((own + run.pages[requests, tokens // page]) * every * page + outer) * wide
        return row + lanes, row + wide - 16 + np.arange(4)
    every, page, wide = pool.shape[-3:]
    assert wide == shape[-1] + 1
    assert every == shape[3]
    own = layers * len(pool[0]) if pool.ndim == 5 else layers * 0
    row = (own + run.pages[requests, tokens // page]) * every + heads
    sixteen = row * page * wide + tokens % page // 16 * 16 * wide
    chunks = shape[-1] // 16
    apart = next(n for n in (8, 4, 2, 1) if max(chunks, 1) % n == 0)
    turned = tokens // (8 // apart) % apart if shape[-1] % 16 == 0 else 0
    lane = (lanes // 16 ^ turned) * 16 + lanes % 16
    at = sixteen + 16 + tokens % 16 * shape[-1] + lane
    return at, sixteen + tokens % 16


def scales_behind(run: Caches) -> bool:
    """Whether each row has its scale behind it, a float of 32 bits."""
    return run.step.nhd or run.step.program.page % 16 > 0


def as_kept(run: Caches, scales: np.ndarray) -> np.ndarray:
    """The bytes ``[.., n]`` that memory has of scales, of those that are none too."""
    if not scales_behind(run):
        return scales[..., None]
    values = np.where(scales == NONE, np.inf, 2.0 ** (scales.astype(float) - 127))
    return values.astype(np.float32)[..., None].view(np.uint8)


def give(run: Caches, caches: Mapping[str, np.ndarray], positions: Sequence[int]) -> None:
    """Fill the caches with rows that they can hold: as many tokens as a request has, and nothing
    behind them."""
    unset(run, [*caches])
    for cache, values in caches.items():
        codes, scales = coded(values)
        for b, count in enumerate(positions):
            codes[:, b, count:] = scales[:, b, count:] = NONE
        pool = run.machine.arrays[run.buffer(cache)].copy()
        of_codes, of_scales = places(run, cache, values.shape)
        pool.reshape(-1)[of_codes] = codes
        pool.reshape(-1)[of_scales] = as_kept(run, scales)
        run.machine.write(run.buffer(cache), pool)


def held(run: Caches, cache: str, shape: Sequence[int]) -> np.ndarray:
    """The numbers of a cache as they are now, NaN where there are none."""
    pool = run.machine.arrays[run.buffer(cache)].reshape(-1)
    codes, scales = (pool[at] for at in places(run, cache, shape))
    if not scales_behind(run):
        return numbers(codes, scales[..., 0])
    floats = np.ascontiguousarray(scales).view(np.float32)[..., 0]
    exponents = np.array(EXPONENTS)
    known = (floats[..., None] == 2.0**exponents).any(-1)
    return numbers(codes, np.where(known, np.frexp(floats)[1] + 126, NONE).astype(np.uint8))


def check_rows(found: np.ndarray, wanted: np.ndarray, many: bool) -> None:
    """Rows that a kernel left are those that are ``wanted``. Some elements may have been rounded
    the other way, to a neighbour among floats: more of them, and farther, where ``many`` requests
    had left sides of products rounded."""
    apart = np.abs(found - wanted)
    least = np.abs(wanted).max(-1, keepdims=True) / 2**17
    step = np.maximum(np.abs(wanted), np.abs(found)) / 8 + least
    other = apart > 0
    assert not np.isnan(found).any(), "a row was not written"
    if many:
        assert (apart <= 3 * step + np.abs(wanted).max() / 50).all()
        return
    assert (apart <= 1.01 * step).all(), "an element is no neighbour of what it should be"
    assert other.sum() <= 2 + other.size / 25, f"{other.sum()} of {other.size} differ"

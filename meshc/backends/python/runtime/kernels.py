"""Microkernels: what a core computes on its own memory, here for many cores at once.

Each takes views, the result first, and works on the active cores in ``on``. Arithmetic is in
float32; a result in a half-type buffer is rounded when it is stored.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from . import experts
from .arrays import hide, reduce_rows
from .cores import Cores
from .memory import Array, View
from .on_views import kernel as _kernel
from .percore import PerCore

_SQRT_HALF = np.float32(0.7071067811865476)
_SQRT_2_OVER_PI = np.float32(0.7978845608028654)
_TURNS_REMEMBERED = 256  # as many positions as a step has requests
_THREADED_BYTES = 16 * 2**20  # below this, handing work to a thread hardly pays
# erfc(z) = t exp(-z*z + p(t)), t = 2/(2 + z), z >= 0: relative error below 1.2e-7
# (Chebyshev fit of Numerical Recipes, section 6.2)
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def _trailing(small: Array, like: Array) -> Array:
    """``small`` with its dims (after the cores) matched to the last dims of ``like``."""
    missing = like.ndim - small.ndim
    return small.reshape(small.shape[:1] + (1,) * missing + small.shape[1:]) if missing else small


def _leading(small: Array, like: Array) -> Array:
    """``small`` with its dims matched to the first dims of ``like``."""
    return small.reshape(small.shape + (1,) * (like.ndim - small.ndim))


# --- elementwise


@_kernel()
def fill(out: Array, value: float) -> None:
    """Every element becomes ``value``."""
    out[...] = value


@_kernel()
def copy(out: Array, a: Array) -> None:
    """out = a"""
    np.copyto(out, a)


@_kernel()
def add(out: Array, a: Array, b: Array) -> None:
    """out = a + b, b repeated over leading dims it lacks"""
    np.add(a, _trailing(b, out), out=out)


@_kernel()
def dequantise(
    out: Array, codes: Array, scales: Array, *least: Array, group: int, zero: int, lifted: bool
) -> None:
    """out = (codes - zero) * scales + least: ``group`` rows have one row of scales"""
    by_group = (*scales.shape[:-1], group, scales.shape[-1])
    number = codes.reshape(by_group).astype(np.float32)
    number -= np.float32(zero)
    number *= scales[..., None, :]
    if lifted:
        number += least[0][..., None, :]
    np.copyto(out, number.reshape(codes.shape))


@_kernel()
def mul(out: Array, a: Array, b: Array) -> None:
    """out = a * b, b repeated over leading dims it lacks"""
    np.multiply(a, _trailing(b, out), out=out)


@_kernel()
def div(out: Array, a: Array, b: Array) -> None:
    """out = a / b, b repeated over trailing dims it lacks"""
    np.divide(a, _leading(b, out), out=out)


@_kernel()
def scale(out: Array, a: Array, factor: float) -> None:
    """out = a * factor"""
    np.multiply(a, np.float32(factor), out=out)


@_kernel()
def silu(out: Array, a: Array) -> None:
    """out = a / (1 + exp(-a))"""
    below = np.negative(a)
    np.exp(below, out=below)
    below += 1
    np.divide(a, below, out=out)


@_kernel()
def gelu(out: Array, a: Array, form: str) -> None:
    """out = gelu(a): a * P(normal variable < a), exactly (erf) or by the usual tanh"""
    if form == "tanh":
        inner = _SQRT_2_OVER_PI * (a + np.float32(0.044715) * a * a * a)
        np.multiply(a, np.float32(0.5) * (1 + np.tanh(inner)), out=out)
    else:
        np.multiply(a, np.float32(0.5) * _erfc(-a * _SQRT_HALF), out=out)


@_kernel()
def quick_gelu(out: Array, a: Array) -> None:
    """out = a / (1 + exp(-1.702 * a))"""
    with np.errstate(over="ignore"):
        np.divide(a, 1 + np.exp(np.float32(-1.702) * a), out=out)


@_kernel()
def relu2(out: Array, a: Array) -> None:
    """out = max(a, 0)^2"""
    np.maximum(a, 0, out=out)
    np.multiply(out, out, out=out)


@_kernel()
def sigmoid(out: Array, a: Array) -> None:
    """out = 1 / (1 + exp(-a))"""
    np.multiply(a, np.float32(-1), out=out)  # negative is wrong in NumPy 2 for some strides
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


@_kernel()
def exp(out: Array, a: Array) -> None:
    """out = exp(a)"""
    with np.errstate(over="ignore"):
        np.exp(a, out=out)


@_kernel()
def tanh(out: Array, a: Array) -> None:
    """out = tanh(a)"""
    np.tanh(a, out=out)


@_kernel()
def clamp(out: Array, a: Array, least: float, most: float) -> None:
    """out = a, but at least ``least`` and at most ``most``"""
    np.clip(a, np.float32(least), np.float32(most), out=out)


def _erfc(a: Array) -> Array:
    """1 - erf(a), in double precision inside."""
    size = np.abs(a, dtype=np.float64)
    t = 1.0 / (1.0 + 0.5 * size)
    poly = np.polynomial.polynomial.polyval(t, _ERFC)
    tail = t * np.exp(poly - size * size)
    found: Array = np.where(a >= 0, tail, 2.0 - tail).astype(np.float32)
    return found


@_kernel()
def exp_sub(out: Array, a: Array, m: Array) -> None:
    """out = exp(a - m), m repeated over trailing dims it lacks"""
    np.subtract(a, _leading(m, out), out=out)
    np.exp(out, out=out)


# --- products and reductions


@_kernel(updates=True)
def gemm(
    out: Array, a: Array, b: Array, accumulate: bool = False, transposed: bool = False
) -> None:
    """out[.., m, n] = a[.., m, k] b[.., k, n] (b[.., n, k] if transposed), or += if accumulate;
    products of a leading dim that out has once are added up"""
    right = b.swapaxes(-1, -2) if transposed else b
    right, left = _trailing(right, a), _trailing(a, right)
    once = tuple(i for i in range(1, out.ndim - 2) if out.shape[i] < left.shape[i])
    if once:
        total = np.matmul(left, right).sum(once, keepdims=True)
        np.add(out, total, out=out) if accumulate else np.copyto(out, total)
    elif accumulate:
        out += np.matmul(left, right)
    elif right.size * 4 >= _THREADED_BYTES and _workers():
        _matmul_in_threads(left, right, out)
    else:
        np.matmul(left, right, out=out)


@cache
def _workers() -> ThreadPoolExecutor | None:
    """A thread for every processor but the one that runs the program."""
    spare = (os.cpu_count() or 1) - 1
    return ThreadPoolExecutor(spare) if spare else None


def _matmul_in_threads(left: Array, right: Array, out: Array) -> None:
    """Each thread does the products of some cores: memory-bound work for one thread alone."""
    pool = _workers()
    parts = os.cpu_count() or 1
    edges = [len(out) * i // parts for i in range(parts + 1)]
    pieces = [slice(lo, hi) for lo, hi in pairwise(edges)]
    assert pool is not None
    jobs = [pool.submit(np.matmul, left[p], right[p], out=out[p]) for p in pieces[1:]]
    np.matmul(left[pieces[0]], right[pieces[0]], out=out[pieces[0]])
    for job in jobs:
        job.result()


@_kernel()
def square_sum(out: Array, a: Array) -> None:
    """out[..] = sum of a*a over trailing dims"""
    rows = a.reshape((*out.shape, -1))
    np.einsum("...i,...i->...", rows, rows, out=out)


@_kernel()
def row_sum(out: Array, a: Array) -> None:
    """out[..] = sum of a over trailing dims"""
    reduce_rows(np.add, out, a)


@_kernel()
def row_max(out: Array, a: Array) -> None:
    """out[..] = largest of a over trailing dims"""
    reduce_rows(np.maximum, out, a)


@_kernel()
def first_at(out: Array, a: Array, top: Array, rank: Any, block: int, limit: int) -> None:
    """out = -(rank * block + j) for the first j with a[.., j] = top[..] that is below limit"""
    equal = a == _leading(top, a)
    index = np.reshape(rank, (-1,) + (1,) * (out.ndim - 1)) * block + equal.argmax(-1)
    np.copyto(out, np.where(equal.any(-1) & (index < limit), -index, -np.inf))


@_kernel()
def at_least(out: Array, a: Array, value: float) -> None:
    """out = the larger of a and value"""
    np.maximum(a, np.float32(value), out=out)


@_kernel()
def larger(out: Array, a: Array, b: Array) -> None:
    """out = the larger of a and b"""
    np.maximum(a, _trailing(b, a), out=out)


@_kernel()
def top_k(
    out: Array,
    scores: Array,
    bias: Array | None = None,
    *,
    count: int,
    groups: int,
    kept_groups: int,
    group_top: int,
    normalise: bool,
    biased: bool,
) -> None:
    """out = scores where they (+ bias) are among the count largest, of equal ones the first"""
    choice = scores if bias is None else scores + _trailing(bias, scores)
    if groups > 1:
        by_group = choice.reshape(*choice.shape[:-1], groups, -1)
        choice = _of_best_groups(by_group, kept_groups, group_top)
    chosen = np.argsort(-choice, -1, kind="stable")[..., :count]
    gates = np.take_along_axis(scores, chosen, -1)
    if normalise:
        gates /= gates.sum(-1, keepdims=True) + np.float32(1e-20)
    out[...] = 0
    np.put_along_axis(out, chosen, gates, -1)


def _of_best_groups(groups: Array, kept: int, top: int) -> Array:
    """Elements ``[.., groups, n]``, minus infinity outside of the ``kept`` groups whose ``top``
    largest have the largest sums, as ``[.., groups * n]``."""
    best = -np.sort(-groups, -1)[..., :top].sum(-1)
    out = np.argsort(-best, -1, kind="stable")[..., kept:]
    masked = groups.copy()
    np.put_along_axis(masked, out[..., None], -np.inf, -2)
    return masked.reshape(*groups.shape[:-2], -1)


dispatch = _kernel()(experts.dispatch)
expert_gemm = _kernel()(experts.expert_gemm)
combine = _kernel()(experts.combine)


@_kernel(updates=True)
def merge_softmax(a: Array, b: Array, count: int) -> None:
    """Weighted values, sums and maxima of count softmaxes over the elements of a and of b"""
    top = np.maximum(a[..., -count:], b[..., -count:])
    old, new = np.exp(a[..., -count:] - top), np.exp(b[..., -count:] - top)
    split = (*top.shape, -1)
    mine, theirs = (part[..., : -2 * count].reshape(split) for part in (a, b))
    mine = mine * old[..., None]
    mine += theirs * new[..., None]
    a[..., : -2 * count] = mine.reshape((*top.shape[:-1], -1))
    a[..., -2 * count : -count] *= old
    a[..., -2 * count : -count] += b[..., -2 * count : -count] * new
    a[..., -count:] = top


@_kernel()
def rms_scale(out: Array, a: Array, s: Array, gain: Array, count: int, eps: float) -> None:
    """out[.., e] = a[.., e] / sqrt(s[..] / count + eps) * gain[e]"""
    root = s / np.float32(count)
    root += np.float32(eps)
    np.sqrt(root, out=root)
    np.divide(a, _leading(root, a), out=out)
    np.multiply(out, _trailing(gain, out), out=out)


@_kernel()
def inverse_rms(out: Array, s: Array, count: int, eps: float) -> None:
    """out = 1 / sqrt(s / count + eps)"""
    root = s / np.float32(count)
    root += np.float32(eps)
    np.sqrt(root, out=root)
    np.reciprocal(root, out=out)


def rope(
    out: View, a: View, freq: View, *, position: PerCore | int, step: int, on: Cores | None = None
) -> None:
    """out[.., r, 2i:2i+2] = a[.., r, 2i:2i+2] turned by (position + step*r) * freq[i]"""
    cores = out.fabric.running(on)
    out.fabric.not_repeatable()
    if cores.count:
        _turn(out, a, on=on, turns=_turns(freq, cores, position, step, a.shape))


def _turns(
    freq: View, cores: Cores, position: PerCore | int, step: int, shape: tuple[int, ...]
) -> Array:
    """cos + i sin of the angle of each pair of an array ``[cores, *shape]``, which may be the same
    for several.

    Remembered with ``freq``, since they are equal in all layers: of single rows those of the
    latest positions, as requests of a step have their own.
    """
    start: Array | int
    rows = shape[-2]
    if isinstance(position, PerCore):
        key, start = None, freq.fabric.by_lane(position)[cores.lanes]
    else:
        key, start = (cores, position, step, shape), position
    if key is not None and freq.memory.constant and key in freq.derived:
        return freq.derived[key]
    at = np.reshape(start, (-1, 1, 1)) + step * np.arange(rows)[:, None]
    # double precision: at large positions float32 would lose the last bits of the turn
    angle = at * freq.read(cores).astype(np.float64)[:, None, :]
    turns: Array = np.exp(1j * angle).astype(np.complex64)
    if key is None:
        return turns
    if rows == 1:  # written out for each head: NumPy need not begin a loop for each then
        every = np.empty((cores.count, *shape[:-1], turns.shape[-1]), np.complex64)
        np.copyto(every, _trailing(turns, every))
        turns = every
    if rows > 1 or len(freq.derived) >= _TURNS_REMEMBERED:
        freq.derived.clear()
    freq.derived[key] = turns
    return turns


@_kernel()
def _turn(out: Array, a: Array, turns: Array) -> None:
    """Multiply pairs of lanes, taken as complex numbers."""
    turned = _pairs(a) * _trailing(turns, a)
    out[...] = turned.view(np.float32)


def _pairs(a: Array) -> Array:
    return (a if a.strides[-1] == a.itemsize else np.ascontiguousarray(a)).view(np.complex64)


# --- masks


@_kernel(updates=True)
def mask_causal(s: Array, query: Any, query_step: int, key: Any, key_step: int, limit: Any) -> None:
    """s[.., r, j] = -inf where key j lies beyond query r, or not below limit"""
    queries = np.reshape(query, (-1, 1, 1)) + query_step * np.arange(s.shape[-2])[:, None]
    keys = np.reshape(key, (-1, 1, 1)) + key_step * np.arange(s.shape[-1])
    hidden = (keys > queries) | (keys >= np.reshape(limit, (-1, 1, 1)))
    np.copyto(s, np.float32(-np.inf), where=_trailing(hidden, s))


@_kernel(updates=True)
def mask_window(
    s: Array, window: int, query: Any, query_step: int, key: Any, key_step: int, limit: Any
) -> None:
    """s[.., r, j] = -inf where key j lies ``window`` or more before the lesser of query r and
    limit - 1"""
    queries = np.reshape(query, (-1, 1, 1)) + query_step * np.arange(s.shape[-2])[:, None]
    queries = np.minimum(queries, np.reshape(limit, (-1, 1, 1)) - 1)
    keys = np.reshape(key, (-1, 1, 1)) + key_step * np.arange(s.shape[-1])
    np.copyto(s, np.float32(-np.inf), where=_trailing(queries - keys >= window, s))


@_kernel(updates=True)
def mask_slots(s: Array, state: Array) -> None:
    """s[.., j] = -inf where slot j of a ring with state (head, count) holds nothing"""
    slots, head, count = np.arange(s.shape[-1], dtype=np.int32), state[:, 0], state[:, 1]
    age = slots[:, None] - head
    age += (age < 0) * np.int32(len(slots))
    hide(s, age >= count)


# --- ring buffers: slots in order of age from a head, with a count; and moving lanes


@_kernel()
def ring_set(state: Array, count: Any) -> None:
    """state = (0, count)"""
    state[:, 0] = 0
    state[:, 1] = count


@_kernel(updates=True)
def ring_grow(state: Array) -> None:
    """count + 1"""
    state[:, 1] += 1


@_kernel(updates=True)
def ring_drop(state: Array, capacity: int) -> None:
    """The oldest slot is free again: head + 1, count - 1"""
    state[:, 0] = (state[:, 0] + 1) % capacity
    state[:, 1] -= 1


def ring_push(ring: View, new: View, state: View, *, on: Cores | None = None) -> None:
    """The slot after the newest one of ring[.., slots, :] = new[.., :]"""
    cores = ring.fabric.running(on)
    ring.fabric.not_repeatable()
    if not cores.count:
        return
    now, value = state.read(cores), new.read(cores)
    slots = (now[:, 0] + now[:, 1]) % ring.shape[-2]
    memory = ring.direct(ring.fabric.everyone)
    if memory is None:  # a window that differs between cores
        memory = ring.read(cores).copy()
        _set_slots(memory, np.arange(cores.count), slots, value, ring)
        ring.store(cores, memory)
    else:
        _set_slots(memory, cores.lanes, slots, value, ring)


def _set_slots(memory: Array, lanes: Array, slots: Array, value: Array, ring: View) -> None:
    if ring.rounds is not None:
        value = value.copy()
        ring.rounds(value)
    memory[lanes, ..., slots, :] = value


def ring_oldest(out: View, ring: View, state: View, *, on: Cores | None = None) -> None:
    """out[.., :] = the oldest slot of ring[.., slots, :]"""
    cores = ring.fabric.running(on)
    ring.fabric.not_repeatable()
    if not cores.count:
        return
    heads = state.read(cores)[:, 0]
    memory = ring.direct(ring.fabric.everyone)
    if memory is None:
        value = ring.read(cores)[np.arange(cores.count), ..., heads, :]
    else:
        value = memory[cores.lanes, ..., heads, :]
    if out.rounds is not None:
        out.rounds(value)
    out.store(cores, value)


@_kernel(updates=True)
def rotate(a: Array, by: Any) -> None:
    """a[i] = a[(i + by) mod n] over the first dim"""
    places = (np.reshape(by, (-1, 1)) + np.arange(a.shape[1])) % a.shape[1]
    a[...] = a[np.arange(len(a))[:, None], places]


@_kernel()
def select_lanes(out: Array, a: Array, shift: Any) -> None:
    """out[i] = a[i + shift] where that lane exists, else 0"""
    places = np.reshape(shift, (-1, 1)) + np.arange(out.shape[1])
    there = (places >= 0) & (places < a.shape[1])
    found = a[np.arange(len(a))[:, None], np.where(there, places, 0)]
    np.copyto(out, 0)
    np.copyto(out, found, where=there.reshape(there.shape + (1,) * (out.ndim - 2)))

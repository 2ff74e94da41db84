"""Scalar formulas of transformer blocks: activations and rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from meshc.interp.named import Array
from meshc.ir.brought_functions import BROUGHT

_ERF = np.vectorize(math.erf, otypes=[np.float64])


class Rotary(Protocol):
    """The numbers of a rotary embedding, as ``graph.rope`` and ``mesh.rope`` carry them."""

    theta: float
    rotated: int
    scaling: str
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    truncate: bool
    factors: tuple[float, ...]
    but: int
    local_theta: float
    skip: int


def silu(x: Array) -> Array:
    """``x / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-x)))


def gelu(x: Array, form: str) -> Array:
    """Gaussian error linear unit, exact (``erf``) or by the usual ``tanh`` approximation."""
    if form == "tanh":
        factor = 1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    else:
        factor = 1 + _ERF(x / math.sqrt(2))
    return np.asarray(0.5 * x * factor, x.dtype)


def quick_gelu(x: Array) -> Array:
    """GELU by a sigmoid, ``x / (1 + exp(-1.702 x))``."""
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-1.702 * x)), x.dtype)


def relu2(x: Array) -> Array:
    """Squared ReLU, ``max(x, 0)^2``."""
    return np.square(np.maximum(x, 0))


def sigmoid(x: Array) -> Array:
    """Logistic function, ``1 / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def exp(x: Array) -> Array:
    """Exponential function."""
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(x))


def tanh(x: Array) -> Array:
    """Hyperbolic tangent."""
    return np.asarray(np.tanh(x))


def clamp(x: Array, least: float, most: float) -> Array:
    """``x``, but not below ``least`` and not above ``most``."""
    return np.asarray(np.clip(x, least, most), x.dtype)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "silu": silu,
    "gelu": gelu,
    "quick_gelu": quick_gelu,
    "relu2": relu2,
    "sigmoid": sigmoid,
    "exp": exp,
    "tanh": tanh,
    "clamp": clamp,
}
"""What a function of elements means at every level: of an array and the function's options."""


def formula_of(name: str) -> Callable[..., Array]:
    """What the function of elements ``name`` means, which another package may have brought."""
    return FUNCTIONS[name] if name in FUNCTIONS else BROUGHT[name].formula


def frequencies(rotary: Rotary, extent: int, layer: int = 0) -> Array:
    """Radians per position of the ``extent // 2`` pairs in ``layer`` of the loop around, float64; 0
    for those behind the ``rotated`` lanes.

    ``llama3`` is the scaling of Llama 3.1: low frequencies are divided by ``factor``, high ones
    kept, and those between blended by how many wavelengths the original context held. ``yarn``
    blends along the pairs, between those of ``high_freq_factor`` and ``low_freq_factor`` turns.
    """
    found = np.zeros(extent // 2)
    turning = rotary.rotated or extent
    if rotary.skip and (layer + 1) % rotary.skip == 0:
        return found
    if rotary.but and (layer + 1) % rotary.but:
        found[: turning // 2] = rotary.local_theta ** (-np.arange(0, turning, 2) / turning)
        return found
    found[: turning // 2] = _scaled(rotary, turning)
    return found


def _scaled(rotary: Rotary, extent: int) -> Array:
    """The frequencies of ``extent`` lanes that turn."""
    plain: Array = np.power(rotary.theta, -2.0 * np.arange(extent // 2) / extent)
    if rotary.scaling == "none":
        return plain
    if rotary.scaling == "linear":
        return plain / rotary.factor
    if rotary.scaling == "longrope":
        return np.asarray(plain / np.array(rotary.factors))
    if rotary.scaling == "yarn":
        keep = 1 - _yarn_ramp(rotary, extent)
        return plain * (keep + (1 - keep) / rotary.factor)
    turns = rotary.original_max_position * plain / (2 * math.pi)
    low, high = rotary.low_freq_factor, rotary.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (keep + (1 - keep) / rotary.factor)


def _yarn_ramp(rotary: Rotary, extent: int) -> Array:
    """0 for pairs whose frequencies are kept, 1 for those that are divided (YaRN, section 3.2)."""
    betas = np.array([rotary.high_freq_factor, rotary.low_freq_factor])
    # The pair of a frequency f is -log(f) / log(theta) * extent / 2.
    wanted = 2 * math.pi * betas / rotary.original_max_position
    first, last = -np.log(wanted) / math.log(rotary.theta) * (extent / 2)
    if rotary.truncate:
        first, last = np.floor(first), np.ceil(last)
    start, stop = max(first, 0.0), min(last, extent - 1.0)
    if start == stop:
        stop += 0.001
    return np.asarray(np.clip((np.arange(extent // 2) - start) / (stop - start), 0.0, 1.0))


def turned(first: Array, second: Array, angle: Array) -> tuple[Array, Array]:
    """The pairs ``(first, second)`` rotated by ``angle`` (broadcast), in the dtype of ``first``."""
    cos, sin = np.cos(angle).astype(first.dtype), np.sin(angle).astype(first.dtype)
    return first * cos - second * sin, first * sin + second * cos

"""RoPE settings of a GGUF file: metadata, and the table of factors of Llama 3.1 models."""

from __future__ import annotations

import math

import numpy as np

from meshc.frontend.checkpoints.config import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
)
from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.gguf.header import GgufHeader
from meshc.frontend.checkpoints.hf.rope import DEFAULT_THETA, THETA_LIMIT
from meshc.frontend.checkpoints.tensor_source import read_rows

ROPE_FACTORS_NAME = "rope_freqs.weight"

_F32 = 0
_FACTOR_LIMIT = 1e6
# The file has no key for these; every published Llama 3 model uses the same two.
_LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR = 1.0, 4.0
_ORIGINAL_LENGTHS = tuple(1 << bits for bits in range(9, 20))
_TOLERANCE = 1e-4


def read_gguf_rope(
    fields: Fields, prefix: str, header: GgufHeader, head_dim: int
) -> tuple[float, RopeScaling | None]:
    """Base and scaling under ``prefix``; faults go to the diagnostics of ``fields``."""
    theta = fields.number(f"{prefix}rope.freq_base", 0.0, THETA_LIMIT, DEFAULT_THETA)
    scaling = _linear_scaling(fields, prefix)
    if ROPE_FACTORS_NAME not in header.tensors:
        return theta, scaling
    found = _factor_scaling(header, theta, head_dim)
    if found is None or scaling is not None:
        fields.reject(
            "config-unsupported",
            ROPE_FACTORS_NAME,
            f"the RoPE factors in tensor '{ROPE_FACTORS_NAME}' are not those of Llama 3 scaling",
            "use the Hugging Face form of the checkpoint, whose config.json names the scaling",
        )
    return theta, found


def _linear_scaling(fields: Fields, prefix: str) -> LinearScaling | None:
    kind = fields.string(f"{prefix}rope.scaling.type", ("none", "linear"), "none")
    old = fields.number(f"{prefix}rope.scale_linear", 0.0, _FACTOR_LIMIT, 1.0)
    new = fields.number(f"{prefix}rope.scaling.factor", 0.0, _FACTOR_LIMIT, 1.0)
    factor = new if kind == "linear" else old
    return None if factor == 1.0 else LinearScaling(factor)


def _factor_scaling(header: GgufHeader, theta: float, head_dim: int) -> Llama3Scaling | None:
    tensor = header.tensors[ROPE_FACTORS_NAME]
    if tensor.type_id != _F32 or tensor.shape != (head_dim // 2,):
        return None
    place = header.data_start + tensor.offset
    stored = read_rows(header.path, place, tensor.shape, 2 * head_dim, lambda r: r.view("<f4"))
    return None if stored is None else llama3_from_factors(stored, theta, head_dim)


def llama3_from_factors(factors: np.ndarray, theta: float, head_dim: int) -> Llama3Scaling | None:
    """The scaling whose frequency divisors are ``factors`` [head_dim / 2], when there is one.

    The lowest frequency is divided by the full factor, so the largest entry is the factor; the
    original context length is searched among powers of two.
    """
    factor = float(factors.max())
    if not 1.0 < factor <= _FACTOR_LIMIT:
        return None
    for original in _ORIGINAL_LENGTHS:
        scaling = Llama3Scaling(factor, _LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR, original)
        wanted = llama3_factors(scaling, theta, head_dim)
        if np.allclose(factors, wanted, rtol=_TOLERANCE, atol=0.0):
            return scaling
    return None


def llama3_factors(scaling: Llama3Scaling, theta: float, head_dim: int) -> np.ndarray:
    """What each of the head_dim / 2 RoPE frequencies is divided by, as float64."""
    frequency = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_max_position * frequency / (2.0 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - kept) / scaling.factor + kept))

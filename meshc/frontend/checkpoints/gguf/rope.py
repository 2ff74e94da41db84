"""RoPE settings of a GGUF file: metadata, and the factors of Llama 3.1 and of LongRoPE."""

from __future__ import annotations

import math

import numpy as np

from meshc.frontend.checkpoints.fields import Fields
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.gguf.found_parameters import shortest
from meshc.frontend.checkpoints.hf.rope import DEFAULT_THETA, THETA_LIMIT
from meshc.frontend.checkpoints.model_config import (
    SIZE_LIMITS,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    yarn_size,
)
from meshc.frontend.checkpoints.tensor_source import read_rows
from meshc.frontend.families import GgufTables

ROPE_FACTORS_NAME = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"

_TYPE, _FACTOR = "rope.scaling.type", "rope.scaling.factor"
_ORIGINAL = "rope.scaling.original_context_length"
_SIZE = "rope.scaling.attn_factor"
_FAST, _SLOW = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"
_OLD_FACTOR = "rope.scale_linear"
ROPE_KEYS = (
    "rope.dimension_count",
    "rope.scaling.finetuned",
    _OLD_FACTOR,
    _TYPE,
    _FACTOR,
    _ORIGINAL,
    _SIZE,
    _FAST,
    _SLOW,
)

_F32 = 0
_FACTOR_LIMIT = 1e6
# The file has no key for these; every published Llama 3 model uses the same two.
_LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR = 1.0, 4.0
_ORIGINAL_LENGTHS = tuple(1 << bits for bits in range(9, 20))
_TOLERANCE = 1e-4
_HELP = "use the Hugging Face form of the checkpoint, whose config.json names the scaling"


def read_gguf_rope(
    fields: Fields, header: GgufHeader, gguf: GgufTables, lanes: int
) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the ``lanes`` that turn; faults go to the diagnostics of ``fields``."""
    types = gguf.tables.rope_types
    theta, kind = DEFAULT_THETA, "none"
    if types:
        theta = fields.number(gguf.tables.named.theta, 0.0, THETA_LIMIT, DEFAULT_THETA)
        kind = _read_type(fields, header, gguf)
    scaling: RopeScaling | None = None
    if kind == "longrope":
        scaling = _long(fields, header, gguf.prefix, lanes)
    elif kind == "yarn":
        scaling = _yarn(fields, gguf)
    elif kind == "linear":
        scaling = _linear(fields, gguf.prefix)
    _refuse_factors(fields, header, (_SHORT, _LONG), kind == "longrope")
    if ROPE_FACTORS_NAME not in header.tensors:
        return theta, scaling
    found = _factor_scaling(header, theta, lanes) if "llama3" in types else None
    if found is None or scaling is not None:
        _reject_factors(fields, ROPE_FACTORS_NAME, "are not those of Llama 3 scaling")
    return theta, found


def _read_type(fields: Fields, header: GgufHeader, gguf: GgufTables) -> str:
    """How RoPE is scaled. A file that names no type has LongRoPE if it has factors of that, else
    positions are divided by the factor that it gives."""
    types = gguf.tables.rope_types
    known = [kind for kind in ("linear", "yarn", "longrope") if kind in types]
    usual = "linear"
    if "longrope" in types and _LONG in header.tensors:
        usual = "longrope"
    kind = fields.string(gguf.prefix + _TYPE, ("none", *known), usual)
    if kind != "longrope" and kind != "none":
        _want_one(fields, gguf.prefix + _SIZE)
    if kind == "linear" and kind not in types:
        _want_one(fields, gguf.prefix + _FACTOR)
        _want_one(fields, gguf.prefix + _OLD_FACTOR)
    return kind


def _want_one(fields: Fields, key: str) -> None:
    """Refuse a factor at ``key`` that is not 1."""
    if fields.number(key, 0.0, _FACTOR_LIMIT, 1.0) != 1.0:
        message = f"'{key}' changes how positions are turned, which is not supported here"
        fields.reject("config-unsupported", key, message, _HELP)


def _linear(fields: Fields, prefix: str) -> LinearScaling | None:
    """Positions are divided by the factor at the new key or, where that is absent, the old one."""
    old = fields.number(prefix + _OLD_FACTOR, 0.0, _FACTOR_LIMIT, 1.0)
    factor = shortest(fields.number(prefix + _FACTOR, 0.0, _FACTOR_LIMIT, old))
    return None if factor == 1.0 else LinearScaling(factor)


def _yarn(fields: Fields, gguf: GgufTables) -> YarnScaling:
    """YaRN. Files say neither by how much scores are multiplied, which is what transformers takes
    where a config says nothing, nor whether pairs are rounded."""
    prefix = gguf.prefix
    fast = shortest(fields.number(prefix + _FAST, 0.0, _FACTOR_LIMIT, 32.0))
    slow = shortest(fields.number(prefix + _SLOW, 0.0, _FACTOR_LIMIT, 1.0))
    if fast <= slow and prefix + _FAST not in fields.bad:
        fields.reject_value(prefix + _FAST, f"a number above {slow:g} is wanted")
    factor = shortest(fields.number(prefix + _FACTOR, 0.0, _FACTOR_LIMIT))
    original = fields.integer(prefix + _ORIGINAL, 1, SIZE_LIMITS["max_positions"])
    scale = yarn_size(factor, 1.0) ** 2
    return YarnScaling(factor, fast, slow, original, scale, gguf.yarn_rounds)


def _long(fields: Fields, header: GgufHeader, prefix: str, lanes: int) -> LongScaling | None:
    """LongRoPE, of which the file holds the factors as two tensors."""
    size = fields.number(prefix + _SIZE, 0.0, _FACTOR_LIMIT)
    original = fields.integer(prefix + _ORIGINAL, 1, SIZE_LIMITS["max_positions"])
    short, long = (_read_factors(header, name, lanes) for name in (_SHORT, _LONG))
    if short is None or long is None:
        name = _SHORT if short is None else _LONG
        _reject_factors(fields, name, f"are not {lanes // 2} positive numbers in F32")
        return None
    shown = [tuple(shortest(float(factor)) for factor in factors) for factors in (short, long)]
    return LongScaling(shown[0], shown[1], original, _squared(fields, prefix, size, original))


def _squared(fields: Fields, prefix: str, size: float, original: int) -> float:
    """What scores are multiplied by, the square of ``size``; where that is what LongRoPE takes for
    the model's context, it is computed as from a config, beyond the precision of the file."""
    positions = fields.values.get(f"{prefix}context_length")
    if isinstance(positions, int) and positions > original > 1:
        usual = math.sqrt(1.0 + math.log(positions / original) / math.log(original))
        if np.float32(usual) == np.float32(size):
            return usual * usual
    return shortest(size) ** 2


def _refuse_factors(
    fields: Fields, header: GgufHeader, names: tuple[str, ...], are_read: bool
) -> None:
    for name in names:
        if name in header.tensors and not are_read:
            _reject_factors(fields, name, "are not supported for this model")


def _reject_factors(fields: Fields, name: str, what: str) -> None:
    fields.reject("config-unsupported", name, f"the RoPE factors in tensor '{name}' {what}", _HELP)


def _read_factors(header: GgufHeader, name: str, lanes: int) -> np.ndarray | None:
    """The tensor ``name``, float32 [lanes / 2]; None where it is no such tensor."""
    tensor = header.tensors.get(name)
    if tensor is None or tensor.type_id != _F32 or tensor.shape != (lanes // 2,):
        return None
    found = read_rows(tensor.file, tensor.place, tensor.shape, 2 * lanes, lambda r: r.view("<f4"))
    good = found is not None and bool(((found > 0) & (found <= _FACTOR_LIMIT)).all())
    return found if good else None


def _factor_scaling(header: GgufHeader, theta: float, lanes: int) -> Llama3Scaling | None:
    stored = _read_factors(header, ROPE_FACTORS_NAME, lanes)
    return None if stored is None else llama3_from_factors(stored, theta, lanes)


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

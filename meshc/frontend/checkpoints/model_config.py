"""The numbers that define a decoder-only transformer of a family that meshc knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Parameter = int | float | bool | str
"""What a parameter of a model may be."""
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]


@dataclass(frozen=True)
class LinearScaling:
    """RoPE positions divided by ``factor`` (position interpolation)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """RoPE of Llama 3.1: long wavelengths are stretched by ``factor``, short ones are kept.

    A frequency with wavelength w is kept when w < original_max_position / high_freq_factor,
    divided by ``factor`` when w > original_max_position / low_freq_factor, and blended between.
    Source: ``_compute_llama3_parameters`` in the RoPE utilities of Hugging Face transformers.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class YarnScaling:
    """RoPE of YaRN: as for Llama 3.1, but blended along the pairs of lanes.

    A frequency that turns ``beta_fast`` times or more in ``original_max_position`` positions is
    kept, one that turns ``beta_slow`` times or less is divided by ``factor``. Scores are multiplied
    by ``attention_scale`` besides the root of the lanes. Source: ``_compute_yarn_parameters`` in
    the RoPE utilities of Hugging Face transformers. The pairs between which it blends are rounded
    outwards to whole ones if ``truncate``.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int
    attention_scale: float
    truncate: bool = True


@dataclass(frozen=True)
class DynamicScaling:
    """RoPE whose base grows with the sequence once that is longer than ``original_max_position``
    tokens (dynamic NTK); up to there it is plain. Source: ``_compute_dynamic_ntk_parameters`` in
    the RoPE utilities of Hugging Face transformers."""

    factor: float
    original_max_position: int


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding and others, 2024): the frequency of each pair is divided by a factor of its
    own, one of ``long`` in sequences of more than ``original_max_position`` tokens and of ``short``
    in all others. Scores are multiplied by ``attention_scale``. Source:
    ``_compute_longrope_parameters`` in the RoPE utilities of Hugging Face transformers."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position: int
    attention_scale: float


def yarn_size(factor: float, mscale: float) -> float:
    """What YaRN multiplies queries and keys by: ``0.1 mscale ln(factor) + 1``, not below 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongScaling


@dataclass(frozen=True)
class ModelConfig:
    """Everything that defines the maths of one model, whatever file it came from.

    ``family`` is one of `family_names`: what is computed is in its ``model.mesh``. Sizes are in
    elements. ``head_dim``, all lanes of a query, need not be ``hidden / heads``. ``attention_bias``
    is the bias of the q, k and v projections, ``o_bias`` that of the output projection,
    ``mlp_bias`` that of gate, up and down. ``dtype`` is how the checkpoint stores most weights;
    None when the file does not say. ``own`` are parameters that only this family has, by the names
    of its ``model.mesh``.
    """

    name: str
    family: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    layers: int
    eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    activation: Activation
    attention_bias: bool
    o_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    max_positions: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    dtype: str | None
    own: Mapping[str, Parameter] = field(default_factory=dict)


# Largest value taken for each size: far above any published model, far below what would
# exhaust memory in the compiler itself.
SIZE_LIMITS: dict[str, int] = {
    "hidden": 1 << 18,
    "heads": 1 << 12,
    "kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "ffn": 1 << 20,
    "vocab": 1 << 22,
    "layers": 1 << 10,
    "max_positions": 1 << 28,
}


@dataclass(frozen=True)
class Conflict:
    """Fields of one model that contradict each other; ``fields`` names them, the first to blame."""

    fields: tuple[str, ...]
    message: str


def find_conflicts(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    vocab: int,
    ids: tuple[int, ...],
    rotary: bool = True,
) -> list[Conflict]:
    """What is wrong between sizes that are each in range; ``head_dim`` None means hidden/heads.
    Heads of models with ``rotary`` positions hold pairs."""
    conflicts = []
    if heads % kv_heads:
        message = f"{heads} attention heads are not a multiple of {kv_heads} key-value heads"
        conflicts.append(Conflict(("kv_heads", "heads"), message))
    if head_dim is None and hidden % heads:
        message = (
            f"hidden size {hidden} is not a multiple of {heads} heads and head_dim is not given"
        )
        conflicts.append(Conflict(("heads", "hidden"), message))
    elif rotary and (head_dim or hidden // heads) % 2:
        odd = head_dim or hidden // heads
        message = f"head_dim {odd} is odd: RoPE rotates pairs of elements"
        conflicts.append(Conflict(("head_dim" if head_dim else "heads",), message))
    if any(token >= vocab for token in ids):
        message = f"token ids {list(ids)} do not all lie below the vocabulary size {vocab}"
        conflicts.append(Conflict(("vocab",), message))
    return conflicts

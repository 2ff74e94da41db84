"""Angles of rotary position embeddings."""

from __future__ import annotations

import math

from meshc.ir.module import Module
from meshc.ir.ops import graph


def rope_frequencies(op: graph.Rope, lanes: int, between: bool = False) -> tuple[float, ...]:
    """Angle per position of each pair of ``lanes``, after scaling (Llama 3.1's rule for
    ``llama3``); 0 for pairs that do not turn. Where layers differ, of every ``period``-th one, or
    of those ``between``."""
    turning = op.lanes(lanes)
    if op.skip and not between:
        found = (0.0,) * (turning // 2)
    elif op.but and between:
        found = _plain(op.local_theta, turning)
    else:
        found = _of_turning(op, turning)
    return found + (0.0,) * ((lanes - turning) // 2)


def _plain(theta: float, lanes: int) -> tuple[float, ...]:
    return tuple(theta ** (-2.0 * i / lanes) for i in range(lanes // 2))


def _of_turning(op: graph.Rope, lanes: int) -> tuple[float, ...]:
    """The angles of the pairs that turn, of which there are ``lanes`` lanes."""
    plain = _plain(op.theta, lanes)
    if op.scaling == "linear":
        return tuple(f / op.factor for f in plain)
    if op.scaling == "llama3":
        return tuple(_llama3(op, f) for f in plain)
    if op.scaling == "yarn":
        first, last = _ramp(op, lanes)
        return tuple(_yarn(op, f, (i - first) / (last - first)) for i, f in enumerate(plain))
    if op.scaling == "longrope":
        return tuple(f / factor for f, factor in zip(plain, op.factors, strict=True))
    return plain


def least_tokens(module: Module) -> int:
    """How many tokens a sequence has at least for which ``module`` is right: LongRoPE has other
    frequencies for sequences beyond the original context, which a module with room for these has,
    than for shorter ones."""
    found = [
        op.original_max_position
        for op in module.walk()
        if isinstance(op, graph.Rope) and op.scaling == "longrope"
    ]
    return max((1 + n for n in found if n < module.capacity), default=1)


def _ramp(op: graph.Rope, lanes: int) -> tuple[float, float]:
    """The pairs between which YaRN (section 3.2) passes from kept to divided frequencies: the
    original context held the fast beta of turns of the first, the slow one of the last."""
    most, last = 2.0 * math.log(op.theta), float(lanes - 1)

    def pair(turns: float) -> float:
        return lanes * math.log(op.original_max_position / (2.0 * math.pi * turns)) / most

    low, high = pair(op.high_freq_factor), pair(op.low_freq_factor)
    if op.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, last)
    return low, high + 0.001 if low == high else high


def _yarn(op: graph.Rope, frequency: float, place: float) -> float:
    divided = min(max(place, 0.0), 1.0)
    return frequency * (1.0 - divided) + frequency / op.factor * divided


def _llama3(op: graph.Rope, frequency: float) -> float:
    wavelength = 2.0 * math.pi / frequency
    if wavelength < op.original_max_position / op.high_freq_factor:
        return frequency
    if wavelength > op.original_max_position / op.low_freq_factor:
        return frequency / op.factor
    blend = (op.original_max_position / wavelength - op.low_freq_factor) / (
        op.high_freq_factor - op.low_freq_factor
    )
    return (1.0 - blend) * frequency / op.factor + blend * frequency

"""Angles of rotary position embeddings."""

from __future__ import annotations

import math

from meshc.ir.ops import graph


def rope_frequencies(op: graph.Rope, lanes: int) -> tuple[float, ...]:
    """Angle per position of each pair, after scaling (Llama 3.1's rule for ``llama3``)."""
    plain = [op.theta ** (-2.0 * i / lanes) for i in range(lanes // 2)]
    if op.scaling == "linear":
        return tuple(f / op.factor for f in plain)
    if op.scaling == "llama3":
        return tuple(_llama3(op, f) for f in plain)
    return tuple(plain)


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

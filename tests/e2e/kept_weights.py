"""Weights that stay quantised: codes and scales that are drawn, and the numbers they stand for, by
the words of docs/weights.md, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

ZERO = {"q4_0": 8, "q8_0": 128}
MOST = {"q8_0": 255}


def kept_weights(
    program: object, weights: Mapping[str, np.ndarray], seed: int, table: str = "embedding"
) -> dict[str, np.ndarray]:
    """``weights`` by name, and beside them what ``program`` has of those that stay quantised. These
    are changed in place to the numbers that codes stand for. Rows of ``table`` are looked up."""
    rng, found = np.random.default_rng(seed), dict(weights)
    shapes = {
        name: shape
        for weight in program.weights.values()
        if weight.codes
        for name, shape in zip(weight.sources, weight.source_shapes, strict=True)
    }
    layers = {name: weight.layers for weight in program.weights.values() for name in weight.sources}
    for name in [name for name in shapes if name.endswith(".codes")]:
        weight, form, _ = name.rsplit(".", 2)
        shape, fewer = shapes[name], shapes[f"{weight}.{form}.scales"]
        lead = (layers[name],) if layers[name] else ()
        assert lead + shape in (weights[weight].shape, lead + weights[weight].shape)
        (axis,) = (at for at, (n, m) in enumerate(zip(shape, fewer, strict=True)) if n != m)
        group = shape[axis] // fewer[axis]
        whole, groups = weights[weight].shape, [*weights[weight].shape]
        axis += len(whole) - len(shape)
        groups[axis] //= group
        size = weights[weight].std()
        codes = drawn_codes(rng, form, whole)
        scales = rng.uniform(0.5, 1.5, groups) * rng.choice([-1, 1], groups)
        scales = (scales * size / codes.std()).astype(np.float16).astype(np.float64)
        if weight == table:  # its numbers are looked up in the model's type, which has them so
            scales = np.sign(scales) * 2.0 ** np.round(np.log2(size / codes.std()))
        numbers = (codes - ZERO.get(form, 0)) * np.repeat(scales, group, axis)
        if f"{weight}.{form}.least" in shapes:
            least = -rng.integers(0, 16, groups) * scales
            if form == "q4_1" and weight != table:
                least = (rng.standard_normal(groups) * size).astype(np.float16).astype(np.float64)
            found[f"{weight}.{form}.least"] = least
            numbers = numbers + np.repeat(least, group, axis)
        found[name], found[f"{weight}.{form}.scales"] = codes, scales
        weights[weight][...] = numbers
    return found


def drawn_codes(rng: np.random.Generator, form: str, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of a format: whole numbers, or the numbers of e4m3 that are finite."""
    if not form.startswith("e4m3"):
        return rng.integers(0, MOST.get(form, 15) + 1, shape).astype(np.float64)
    exponent, fraction = rng.integers(0, 16, shape), rng.integers(0, 8, shape)
    fraction = np.where((exponent == 15) & (fraction == 7), 6, fraction)
    sign = rng.choice([-1.0, 1.0], shape)
    normal = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return sign * np.where(exponent == 0, fraction / 8 * 2.0**-6, normal)

"""Weights that stay quantised: codes and scales that are drawn, and the numbers they stand for, by
the words of docs/weights.md, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

ZERO = {"q4_0": 8, "q5_0": 16, "q8_0": 128, "q3_k": 4, "q6_k": 32}
MOST = {"q8_0": 255, "q5_0": 31, "q5_1": 31, "q2_k": 3, "q3_k": 7, "q5_k": 31, "q6_k": 63}
SCALE_CODES = {
    "q2_k": (0, 15),
    "q3_k": (32, 63),
    "q4_k": (0, 63),
    "q5_k": (0, 63),
    "q6_k": (128, 255),
}
"""Of which code of a scale a format takes for 0, and the largest one."""


def kept_weights(
    program: object, weights: Mapping[str, np.ndarray], seed: int, table: str = "embedding"
) -> dict[str, np.ndarray]:
    """``weights`` by name, and beside them what ``program`` has of those that stay quantised. These
    are changed in place to the numbers that codes stand for. Rows of ``table`` are looked up."""
    shapes = shapes_of(program)
    layers = {name: weight.layers for weight in program.weights.values() for name in weight.sources}
    for name in (name for name in shapes if name.endswith(".codes")):
        whole = weights[name.rsplit(".", 2)[0]].shape
        lead = (layers[name],) if layers[name] else ()
        assert lead + shapes[name] in (whole, lead + whole)
    return kept_of(shapes, weights, seed, table)


def shapes_of(program: object) -> dict[str, tuple[int, ...]]:
    """What ``program``, for GPUs, has of weights that stay quantised: shapes by name, those of
    layers without their number."""
    shapes = {
        name: shape
        for weight in program.weights.values()
        if weight.codes
        for name, shape in zip(weight.sources, weight.source_shapes, strict=True)
    }
    if program.ranks is not None:
        shapes = {n: _of_all(shape, program.ranks, n) for n, shape in shapes.items()}
    return shapes


def kept_of(
    shapes: Mapping[str, tuple[int, ...]],
    weights: Mapping[str, np.ndarray],
    seed: int,
    table: str = "embedding",
) -> dict[str, np.ndarray]:
    """As :func:`kept_weights`, of a program that has these ``shapes``."""
    rng, found = np.random.default_rng(seed), dict(weights)
    for name in [name for name in shapes if name.endswith(".codes")]:
        weight, form, _ = name.rsplit(".", 2)
        whole = weights[weight].shape
        behind = whole[: len(whole) - len(shapes[name])]
        fewer = {
            part: (*behind, *shapes[f"{weight}.{form}.{part}"])
            for part in ("scales", "least", "units", "least_units")
            if f"{weight}.{form}.{part}" in shapes
        }
        size = weights[weight].std()
        codes = drawn_codes(rng, form, whole)
        if form in SCALE_CODES:
            parts, scales, least = _of_coded_scales(
                rng, form, fewer, size / codes.std(), weight == table
            )
            found |= {f"{weight}.{form}.{part}": values for part, values in parts.items()}
            found[name] = codes
            numbers = (codes - ZERO.get(form, 0)) * _spread(scales, whole)
            weights[weight][...] = numbers + _spread(least, whole)
            continue
        groups = fewer["scales"]
        scales = rng.uniform(0.5, 1.5, groups) * rng.choice([-1, 1], groups)
        scales = (scales * size / codes.std()).astype(np.float16).astype(np.float64)
        if weight == table or form == "mxfp4":  # numbers that the model's type has, or powers of 2
            scales = np.sign(scales) * 2.0 ** np.round(np.log2(size / codes.std()))
        numbers = (codes - ZERO.get(form, 0)) * _spread(scales, whole)
        if "least" in fewer:
            least = -rng.integers(0, 16, groups) * scales
            if form in ("q4_1", "q5_1") and weight != table:
                least = (rng.standard_normal(groups) * size).astype(np.float16).astype(np.float64)
            found[f"{weight}.{form}.least"] = least
            numbers = numbers + _spread(least, whole)
        found[name], found[f"{weight}.{form}.scales"] = codes, scales
        weights[weight][...] = numbers
    return found


def _of_all(shape: tuple[int, ...], share: object, name: str) -> tuple[int, ...]:
    """The shape of what all ranks have together of a tensor of which one has so much."""
    found = list(shape)
    for dealt in share.dealt.get(name, ()):
        found[dealt.axis] = dealt.whole
    return tuple(found)


def _spread(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What there is once for a group, for each of its elements, which lie side by side in one dim
    of ``shape`` or in two neighbouring ones."""
    pairs = enumerate(zip(values.shape, shape, strict=True))
    places = [at for at, (few, many) in pairs if few != many]
    first, last = places[0], places[-1] + 1
    flat = values.reshape(*values.shape[:first], -1, *values.shape[last:])
    count = int(np.prod(shape[first:last])) // flat.shape[first]
    return np.repeat(flat, count, first).reshape(shape)


def _of_coded_scales(
    rng: np.random.Generator, form: str, shapes: Mapping[str, tuple[int, ...]], size: float,
    exact: bool,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:  # fmt: skip
    """Codes of scales and of least numbers and units of both, and the scales and least numbers that
    they stand for; scales that are ``exact`` are powers of two, and then there are no least
    numbers."""
    zero, most = SCALE_CODES[form]
    groups, units = shapes["scales"], shapes["units"]
    scales = rng.integers(2 * zero - most if zero else 1, most + 1, groups).astype(np.float64)
    if exact:
        scales = np.full(groups, zero + 1.0)
    unit = size * rng.uniform(0.5, 1.5, units) * rng.choice([-1, 1], units)
    unit /= np.sqrt(np.mean((scales - zero) ** 2))
    unit = np.sign(unit) * 2.0 ** np.round(np.log2(size)) if exact else unit
    unit = unit.astype(np.float16).astype(np.float64)
    found = {"scales": scales, "units": unit}
    numbers, least = (scales - zero) * _spread(unit, groups), np.zeros(groups)
    if "least" in shapes:
        found["least"] = rng.integers(0, most + 1, groups) * (0.0 if exact else 1.0)
        found["least_units"] = (-unit * rng.uniform(0.2, 0.6, units)).astype(np.float16) * 1.0
        least = found["least"] * _spread(found["least_units"], groups).astype(np.float64)
    return found, numbers, least


def drawn_codes(rng: np.random.Generator, form: str, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of a format: whole numbers, or the numbers of e2m1 or of e4m3 that are finite."""
    if form == "mxfp4":
        table = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        return rng.choice([-1.0, 1.0], shape) * rng.choice(table, shape)
    if not form.startswith("e4m3"):
        return rng.integers(0, MOST.get(form, 15) + 1, shape).astype(np.float64)
    exponent, fraction = rng.integers(0, 16, shape), rng.integers(0, 8, shape)
    fraction = np.where((exponent == 15) & (fraction == 7), 6, fraction)
    sign = rng.choice([-1.0, 1.0], shape)
    normal = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return sign * np.where(exponent == 0, fraction / 8 * 2.0**-6, normal)

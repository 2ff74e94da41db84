"""What programs compute of positions alone, recognised by its numbers: masks, angles of RoPE."""

from __future__ import annotations

from typing import Any

import numpy as np

_HIDDEN = -1e4
"""Scores to which so much is added are hidden."""


def window_of(mask: Any, rows: int) -> int | None:
    """How many tokens, itself among them, the mask [.., rows, rows] lets each row see, 0 for all
    before it; None where it is another mask. True or 0 shows, False or a large negative number
    hides."""
    numbers = np.asarray(mask.detach().cpu().float().numpy(), np.float64)
    flat = numbers.reshape(-1, *numbers.shape[-2:])
    if flat.shape[1:] != (rows, rows) or not (flat == flat[:1]).all():
        return None
    if mask.dtype.is_floating_point:
        if not ((flat[0] == 0) | (flat[0] <= _HIDDEN)).all():
            return None
        shown = flat[0] == 0
    else:
        shown = flat[0] != 0
    distance = np.arange(rows)[:, None] - np.arange(rows)
    width = int(shown[-1].sum())
    if not (shown == ((distance >= 0) & (distance < width))).all():
        return None
    return 0 if width == rows else width


def rope_of(cosines: Any, sines: Any, rows: int, lanes: int) -> tuple[str, float] | None:
    """The options of ``rope`` whose tables [.., rows, lanes] these are, for lanes that are turned
    in halves, and the factor by which the tables are larger; None where no options say it."""
    cos, sin = (_table(one, rows, lanes) for one in (cosines, sines))
    if cos is None or sin is None or rows < 2 or cos[0, 0] <= 0:
        return None
    factor = float(cos[0, 0])
    cos, sin = cos / factor, sin / factor
    half = lanes // 2
    rates = np.arctan2(sin[1, :half], cos[1, :half])
    if (rates <= 0).any() or (rates > 1 + 1e-6).any():
        return None
    # Products of a position and a rate are rounded to 24 bits in these programs.
    angles = np.arange(rows)[:, None] * np.concatenate([rates, rates])
    bound = 2e-6 + 4e-7 * np.arange(rows)[:, None]
    if (np.abs(cos - np.cos(angles)) > bound).any() or (np.abs(sin - np.sin(angles)) > bound).any():
        return None
    return _options(rates, lanes), factor


def _table(table: Any, rows: int, lanes: int) -> np.ndarray | None:
    found = np.asarray(table.detach().cpu().float().numpy(), np.float64)
    flat = found.reshape(-1, *found.shape[-2:]) if found.ndim >= 2 else found
    same = flat.ndim == 3 and flat.shape[1:] == (rows, lanes) and bool((flat == flat[:1]).all())
    return flat[0] if same else None


def _options(rates: np.ndarray, lanes: int) -> str:
    """Rates of the pairs as those of a base, perhaps divided by one factor; else each by its own,
    which the language has for LongRoPE."""
    exponents = -2 * np.arange(len(rates)) / lanes
    base, factor = 10000.0, 1.0
    if len(rates) > 1:
        slope = float(np.log(rates[-1] / rates[0]) / exponents[-1])
        base, factor = _plain(float(np.exp(slope))), _plain(1 / float(rates[0]))
    if np.allclose(rates * factor, base**exponents, rtol=3e-6, atol=0):
        scaling = "" if factor == 1 else f", scaling = linear, factor = {factor!r}"
        return f"{base!r}{scaling}"
    factors = " ".join(f"{float(one):.9g}" for one in base**exponents / rates)
    return (
        f"{base!r}, scaling = longrope, original_max_position = {1 << 24}, "
        f'short_factors = "{factors}", long_factors = "{factors}"'
    )


def _plain(number: float) -> float:
    """The shortest number that is the same up to rounding in f32."""
    return next(
        (
            short
            for digits in range(1, 8)
            if abs((short := float(f"{number:.{digits}g}")) / number - 1) < 2e-6
        ),
        number,
    )

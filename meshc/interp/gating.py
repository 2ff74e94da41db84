"""Gates of a mixture of experts: which scores are chosen, by counting those that go before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshc.interp.named import Array
from meshc.interp.nearness import chosen

_TINY = 1e-20
"""Added to the sum of gates that are divided by it."""


def top_k(scores: Array, bias: Array | None, options: Mapping[str, Any]) -> Array:
    """Gates ``[.., n]`` of ``scores [.., n]``, by the ``options`` of ``graph.top_k``. For the
    choice ``bias`` is added if there is one, repeated over dims that are missing or of extent 1."""
    choice, groups = scores if bias is None else scores + bias, options["groups"]
    if groups > 1:
        by_group = choice.reshape(*choice.shape[:-1], groups, choice.shape[-1] // groups)
        best = np.sort(by_group, -1)[..., -options["group_top"] :].sum(-1)
        chosen(best, options["kept_groups"])
        kept = (places(best) < options["kept_groups"])[..., None]
        choice = np.where(kept, by_group, -np.inf).reshape(choice.shape)
    chosen(choice, options["count"])
    gates = np.where(places(choice) < options["count"], scores, np.zeros_like(scores))
    return gates / (gates.sum(-1, keepdims=True) + _TINY) if options["normalise"] else gates


def places(values: Array) -> Array:
    """How many of the last dim go before each element: larger ones, and equal ones further left."""
    other, own = values[..., None, :], values[..., :, None]
    index = np.arange(values.shape[-1])
    before = (other > own) | ((other == own) & (index[None, :] < index[:, None]))
    return np.asarray(before.sum(-1))

"""Formats in which a server keeps the matrices of layers: bits of a weight with its scales.

Products compute with values of 16 bits that weights become on the way, so a format changes what is
loaded and held, and no arithmetic. Tables of the vocabulary stay as they are, as in published
checkpoints of these formats.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

from meshc.cost.served_models import ServedModel
from meshc.support.diagnostics import fail

BITS: Mapping[str, float] = {
    "bf16": 16,
    "fp8": 8 + 32 / 128**2,
    "int4": 4 + (16 + 4) / 128,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
}
"""A scale of 32 bits for 128 x 128 values (fp8), one of 16 and a zero point of 4 for 128 values
(int4, as of AWQ and GPTQ), one of 8 for 32 (mxfp4, OCP) or for 16 values (nvfp4)."""


def stored(model: ServedModel, weights: str, experts: str) -> ServedModel:
    """``model`` with the matrices of its layers in the format ``weights`` and those of its experts
    in ``experts``; empty for what they have, and for experts the format of the others.

    Errors: ``bad-argument`` for an unknown format, and for experts that a model does not have.
    """
    if experts and not model.experts:
        fail("bad-argument", f"--expert-weights is {experts}, but '{model.name}' has no experts")
    found = replace(model, weight_bytes=_bytes("--weights", weights, model.weight_bytes))
    experts_bytes = _bytes("--expert-weights", experts or weights, model.expert_weight_bytes)
    return replace(found, expert_weight_bytes=experts_bytes)


def _bytes(flag: str, name: str, usual: float) -> float:
    if not name:
        return usual
    if name not in BITS:
        close = difflib.get_close_matches(name.lower(), BITS, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        fail("bad-argument", f"{flag} cannot be '{name}'", help=f"{guess}it is {', '.join(BITS)}")
    return BITS[name] / 8

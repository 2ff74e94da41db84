"""Random models for clusters of thread blocks, and how they are compiled.

Kernels become machine code for each new shape, which takes far longer than running them. So cases
with the same ``common`` choices have feed-forward layers, look-ups and logits of one shape, whose
machine code is kept; attention, options and what is run differ in every case.
"""

from __future__ import annotations

from random import Random
from typing import Any

from bounded import Arithmetic
from building import Drawing
from draw_models import Model
from drawn_programs import Program

_ODDNESS = 0.05
"""Each step that no kernel has is drawn so much less often than for other targets."""


def cluster_model(draw: Drawing, common: Drawing) -> Program:
    """A decoder of tokens that kernels can compute, with few exceptions."""
    kinds = Arithmetic(common.weighted({"f16": 55, "bf16": 45}))
    if draw.chance(2):
        kinds = Arithmetic()
    extents = {
        "E": 8 * common.number(2, 25),
        **(_latents(draw) if draw.chance(20) else _heads(draw)),
        "F": 8 * common.number(1, 30),
        "V": common.number(2, 90),
    }
    if draw.chance(2):
        extents[draw.of("EF")] -= 4
    model = Model(draw, common, extents, _ODDNESS)
    if "R" not in extents:
        # From a stream of its own, so that a seed gives the same models otherwise.
        own = Drawing(Random(repr(extents)))
        model.window = own.weighted({0: 70, own.number(1, 40): 30})
        if own.chance(30):
            places = ("embedding", "residual", "logits")
            model.factors = {of: own.of([0.22, 0.6, 1.5]) for of in places if own.chance(60)}
    return model.program(kinds, tokens=True)


def _heads(draw: Drawing) -> dict[str, int]:
    """Query heads, key heads and lanes; from nine of a key head on by tiles."""
    groups = draw.weighted({1: 35, 2: 35, 3: 20, 4: 10})
    shared = draw.weighted({1: 30, 2: 25, 3: 10, 4: 12, 5: 5, 8: 6})
    if groups == 1 and draw.chance(35):
        shared = draw.of([7, 9, 12, 16, 20])
    lanes = draw.weighted({64: 50, 96: 18, 128: 22, 256: 8, 32: 1, 80: 1})
    return {"H": groups * shared, "G": groups, "D": lanes}


def _latents(draw: Drawing) -> dict[str, int]:
    """Extents of latent attention; see ``Model._latent_attention``."""
    extents = {
        "H": draw.weighted({1: 20, 2: 25, 4: 30, 8: 15, 3: 5, 6: 5}),
        "G": 1,
        "N": 8 * draw.number(2, 16),
        "P": 8 * draw.number(1, 8),
        "R": draw.of([32, 64, 128, 192, 256, 512]),
        "D": 8 * draw.number(2, 16),
    }
    return extents | ({"Q": 8 * draw.number(2, 16)} if draw.chance(35) else {})


def cluster_options(draw: Drawing, common: Drawing, program: Program) -> dict[str, Any]:
    """Options of ``meshc compile``, the capacity of caches left out."""
    options: dict[str, Any] = {"page": draw.of([1, 1, 16, 16, 64])}
    batch = common.weighted({1: 55, 2: 10, 3: 10, 4: 5, 5: 8, 7: 6, 16: 6})
    if batch > 1:
        options["batch"] = batch
    if draw.chance(45):
        by_lanes = 0 if "R" in program.extents else 50
        options["dataflow"] = "split_head" if draw.chance(by_lanes) else "split_token"
    if draw.chance(70):
        sizes = {1: 20, 2: 25, 4: 25, 8: 20, 16: 8, 3: 1, 5: 1}
        if options.get("dataflow") == "split_head":
            sizes = {2: 50, 4: 40, 8: 10}
        options["cluster"] = draw.weighted(sizes)
    if draw.chance(40):
        options["dtype"] = program.kinds.stored
    return options


def cluster_runs(draw: Drawing, program: Program) -> tuple[int, int]:
    """Tokens of a prompt, and how many logits are asked for: those behind it and of later steps."""
    prompt = draw.weighted({1: 15, draw.number(2, 15): 35, draw.number(16, 18): 25, 0: 25})
    layers = max((program.extents[d] for d in program.extents if d.startswith("layers")), default=1)
    if not prompt:
        many = draw.chance(30) and layers == 1 and program.extents["H"] <= 8
        prompt = draw.number(60, 140) if many else draw.number(19, 40)
    return prompt, draw.number(1, 4)


def cluster_features(program: Program) -> set[str]:
    """What kernels of attention differ by, in words, for counting."""
    extents = program.extents
    if "R" in extents:
        return {"latent attention" + (" of a low rank" if "Q" in extents else "")}
    many = extents["H"] // extents.get("G", extents["H"]) > 8
    return {f"lanes {extents['D']}", f"attention by {'tiles' if many else 'lanes'}"}

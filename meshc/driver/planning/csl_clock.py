"""What the clock of emitted CSL says of a phase, as a prediction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meshc.backends.request import CompileRequest
from meshc.cost.predictions import Input, Part, Prediction, inputs_of
from meshc.cost.terms import Cost
from meshc.driver.compiling import compile_loaded
from meshc.driver.models import LoadedModel

_PRICES = Input(
    "prices of statements",
    None,
    "cycles",
    "calibrated",
    "the fabric simulator and logs of the vendor's (docs/csl.md, Predicted cycles)",
)


def clocked(loaded: LoadedModel, request: CompileRequest) -> Prediction:
    """Cycles of the emitted program of the one phase of ``request``, with their lower bound. Raises
    what compiling does."""
    device = request.the_device().watched()
    compiled = compile_loaded(loaded, request.changed(device=device))
    told = json.loads(compiled.files["report.json"])
    parts = tuple(map(_part, told["cycles_by_op"]))
    return Prediction(
        "clock",
        "cycles",
        device.clock_hz,
        parts,
        (*inputs_of(device, device.asked), _PRICES),
        told["bound_cycles"],
        ("compute", "waits"),
    )


def _part(row: Mapping[str, Any]) -> Part:
    """An op computes, or waits for transfers with all that these take."""
    cycles = float(row["cycles"])
    cost = Cost(compute=cycles) if row["kind"] == "computes" else Cost(waits=cycles)
    return Part(row["op"], row["times"], cost)

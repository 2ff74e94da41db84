"""Costs of the links of a module's device."""

from __future__ import annotations

from meshc.analysis.reduction import LinkCost
from meshc.ir.module import Module


def link_cost(module: Module) -> LinkCost:
    """Alpha and beta of the module's device; those of an ideal mesh when it has none."""
    numbers = module.device
    relay = numbers.get("relay_cycles")
    return LinkCost(
        float(numbers.get("hop_cycles", 1.0)),
        float(numbers.get("route_cycles", 24.0)),
        1 / float(numbers.get("words_per_cycle", 1.0)),
        float(numbers.get("step_cycles", 0.0)),
        None if relay is None else float(relay),
    )

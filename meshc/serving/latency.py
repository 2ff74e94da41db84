"""How long the longest iteration of a prompt is, which a target for latency bounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from meshc.cost.serving_costs import ServingCosts


@dataclass(frozen=True)
class LongestIteration:
    """Predicted seconds of the longest iteration of a prompt that is read in groups of layers,
    beside ``decodes`` requests of ``context`` tokens each. Layers count as equal."""

    cost: ServingCosts
    decodes: int = 16
    context: int = 8192

    def __call__(self, tokens: int, groups: int) -> float:
        layers = ceil(len(self.cost.model.layers) / groups)
        total = self.decodes * self.context
        return self.cost.iteration(self.decodes, total, [(0, tokens)], range(layers), 1).seconds

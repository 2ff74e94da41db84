"""What the manifest of a program that serves says, so that it can be served from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.backends.request import SERVING, CompileRequest
from meshc.backends.target import target_of
from meshc.backends.target_options import MeshOptions
from meshc.cost.layer_groups import layer_costs
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.serving.policies import for_model, policy
from meshc.support.diagnostics import fail
from meshc.support.output import MANIFEST


@dataclass(frozen=True)
class Serving:
    """What a server asks of a program for requests as they come: ``prompts`` is its
    ``CompileRequest.serving``, ``rows_stay`` says whether caches keep rows where they are, and
    ``layer_costs`` are those of :func:`layer_costs <meshc.cost.layer_groups.layer_costs>`."""

    prompts: str
    rows_stay: bool
    layer_costs: tuple[float, ...]

    @classmethod
    def of(cls, request: CompileRequest, decode: Module | None) -> Serving | None:
        """How the program serves that ``request`` makes of the graph of the step ``decode``; None
        where it does not. Raises ``dense-layered`` for GPUs; of cores passes do so."""
        if not request.serving or decode is None:
            return None
        by_passes = target_of(request).served_by_passes()
        if not by_passes and request.serving == "layers":
            experts = sum(isinstance(op, graph.TopK) for op in decode.walk())
            for_model(policy("layered"), experts)
        stay = not by_passes or request.options_of(MeshOptions).kv == "cyclic"
        return cls(request.serving, stay, layer_costs(decode))

    @property
    def facts(self) -> dict[str, object]:
        """The same as JSON has it."""
        costs = list(self.layer_costs)
        return {"prompts": self.prompts, "rows_stay": self.rows_stay, "layer_costs": costs}


def serving_of(facts: Mapping[str, object]) -> Serving | None:
    """What a manifest says of serving, None for a program that was not compiled for it. Raises
    ``no-program`` where someone changed it to something else."""
    match facts.get("serving"):
        case None:
            return None
        case {"prompts": str(how), "rows_stay": bool(stay), "layer_costs": [*costs]}:
            if how in SERVING and all(isinstance(cost, float) and cost >= 1 for cost in costs):
                return Serving(how, stay, tuple(costs))
    fail("no-program", f"{MANIFEST} has no sound 'serving'")

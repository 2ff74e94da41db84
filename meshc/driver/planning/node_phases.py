"""A phase of a model on a node of GPUs in tensor parallel, by what its kernels or published servers
take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshc.backends.request import CompileRequest
from meshc.backends.target_options import CudaOptions
from meshc.cost.nodes.iteration_batches import Batch, Chunk, prompts
from meshc.cost.nodes.iteration_predictions import predicted_schedule
from meshc.cost.nodes.iterations import NodeIterations
from meshc.cost.nodes.overlap import fused_only
from meshc.cost.nodes.ranks import Ranks
from meshc.cost.predictions import Part, Prediction, inputs_of
from meshc.cost.served_graphs import served_of
from meshc.cost.served_models import ServedModel
from meshc.cost.serving_costs import ServingCosts
from meshc.cost.serving_iterations import IterationCost
from meshc.cost.terms import Cost
from meshc.devices import Device
from meshc.driver.compiling import given_module
from meshc.driver.models import LoadedModel
from meshc.driver.planning.parts import bytes_held, part_of, served_by_ranks
from meshc.driver.planning.plan_answers import PhasePlan, Room
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError
from meshc.support.plmr import violates

_BY_KERNELS = "collective_seconds"
"""A number that a node has whose kernels are costed one by one."""


@dataclass(frozen=True)
class NodePhases:
    """The phases of a model on ``request.gpus`` GPUs of a node."""

    loaded: LoadedModel
    request: CompileRequest

    @cached_property
    def device(self) -> Device:
        """The node."""
        return self.request.the_device()

    @property
    def gpus(self) -> int:
        """GPUs that the model is dealt to."""
        return self.request.options_of(CudaOptions).gpus

    @cached_property
    def graph(self) -> Module:
        """The graph of the decode step of the whole model, a request of a batch at a time."""
        return given_module(self.loaded, "decode", self.request, Diagnostics())

    @cached_property
    def served(self) -> ServedModel:
        """What the model loads and computes. Raises ``unsupported-architecture``."""
        if _BY_KERNELS in self.device.numbers:
            return served_by_ranks(self.graph)
        return served_of(self.graph)

    @cached_property
    def held(self) -> dict[str, dict[str, int]]:
        """Bytes of a GPU by role and tensor."""
        return bytes_held(part_of(self.loaded, self.request))

    @cached_property
    def room(self) -> Room:
        """The memory of a GPU."""
        weights, caches = (sum(self.held[role].values()) for role in ("weight", "state"))
        own = {self.device.reserved_for: self.device.reserved_bytes}
        uses = {"weights": weights, "caches": caches, **own}
        return Room(self.device.memory_bytes, uses, {**self.held["weight"], **self.held["state"]})

    def refusal(self) -> Diagnostic | None:
        """Why the model does not fit, if it does not."""
        room = self.room
        if room.left is None or room.left >= 0:
            return None
        return Diagnostic(
            "error",
            "does-not-fit",
            f"the model needs {room.needed} bytes of each of {self.gpus} GPUs of "
            f"{self.device.name}, which has {room.size}: {-room.left} bytes short",
            notes=(violates("M"),),
        )


def phase_on_node(phases: NodePhases, phase: str) -> PhasePlan:
    """The plan of a ``phase``, ``prefill`` or ``decode``. Raises what dealing the graph raises."""
    room, refused = phases.room, phases.refusal()
    capacity, requests = phases.graph.capacity, phases.request.requests
    tokens = requests if phase == "decode" else capacity
    prediction, silent, joules = None, "", None
    try:
        prediction, energy = _predicted(phases, phase)
        joules = energy / tokens
    except MeshcError as error:
        silent = error.diagnostics[0].message
    kv_tokens, caches = None, room.uses["caches"]
    if room.left is not None and caches:
        kv_tokens = max(0, room.left + caches) * capacity // caches
    return PhasePlan(
        phase,
        tokens,
        prediction=prediction,
        silent=silent,
        room=room,
        refused=refused,
        violates={} if refused is None else {"M": refused.message},
        kv_tokens=kv_tokens,
        joules=joules,
    )


def _predicted(phases: NodePhases, phase: str) -> tuple[Prediction, float]:
    """A run of ``phase``, and the joules of all its GPUs. Raises ``unsupported-architecture``,
    ``bad-argument`` and ``device-number``."""
    node = phases.device.watched()
    capacity, requests = phases.graph.capacity, phases.request.requests
    decodes = requests if phase == "decode" else 0
    chunks = [] if decodes else [(0, capacity)]
    layers = range(0 if decodes else len(phases.served.layers))
    costs = _costs(phases, node)
    load = costs.iteration(decodes, decodes * capacity, chunks, layers)
    if isinstance(costs, NodeIterations):
        ranks = Ranks(phases.served, node, phases.gpus)
        last: Batch = (Chunk(capacity - 1, capacity),) * decodes
        schedule = fused_only(ranks, last or prompts([capacity]))
        behind = (ranks.head(decodes),) if decodes else ()
        return predicted_schedule(schedule, node, behind), load.joules
    beside = costs.iteration(0, 0, heads=decodes).seconds
    parts = (
        Part("layers", len(phases.served.layers), Cost(compute=load.seconds - beside)),
        Part("iteration and head", 1, Cost(compute=beside)),
    )
    inputs = inputs_of(node, node.asked)
    found = Prediction("servers", "seconds", None, parts, inputs, apart=("compute",))
    return found, load.joules


def _costs(phases: NodePhases, node: Device) -> ServingCosts:
    if _BY_KERNELS in node.numbers:
        return NodeIterations(phases.served, node, phases.gpus, "fuse-only")
    return IterationCost(phases.served, node, phases.gpus)

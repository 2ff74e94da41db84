"""select-collective: give every all_reduce its algorithm, by cost, within the device's R."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from meshc.analysis.reduction import (
    LinkCost,
    Reduction,
    candidates,
    most_inputs,
    ring_cycles,
    tree_cycles,
    tree_groups,
)
from meshc.analysis.tiling import tiling_of
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class SelectCollective(Pass):
    """Choose pipeline, ring or K-tree, and K, for each axis (WaferLLM section 6).

    All reductions over one axis share their channels, so they share the algorithm: the one with
    the fewest predicted cycles over all of them, among those whose inbound channels fit the input
    queues together with the rings of the phase. ``algo`` forces ``pipeline``, ``ring`` or
    ``k_tree``, ``k`` the number of phases.
    """

    NAME: ClassVar[str] = "select-collective"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned", "placed"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"collectives_selected"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    algo: str = "auto"
    k: int = 0

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.algo not in ("auto", "pipeline", "ring", "k_tree") or not 0 <= self.k <= 4:
            fail(
                "bad-option",
                f"no collective algo={self.algo} with k={self.k}",
                help="algo is auto, pipeline, ring or k_tree; k is 1 to 4, or 0 for any",
            )
        reductions = [o for o in module.walk() if isinstance(o, ops.AllReduce)]
        if self.algo == "ring":
            for op in reductions:
                op.algo, op.groups = "ring", ()
        else:
            chosen = self.choose(module, reductions, report)
            for op in reductions:
                op.algo, op.groups = "k_tree", chosen[op.axis]
        return module

    def choose(
        self, module: Module, reductions: list[ops.AllReduce], report: Diagnostics
    ) -> dict[str, tuple[int, ...]]:
        """Groups for each axis, jointly cheapest within the queues."""
        mesh, link = module.the_mesh(), link_cost(module)
        payload = {axis: words_on(module, reductions, axis) for axis in ("y", "x", "xd")}
        free = free_inputs(module)
        rings = ring_inputs(module)
        options_y = self.trees(mesh.rows, 1, payload["y"], link)
        options_x = self.trees(mesh.columns, mesh.segments, payload["x"] + payload["xd"], link)
        segment = mesh.size("xd") if payload["xd"] and mesh.segments > 1 else mesh.columns
        fitting = []
        for y, x in product(options_y, options_x):
            inputs = rings
            inputs += most_inputs(mesh.rows, y.groups, mesh.rows) if payload["y"] else 0
            has_x = payload["x"] or payload["xd"]
            inputs += most_inputs(mesh.columns, x.groups, segment) if has_x else 0
            if free is None or inputs <= free:
                fitting.append((y.cycles + x.cycles, inputs, y, x))
        if not fitting:
            fail(
                "too-many-queues",
                f"no reduction fits the {free} free input queues of a core beside {rings} rings",
                notes=("this violates R of PLMR: routing resources of a core",),
                help="use --kv cyclic, or a mesh whose columns need no segments",
            )
        _, inputs, y, x = min(fitting, key=lambda f: f[0])
        self.explain(module, report, (("y", y, options_y), ("x", x, options_x)), payload, inputs)
        inner = x.groups[:-1] if mesh.segments > 1 else x.groups
        return {"y": y.groups, "x": x.groups, "xd": inner}

    def trees(self, size: int, segments: int, words: list[int], link: LinkCost) -> list[Reduction]:
        """Trees to choose from, with their cycles summed over all reductions of the axis."""
        found = []
        for option in candidates(size, segments, 1, link):
            phases = len(option.groups) - (segments > 1)
            wanted = {"pipeline": 1}.get(self.algo, self.k)
            if wanted and phases != wanted and len(tree_groups(size // segments, wanted)) == wanted:
                continue
            total = sum(tree_cycles(option.groups, size, w, link) for w in words)
            found.append(Reduction(option.algo, option.groups, total))
        return found

    def explain(
        self,
        module: Module,
        report: Diagnostics,
        choices: tuple[tuple[str, Reduction, list[Reduction]], ...],
        payload: dict[str, list[int]],
        inputs: int,
    ) -> None:
        """Say what was chosen over what, in predicted cycles."""
        mesh, link = module.the_mesh(), link_cost(module)
        for axis, chosen, options in choices:
            words = payload[axis] + (payload["xd"] if axis == "x" else [])
            size = mesh.size(axis)
            if not words or size == 1:
                continue
            others = [f"{o} {o.cycles:.0f}" for o in options if o.groups != chosen.groups]
            others.append(f"ring {sum(ring_cycles(size, w, link) for w in words):.0f}")
            report.remark(
                "collective",
                f"{len(words)} reductions over {axis}: {chosen}, {chosen.cycles:.0f} cycles "
                f"predicted ({', '.join(others)}); {inputs} inbound channels per core at most",
            )


def link_cost(module: Module) -> LinkCost:
    """Alpha and beta of the module's device; those of an ideal mesh when it has none."""
    numbers = module.device
    return LinkCost(
        float(numbers.get("hop_cycles", 1.0)),
        float(numbers.get("route_cycles", 24.0)),
    )


def free_inputs(module: Module) -> int | None:
    """Input queues that a program may use, or None where the device does not limit them."""
    queues = module.device.get("input_queues", 0)
    if not queues or not module.device.get("enforced", False):
        return None
    return int(queues) - int(module.device.get("reserved_input_queues", 0))


def ring_inputs(module: Module) -> int:
    """Rings on which every core receives: those of the products, and of the KV shift."""
    mesh = module.the_mesh()
    axes = set()
    for op in module.walk():
        if isinstance(op, (ops.Gemm, ops.GemmT)):
            axes |= {"y", op.axis}
        if isinstance(op, ops.Append) and module.option("phase", "") == "decode":
            axes |= {"y"} if op.policy in ("", "shift") else set()
    if mesh.segments == 1 and "xd" in axes:
        axes = (axes - {"xd"}) | {"x"}
    return sum(mesh.size(axis) > 1 for axis in axes)


def words_on(module: Module, reductions: list[ops.AllReduce], axis: str) -> list[int]:
    """Words per core of each reduction over ``axis`` (rows of a full prompt included)."""
    tiling = tiling_of(module)
    row_dim = str(module.option("row_dim", "L"))
    found = []
    for op in reductions:
        if op.axis != axis:
            continue
        words = 0
        for value in op.tensors():
            kind = tensor_type(value)
            size = 1
            for dim, extent in zip(kind.dims, kind.local_shape(module.dims), strict=True):
                many = dim == row_dim and module.dims[dim] > 1
                size *= tiling.row_lanes if many else extent
            words += size * kind.dtype.bytes // 4 or 1
        found.append(words)
    return found

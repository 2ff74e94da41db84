"""select-collective: give every all_reduce its algorithm, by cost, within the device's R."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, NoReturn

from meshc.analysis.tiling import has_many_rows, tiling_of
from meshc.cost.mesh_ops import merging
from meshc.cost.reductions import (
    TREES,
    Reduction,
    candidates,
    most_inputs,
    ring_cost,
    tree_cost,
)
from meshc.cost.terms import Cost
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates

_BY_TREE = (ops.AllReduce, ops.Reduce, ops.Broadcast)


@dataclass(frozen=True)
class Option:
    """A way to reduce over an axis and what it takes of a core's routing: rings it runs on,
    other inbound channels, colors of those."""

    way: Reduction
    rings: frozenset[str]
    inputs: int
    colors: int


@dataclass(frozen=True)
class Load:
    """What a reduction sends of each core, and the work of a core on each message that keeps it
    from flowing through; None for what is added as it arrives."""

    words: int
    work: Cost | None


@dataclass(frozen=True)
class SelectCollective(Pass):
    """Choose pipeline, ring or K-tree, and K, for each axis (WaferLLM section 6).

    All reductions over one axis share their channels, so they share the algorithm: the one with
    the fewest predicted cycles over all of them, among those whose inbound channels and colors fit
    the device together with the rings of the phase. ``algo`` forces ``pipeline`` (one chain),
    ``two_phase`` (chains of about the square root of the cores, then one of their roots), ``tree``
    (groups of two), ``k_tree`` or ``ring``; ``k`` is the number of phases of a ``k_tree``.
    Softmaxes that are merged take a tree, as nothing can go around a ring without its maximum.

    Before::

        %y_1 = mesh.all_reduce %y {axis = y}

    After::

        %y_1 = mesh.all_reduce %y {axis = y, algo = k_tree, groups = [2, 2]}
    """

    NAME: ClassVar[str] = "select-collective"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned", "placed"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"collectives_selected"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    algo: str = "auto"
    k: int = 0

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.algo not in ("auto", "k_tree", "ring", *TREES) or not 0 <= self.k <= 4:
            fail(
                "bad-option",
                f"no collective algo={self.algo} with k={self.k}",
                help=f"algo is auto, k_tree, ring, {', '.join(TREES)}; k is 1 to 4, or 0 for any",
            )
        reductions = [o for o in module.walk() if isinstance(o, (ops.AllReduce, ops.Reduce))]
        chosen = self.choose(module, reductions, report)
        for op in reductions:
            way = chosen[op.axis]
            if way.algo == "ring" and (isinstance(op, ops.Reduce) or op.reduce == "softmax"):
                way = next(
                    candidates(module.the_mesh().size(op.axis), 1, 1, module.the_device(), 2)
                )
            op.algo, op.groups = way.algo, way.groups
        return module

    def choose(
        self, module: Module, reductions: list[ops.AllReduce | ops.Reduce], report: Diagnostics
    ) -> dict[str, Reduction]:
        """The algorithm for each axis: jointly cheapest within the queues and colors."""
        mesh = module.the_mesh()
        down, across = mesh.plane
        loads_down, loads_across = (loads_on(module, reductions, axis) for axis in mesh.plane)
        inside = loads_on(module, reductions, mesh.inner) if mesh.group else []
        loads_across += inside
        ways_down = self.ways(module, down, loads_down, False)
        ways_across = self.ways(module, across, loads_across, bool(inside) and mesh.segments > 1)
        rings = ring_axes(module)
        device = module.the_device()
        free_inputs, free_colors = device.free("input_queues"), device.free("colors")
        fitting = []
        for one, other in product(ways_down, ways_across):
            extra = len((one.rings | other.rings) - rings)
            inputs = len(rings) + extra + one.inputs + other.inputs
            colors = 3 * (len(rings) + extra) + one.colors + other.colors
            if (free_inputs is None or inputs <= free_inputs) and (
                free_colors is None or colors <= free_colors
            ):
                cycles = one.way.cycles + other.way.cycles
                fitting.append((cycles, inputs, colors, one.way, other.way))
        if not fitting:
            self.refuse(free_inputs, free_colors, len(rings))
        cycles, inputs, colors, way_down, way_across = min(fitting, key=lambda f: f[0])
        use = (len(loads_down), inputs, colors)
        self.explain(module, report, down, way_down, ways_down, use)
        use = (len(loads_across), inputs, colors)
        self.explain(module, report, across, way_across, ways_across, use)
        best = min(o.way.cycles for o in ways_down) + min(o.way.cycles for o in ways_across)
        if cycles > 1.5 * best:
            report.remark(
                "collective",
                f"routing resources cost {cycles / best:.1f} times the cycles of the best "
                "reductions; a KV cache without a ring (--kv cyclic) or wider segments free queues",
            )
        within = way_across
        if mesh.segments > 1 and way_across.algo == "k_tree":
            within = Reduction(way_across.algo, way_across.groups[:-1], way_across.cost)
        return {mesh.inner: within, down: way_down, across: way_across}

    def refuse(self, inputs: int | None, colors: int | None, rings: int) -> NoReturn:
        """Say that what is asked for, or anything at all, needs more routing than there is."""
        room = (
            f"the {inputs} free input queues and {colors} free colors of a core beside {rings} "
            "rings"
        )
        message = f"no reduction fits {room}"
        help = "use --kv cyclic, or a mesh whose columns need no segments"
        if (self.algo, self.k) != ("auto", 0):
            message = f"{self.algo} does not fit {room}"
            help = "leave --algo all_reduce out, or name one with fewer phases"
        fail("too-many-queues", message, notes=(violates("R"),), help=help)

    def ways(self, module: Module, axis: str, loads: list[Load], inside: bool) -> list[Option]:
        """Ways to reduce over ``axis``, with cycles summed over all its reductions; ``inside``
        says that some of them stay inside segments."""
        mesh, device = module.the_mesh(), module.the_device()
        size, segments = mesh.size(axis), mesh.segments if axis == mesh.across else 1
        segment = size // segments if inside else size
        found = []
        wanted = TREES.get(self.algo, self.k)
        for tree in candidates(size, segments, 1, device, wanted):
            if self.algo != "ring":
                costs = (tree_cost(tree.groups, size, one.words, device, one.work) for one in loads)
                way = Reduction("k_tree", tree.groups, sum(costs, Cost()))
                inputs = most_inputs(size, tree.groups, segment) if loads else 0
                colors = 2 * sum(g > 1 for g in tree.groups) + 1 + inside
                found.append(Option(way, frozenset(), inputs, colors))
        # A part of a ring is never less than one word, and it has no maximum of its own.
        full = all(one.words >= size and one.work is None for one in loads)
        if self.algo == "ring" or (self.algo == "auto" and not self.k and size > 1 and full):
            costs = (ring_cost(size, one.words, device) for one in loads)
            way = Reduction("ring", (), sum(costs, Cost()))
            axes = {axis, mesh.inner} if inside else {axis}
            found.append(Option(way, frozenset(axes if loads and size > 1 else ()), 0, 0))
        return found

    def explain(
        self,
        module: Module,
        report: Diagnostics,
        axis: str,
        chosen: Reduction,
        options: list[Option],
        use: tuple[int, int, int],
    ) -> None:
        """Say what was chosen over what, in predicted cycles."""
        count, inputs, colors = use
        if not count or module.the_mesh().size(axis) == 1:
            return
        ways = [o.way for o in options if o.way != chosen]
        others = ", ".join(f"{way} {way.cycles:.0f}" for way in ways) or "no other way"
        report.remark(
            "collective",
            f"{count} reductions over {axis}: {chosen}, {chosen.cycles:.0f} cycles predicted "
            f"({others}); at most {inputs} inbound channels per core and {colors} colors in all",
        )


def ring_axes(module: Module) -> frozenset[str]:
    """Axes with a ring on which every core receives: of products, and of the KV shift."""
    mesh = module.the_mesh()
    axes = set()
    for op in module.walk():
        if isinstance(op, (ops.Gemm, ops.GemmT)):
            axes |= {mesh.down, op.axis}
        if isinstance(op, ops.Collective) and not isinstance(op, _BY_TREE):
            axes.add(op.axis)
        if isinstance(op, ops.Append) and module.option("phase", "") == "decode":
            axes |= {mesh.down} if op.policy == "shift" else set()
    if mesh.segments == 1 and mesh.inner in axes:
        axes = (axes - {mesh.inner}) | {mesh.across}
    return frozenset(axis for axis in axes if mesh.size(axis) > 1)


def loads_on(module: Module, reductions: list[ops.AllReduce | ops.Reduce], axis: str) -> list[Load]:
    """What each reduction over ``axis`` sends (rows of a full prompt included)."""
    tiling = tiling_of(module)
    row_dim = module.row_dim
    found = []
    for op in reductions:
        if op.axis != axis:
            continue
        words = 0
        for value in op.tensors():
            kind = tensor_type(value)
            size = 1
            for dim, extent in zip(kind.dims, kind.local_shape(module.dims), strict=True):
                many = dim == row_dim and has_many_rows(module, row_dim)
                size *= tiling.row_lanes if many else extent
            words += size * kind.dtype.bytes // 4 or 1
        work = merging(op, tensor_type, module.dims, module.the_device())
        found.append(Load(words, work))
    return found

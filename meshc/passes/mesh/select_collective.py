"""select-collective: give every all_reduce its algorithm, by cost, within the device's R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from meshc.cost.growing_plans import demand_of, runs_of
from meshc.cost.mesh_ops import MeshCosts
from meshc.cost.reductions import TREES
from meshc.cost.routing_demand import Demand, Reduced
from meshc.cost.sharing import Choice, Sharing
from meshc.cost.track_sets import Algorithms
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.base import Pass
from meshc.passes.mesh.core_room import surely_fits
from meshc.passes.mesh.turning import turn_one_way, turned_both_ways
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.plmr import violates
from meshc.verify.collectives_selected import check_ahead

_ROOTED = (ops.Reduce, ops.Broadcast)


@dataclass(frozen=True)
class SelectCollective(Pass):
    """Choose pipeline, ring or K-tree, and K, for each reduction (WaferLLM section 6).

    Reductions over one axis share channels: chains of one stride serve all trees that have it. All
    algorithms together are those with the fewest predicted cycles whose inbound channels and colors
    fit the device beside the rings of the phase (``cost/sharing.py``); ``partition`` counts by the
    same choice. Trees over lines of 16 cores or more, an even number, may be ``folded``: both
    halves go to the middle of the line at once, and back from there; ``fold=false`` turns it off.
    Those over segments may be ``segmented``: what comes back goes to the first core of each segment
    and from there to the others, so that no queue is taken by a multicast over the whole line
    beside the one inside segments; ``segmented=false`` turns that off.
    Operands that turn ahead of a product's first step do so by the shorter way around their ring
    where a second ring saves more than reductions lose that then have fewer routes, and a core
    surely has memory for its code; ``both-ways=false`` turns that off.
    ``algo`` forces ``pipeline`` (one chain), ``two_phase`` (chains of about the square
    root of the cores, then one of their roots), ``tree`` (groups of two), ``folded``, ``k_tree`` or
    ``ring``;
    ``k`` is the number of phases of a ``k_tree``. Softmaxes that are merged take a tree, as nothing
    can go around a ring without its maximum.

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
    fold: bool = True
    segmented: bool = True
    both_ways: bool = True

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.algo not in ("auto", "k_tree", "folded", "ring", *TREES) or not 0 <= self.k <= 4:
            fail(
                "bad-option",
                f"no collective algo={self.algo} with k={self.k}",
                help=f"algo is auto, k_tree, folded, ring, {', '.join(TREES)}; "
                "k is 1 to 4, or 0 for any",
            )
        check_ahead(module)
        costs = self.costs(module)
        demand = demand_of(runs_of(module), costs)
        choice = costs.sharing.cheapest(demand)
        if choice is None:
            self.refuse(costs.sharing, demand)
        explain_lack(costs.sharing, demand, choice, report)
        turn_one_way(module)
        if self.both_ways and surely_fits(module):
            choice = turned_both_ways(module, costs, demand, choice, report)
        taken = {
            op: costs.reduced(op)
            for op in module.walk()
            if isinstance(op, (ops.AllReduce, ops.Reduce))
        }
        for op, reduced in taken.items():
            way = choice.ways[reduced]
            op.algo, op.groups = way.algo, way.groups
        explain(costs.sharing, demand, choice, list(taken.values()), report)
        return module

    def costs(self, module: Module) -> MeshCosts:
        """Predictions for ``module`` with the algorithms that are asked for."""
        rooted = any(isinstance(op, _ROOTED) for op in module.walk())
        algorithms = Algorithms(self.algo, self.k, rooted, self.fold, self.segmented)
        return MeshCosts.of_module(module, module.the_mesh(), algorithms)

    def refuse(self, sharing: Sharing, demand: Demand) -> NoReturn:
        """Say that what is asked for, or anything at all, needs more routing than there is."""
        rings = sum(track.kind == "ring" for track in demand.tracks)
        room = (
            f"the {sharing.inputs} free input queues and {sharing.colors} free colors of a core "
            f"beside {rings} rings"
        )
        message = f"no reduction fits {room}"
        help = "use --kv cyclic, or a mesh whose columns need no segments"
        if (self.algo, self.k) != ("auto", 0):
            message = f"{self.algo} does not fit {room}"
            help = "leave --algo all_reduce out, or name one with fewer phases"
        fail("too-many-queues", message, notes=(violates("R"),), help=help)


def explain(
    sharing: Sharing,
    demand: Demand,
    choice: Choice,
    taken: Sequence[Reduced],
    report: Diagnostics,
) -> None:
    """Say for each axis what was chosen over what, in predicted cycles of a run."""
    mesh = sharing.mesh
    taken = [reduced for reduced in taken if mesh.size(reduced.axis) > 1]
    axes = [axis for axis in mesh.ranked if any(r.axis == axis for r in taken)]
    for axis in axes:
        counts = {r: times for r, times in demand.reductions.items() if r.axis == axis}
        number = sum(r.axis == axis for r in taken)
        cycles = sum(choice.ways[r].cycles * times for r, times in counts.items())
        report.remark(
            "collective",
            f"{number} {'reduction' if number == 1 else 'reductions'} over {axis}: "
            f"{_ways(choice, list(counts))}, {cycles:.0f} cycles predicted "
            f"({_others(sharing, counts, choice)}); at most {choice.inputs} inbound channels per "
            f"core and {choice.colors} colors in all",
        )


def explain_lack(sharing: Sharing, demand: Demand, choice: Choice, report: Diagnostics) -> None:
    """Say so where routing resources cost many of the cycles of ``choice``."""
    least = sum(
        min(option.way.cycles for option in sharing.options(r)) * times
        for r, times in demand.reductions.items()
    )
    if choice.cost.total > 1.5 * least:
        report.remark(
            "collective",
            f"routing resources cost {choice.cost.total / least:.1f} times the cycles of the best "
            "reductions; a KV cache without a ring (--kv cyclic) or wider segments free queues",
        )


def _ways(choice: Choice, needs: Sequence[Reduced]) -> str:
    """The algorithms, and for how many words where there are several."""
    words: dict[str, list[int]] = {}
    for need in needs:
        words.setdefault(str(choice.ways[need]), []).append(need.words)
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{way} of {_range(of)} words" for way, of in words.items())


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _others(sharing: Sharing, counts: dict[Reduced, float], choice: Choice) -> str:
    """What one algorithm for all reductions would cost, for each that is not the one taken."""
    costs: dict[str, list[float]] = {}
    for reduced, times in counts.items():
        for option in sharing.options(reduced):
            costs.setdefault(str(option.way), []).append(option.way.cycles * times)
    taken = {str(choice.ways[reduced]) for reduced in counts}
    found = [
        f"{way} {sum(each):.0f}"
        for way, each in costs.items()
        if len(each) == len(counts) and taken != {way}
    ]
    return ", ".join(found) or "no other way"

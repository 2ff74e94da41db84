"""select-dispatch: how rows travel to the cores of their experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from meshc.cost.dispatching import WAYS, dispatch_costs, natural_ring
from meshc.cost.mesh_ops import MeshCosts
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail

_RINGS = (ops.AllGather, ops.ReduceScatter, ops.Gather, ops.Scatter, ops.Shift)


@dataclass(frozen=True)
class SelectDispatch(Pass):
    """Choose how each dispatch brings rows to the cores that hold their experts.

    ``multicast``: every core of a line multicasts its rows in turn, and keeps of the others' those
    that are sent to its experts; two colors do, whatever the number of cores. ``ring``: parts go
    around the ring of ranks. ``gather``: the first core gathers all and multicasts it. A dispatch
    of rows that are on every core of the axis already is ``local``. All of a program take the way
    with the fewest predicted cycles, or ``algo``. Cores take turns in their natural order, which
    stretches rings; programs that share caches with another phase, or have products whose operands
    go around, keep to the other ways.

    Before::

        %sent, %routes = mesh.dispatch %x, %g {dim = X, axis = x}

    After::

        %sent, %routes = mesh.dispatch %x, %g {dim = X, axis = x, algo = multicast}
    """

    NAME: ClassVar[str] = "select-dispatch"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"placed"})

    algo: str = "auto"

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.algo not in ("auto", *WAYS):
            fail(
                "bad-option",
                f"no algorithm '{self.algo}' of a dispatch",
                help=f"it is auto or one of {', '.join(WAYS)}",
            )
        mesh = module.the_mesh()
        found = [op for op in module.walk() if isinstance(op, ops.Dispatch)]
        sending = [op for op in found if op.along and mesh.size(op.axis) > 1]
        for op in found:
            op.algo = "local"
        if sending:
            chosen = self.choose(module, sending, report)
            for op in sending:
                op.algo = chosen
        return module

    def choose(self, module: Module, sending: Sequence[ops.Dispatch], report: Diagnostics) -> str:
        """The way that is asked for or takes the fewest predicted cycles; says over what."""
        costs = MeshCosts.of_module(module, module.the_mesh())
        cycles = dict.fromkeys(WAYS, 0.0)
        for op in sending:
            size = costs.mesh.size(op.axis)
            each = dispatch_costs(size, costs.sent_words(op), costs.device, op.axis)
            for way in WAYS:
                cycles[way] += each[way].total
        cycles["multicast"] += sum(
            natural_ring(costs.mesh.size(op.axis), costs.device, op.axis).total
            for op in module.walk()
            if isinstance(op, _RINGS)
        )
        free = [way for way in WAYS if way != "multicast" or may_turn(module, sending)]
        if self.algo not in ("auto", *free):
            fail(
                "bad-option",
                "cores cannot take turns here: another phase or a ring counts on their order",
                sending[0].span,
                help=f"a dispatch here goes by {' or '.join(free)}",
            )
        chosen = min(free, key=cycles.__getitem__) if self.algo == "auto" else self.algo
        others = ", ".join(f"{way} {cycles[way]:.0f}" for way in WAYS if way != chosen)
        number = f"{len(sending)} dispatch" + ("es" if len(sending) > 1 else "")
        words = f"{number}: {chosen}, {cycles[chosen]:.0f} cycles predicted ({others})"
        report.remark("dispatch", words, sending[0].span)
        return chosen


def may_turn(module: Module, sending: Sequence[ops.Dispatch]) -> bool:
    """Whether cores may take turns: in natural order, which nothing else must have otherwise, along
    whole axes of the plane."""
    mesh = module.the_mesh()
    states = any(param.role == "state" for param in module.function.params)
    rings = any(isinstance(op, (ops.Gemm, ops.GemmT)) for op in module.walk())
    whole = all(op.axis in mesh.plane for op in sending)
    return whole and mesh.regions == 1 and not states and not rings


def takes_turns(module: Module) -> bool:
    """Whether some dispatch is one in which cores send in turn."""
    return any(isinstance(op, ops.Dispatch) and op.algo == "multicast" for op in module.walk())

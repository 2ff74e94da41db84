"""shift-kv-cache: how new keys and values keep the rows of the mesh balanced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isinf
from typing import ClassVar

from meshc.analysis.layout.tiling import ceil_div
from meshc.cost.growing_plans import demand_of, runs_of
from meshc.cost.mesh_ops import MeshCosts, has_costs
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import TensorType, Type
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.mesh.forms.problem import AUTO
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class ShiftKvCache(Pass):
    """Set the policy of every cache append, or leave that which ``partition`` chose by cost.

    ``shift`` (WaferLLM section 4.3) hands the oldest entries up, row by row, so that all rows keep
    equal shares and the order along y; ``concat`` leaves every new entry to the last row, as on a
    GPU; ``cyclic`` lets row ``pos mod rows`` store it, balanced as well and without any message,
    since keys already carry their positions.

    Before::

        ... = mesh.append %kc, %k, %vc, %v_1 {dim = S, rows = L}

    After::

        ... = mesh.append %kc, %k, %vc, %v_1 {dim = S, rows = L, policy = cyclic}
    """

    NAME: ClassVar[str] = "shift-kv-cache"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    policy: str = AUTO

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.policy not in (AUTO, *ops.CACHE_POLICIES):
            fail(
                "bad-option",
                f"no cache policy '{self.policy}'",
                help=f"it is one of {AUTO}, {', '.join(ops.CACHE_POLICIES)}",
            )
        appends = [o for o in module.walk() if isinstance(o, ops.Append)]
        for op in appends:
            op.policy = op.policy if self.policy == AUTO else self.policy
        if any(op.policy == "concat" for op in appends):
            widen_rows(module, module.capacity)
        for policy in dict.fromkeys(op.policy for op in appends):
            self.explain(module, policy, report)
        return module

    def explain(self, module: Module, policy: str, report: Diagnostics) -> None:
        """What one row of the mesh must be able to hold, and what a choice by cost was worth."""
        rows = module.the_mesh().rows
        capacity = module.capacity
        share = capacity if policy == "concat" else ceil_div(capacity, rows)
        words = f"policy {policy}: a row of the mesh holds up to {share} of {capacity} tokens"
        if self.policy == AUTO and has_costs(module):
            costs = {p: self.cycles(module, p) for p in ("shift", "cyclic")}
            told = " and ".join(f"{_told(cycles)} with {p}" for p, cycles in costs.items())
            if len(set(costs.values())) > 1:
                words += f"; appends and reductions are predicted to take {told}"
        report.remark("kv-cache", words)

    def cycles(self, module: Module, policy: str) -> float:
        """Predicted cycles of a run in appends and reductions, with the cheapest algorithms that
        the queues and colors allow beside this policy; infinite where none fit."""
        costs = MeshCosts.of_module(module, module.the_mesh())
        runs = [
            (replace(op, policy=policy) if isinstance(op, ops.Append) else op, times)
            for op, times in runs_of(module)
        ]
        choice = costs.sharing.cheapest(demand_of(runs, costs))
        if choice is None:
            return inf
        entered = (costs.append(op) * n for op, n in runs if isinstance(op, ops.Append))
        return sum(entered, choice.cost).total


def _told(cycles: float) -> str:
    return "more than R allows" if isinf(cycles) else f"{cycles:.0f} cycles"


def widen_rows(module: Module, capacity: int) -> None:
    """Every mesh row gets room for the whole sequence, since the last one may have to hold it."""
    for value in _values(module):
        value.type = _widened(value.type, capacity)
    function = module.function
    function.result_types = [_widened(kind, capacity) for kind in function.result_types]


def _widened(kind: Type, capacity: int) -> Type:
    if not isinstance(kind, TensorType) or kind.layout is None:
        return kind
    splits = tuple(
        replace(s, block=max(s.block, capacity)) if s.kind == "shift" else s
        for s in kind.layout.splits
    )
    return kind.with_layout(replace(kind.layout, splits=splits))


def _values(module: Module) -> list[Value]:
    ops = list(module.walk())
    found = [p.value for p in module.function.params]
    found += [v for op in ops for v in op.results]
    return found + [v for op in ops for region in op.regions for v in region.args]

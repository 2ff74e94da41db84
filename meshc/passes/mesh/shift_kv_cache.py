"""shift-kv-cache: how new keys and values keep the rows of the mesh balanced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from meshc.analysis.tiling import ceil_div
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import TensorType, Type
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class ShiftKvCache(Pass):
    """Set the policy of every cache append, ``shift`` before (WaferLLM section 4.3).

    ``shift`` hands the oldest entries up, row by row, so that all rows keep equal shares and the
    order along y; ``concat`` leaves every new entry to the last row, as on a GPU; ``cyclic`` lets
    row ``pos mod rows`` store it, balanced as well and without any message, since keys already
    carry their positions.

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

    policy: str = "shift"

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.policy not in ops.CACHE_POLICIES:
            fail(
                "bad-option",
                f"no cache policy '{self.policy}'",
                help=f"it is one of {', '.join(ops.CACHE_POLICIES)}",
            )
        appends = [o for o in module.walk() if isinstance(o, ops.Append)]
        for op in appends:
            op.policy = self.policy
        if appends:
            if self.policy == "concat":
                widen_rows(module, module.capacity)
            self.explain(module, report)
        return module

    def explain(self, module: Module, report: Diagnostics) -> None:
        """What one row of the mesh must be able to hold."""
        rows = module.the_mesh().rows
        capacity = module.capacity
        share = capacity if self.policy == "concat" else ceil_div(capacity, rows)
        report.remark(
            "kv-cache",
            f"policy {self.policy}: a row of the mesh holds up to {share} of {capacity} tokens",
        )


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

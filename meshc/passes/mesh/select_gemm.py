"""select-gemm: give every product of many rows its algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from meshc.cost.mesh_ops import MeshCosts
from meshc.cost.products import ALGORITHMS, Tiles, product_costs
from meshc.cost.terms import Cost
from meshc.ir.core import Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import Layout, TensorType
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.mesh.core_room import surely_fits
from meshc.support.diagnostics import Diagnostics, fail

SKEWED = ("cyclic_shift", "cannon")
NATURAL = ("cannon", "summa")
INTERLEAVED = ("cyclic_shift", "allgather")
_WHY_NOT = {
    "cannon": "on axes in natural order, which stretch the rings of all phases",
    "summa": "on axes in natural order, and by switch tables, which have run on no hardware",
    "allgather": "for which a core may lack room: M of PLMR",
}
"""Why an algorithm is not chosen, though it may have the fewest cycles."""


@dataclass(frozen=True)
class SelectGemm(Pass):
    """Choose how products of many rows move their operands (WaferLLM section 5.1).

    ``cyclic_shift`` is MeshGEMM and ``cannon`` the same program on axes in natural order; ``summa``
    hands panels along rows and columns; ``allgather`` lets each core gather all it needs, and so
    multiply at once. All
    products of a model share the algorithm, since they share channels and placement. ``algo``
    forces one. Products of attention stay as they are.

    Before::

        weight %w: f32[E, F]<E_y>>x:4 F_x:3>
        %y = mesh.gemm %x, %w {contract = [E], axis = x}

    After::

        weight %w: f32[E, F]<E_y:4 F_x:3>
        %y = mesh.gemm %x, %w {contract = [E], axis = x, algo = summa}
    """

    NAME: ClassVar[str] = "select-gemm"
    LEVELS: ClassVar[tuple[str, ...]] = ("mesh",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"partitioned"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"partitioned"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"placed"})

    algo: str = "auto"

    def run(self, module: Module, report: Diagnostics) -> Module:
        wanted = self.algo
        if wanted not in ("auto", "transposed", *ALGORITHMS):
            fail(
                "bad-option",
                f"no algorithm '{wanted}' of products",
                help=f"it is auto, transposed or one of {', '.join(ALGORITHMS)}",
            )
        products = [
            o for o in module.walk() if isinstance(o, ops.Gemm) and of_parameters(module, o)
        ]
        if not products:
            return module
        chosen = self.choose(module, products, wanted, report)
        for op in products:
            op.algo = chosen
            op.left_aligned = op.left_aligned and chosen in SKEWED
        if chosen not in SKEWED:
            unskew(module)
        return module

    def choose(
        self, module: Module, products: list[ops.Gemm], wanted: str, report: Diagnostics
    ) -> str:
        """The algorithm that is asked for, or the one with the fewest predicted cycles among those
        on interleaved axes; says why. ``allgather`` counts only where a core surely has the memory
        for it. The natural order of the others stretches the rings of all phases, so it is never
        the choice of one phase; ``summa`` also rests on switch tables, which have run on no
        hardware."""
        plane, predicted = module.the_mesh().plane, MeshCosts.of_module(module, module.the_mesh())
        costs = [product_costs(tiles_of(o, predicted), predicted.device, *plane) for o in products]
        total = {
            algo: replace(
                costs[0][algo],
                cost=sum((c[algo].cost for c in costs), Cost()),
                bytes=max(c[algo].bytes for c in costs),
            )
            for algo in ALGORITHMS
        }
        gathers = surely_fits(module, total["allgather"].bytes)
        usual = INTERLEAVED if gathers else INTERLEAVED[:1]
        chosen = wanted if wanted in ALGORITHMS else min(usual, key=lambda a: total[a].cycles)
        asked = " as asked for" if wanted in ALGORITHMS else ""
        left_out = {*INTERLEAVED} - {*usual}
        if not asked:
            left_out |= {a for a in NATURAL if total[a].cycles < total[chosen].cycles}
        if wanted == "transposed":
            asked = ", of which no right operand is an input of main, as transposed asks for"
        others = "; ".join(
            str(total[a]) + (f", {_WHY_NOT[a]}" if a in left_out else "")
            for a in ALGORITHMS
            if a != chosen
        )
        report.remark("gemm", f"{len(products)} products{asked}: {total[chosen]} ({others})")
        return chosen


def tiles_of(op: ops.Gemm, costs: MeshCosts) -> Tiles:
    """What a core has of one product; right operands turn as well where the host has not skewed
    them."""
    layout = tensor_type(op.operands[1]).layout or Layout()
    return replace(costs.tiles(op), turn_right=not any(split.skew for split in layout.splits))


def of_parameters(module: Module, op: ops.Gemm) -> bool:
    """Whether the right operands are weights or inputs, and not a KV cache."""
    return op.axis == module.the_mesh().across


def unskew(module: Module) -> None:
    """Let the host place every parameter straight; scores of attention keep their skew."""
    for value in _values(module):
        kind = value.type
        if isinstance(kind, TensorType) and kind.layout is not None:
            splits = tuple(
                replace(s, skew="") if s.skew and s.kind == "block" else s
                for s in kind.layout.splits
            )
            value.type = kind.with_layout(replace(kind.layout, splits=splits))


def _values(module: Module) -> list[Value]:
    """Parameters, and what loops are given of them, hand on and give back."""
    loops: list[Op] = [op for op in module.walk() if op.regions]
    found = [p.value for p in module.function.params]
    found += [v for op in loops for v in op.results]
    return found + [v for op in loops for region in op.regions for v in region.args]

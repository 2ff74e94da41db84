"""canonicalize: bring the graph level into the form that later passes expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.passes.graph.cleanup import remove_dead
from meshc.passes.graph.merge_equal import merge_equal
from meshc.passes.graph.merge_products import merge_products
from meshc.passes.graph.pair_lanes import pair_lanes
from meshc.passes.graph.scales import fold_scales
from meshc.support.diagnostics import Diagnostics


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Merge equal ops, fold scales, pair the lanes of RoPE, merge products, drop what is unused.

    Rotate-half RoPE turns lane ``i`` with lane ``i + D/2``, which splitting D would tear apart. It
    becomes the interleaved form, whose pairs are neighbours, where the lanes may be reordered for
    free: in the weights that make them. Those are named in the section ``paired`` of the header,
    and whoever packs weights reorders them. Products with the same left operand and contraction
    (q, k and v; gate and up) become one with several right operands, which moves the left one once.
    What is written twice, such as the norm that two blocks begin with, is computed once.

    Before::

        %a = graph.matmul %x, %wq {contract = [E]} : f32[L, H, D]
        %b = graph.matmul %x, %wk {contract = [E]} : f32[L, G, D]
        %q = graph.rope %a {dim = D, rows = L} : f32[L, H, D]

    After::

        paired wq = D, wk = D
        %a, %b = graph.matmul %x, %wq, %wk {contract = [E]} : f32[L, H, D], f32[L, G, D]
        %q = graph.rope %a {dim = D, rows = L, style = interleaved} : f32[L, H, D]
    """

    NAME: ClassVar[str] = "canonicalize"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, report: Diagnostics) -> Module:
        merge_equal(module, report)
        fold_scales(module, report)
        pair_lanes(module, report)
        remove_dead(module, report)
        merge_products(module, report)
        return module

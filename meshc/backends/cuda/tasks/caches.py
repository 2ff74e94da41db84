"""Caches, what loops stream of them, and whose rows of a token lie side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.affine import Expr
from meshc.ir.coded_rows import SCALES_TOGETHER
from meshc.ir.module import Module
from meshc.ir.ops import graph, task, tile
from meshc.ir.rows import Paired
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

KV_LAYOUT, NHD = "kv_layout", "nhd"
"""The option of a graph that says how caches lie in pages, and the value for pages of tokens that
have their heads side by side, with lanes as the model has them: those of other programs."""


@dataclass(frozen=True)
class RowOrder:
    """How rows of tokens lie in pages: as those of other programs (``nhd``), where the lanes of
    some caches, by name, are taken of the model's in another order."""

    nhd: bool
    paired: Mapping[str, Paired]

    @staticmethod
    def of(source: Module) -> RowOrder:
        """The order of the rows of caches in the program of a graph."""
        nhd = source.option(KV_LAYOUT, "") == NHD
        return RowOrder(nhd, _paired_caches(source) if nhd else {})

    def pool(
        self, value: Value, pages: int, page: int, heads: int, lanes: int, width: int
    ) -> tuple[int, int, int, int]:
        """The extents of the memory of a cache, of 0 ``heads`` where it has none, whose rows of
        ``lanes`` take ``width`` elements. Raises ``cuda-shape`` for one of which others have no
        such pages."""
        if not self.nhd:
            return pages, max(heads, 1), page, width
        whole = 8 if width == lanes else SCALES_TOGETHER
        if not heads or lanes != View(value).buffer_type.shape[-1] or lanes % whole:
            those = "eights" if width == lanes else "sixteens"
            words = f"pages in NHD layout hold keys and values of heads of whole {those} of lanes"
            fail("cuda-shape", f"{words}, not those of %{value.name}")
        return pages, page, heads, width

    def lane(self, value: Value, lane: Expr) -> Expr:
        """Where a lane of a head lies in a row of a cache."""
        pairs, extent = self.paired.get(value.name), View(value).buffer_type.shape[-1]
        found: Expr = lane if pairs is None else pairs.element(lane, extent)
        return found


def streams_of(op: tile.For) -> list[task.Stream]:
    """What a loop over cached tokens streams of caches."""
    return [
        one for one in op.regions[0].ops if isinstance(one, task.Stream) and one.below is not None
    ]


def with_new(loop: tile.For) -> dict[Value, Value]:
    """The copy of a tile of ``loop`` in which new tokens stand in their places, if there is one."""
    body = loop.regions[0].ops
    replaced = {
        one.views()[0].buffer
        for op in body
        if isinstance(op, tile.For)
        for one in op.regions[0].ops
        if isinstance(one, tile.Compute) and one.kernel == "copy"
    }
    return {
        op.views()[1].buffer: op.views()[0].buffer
        for op in body
        if isinstance(op, tile.Compute) and op.kernel == "copy" and op.views()[0].buffer in replaced
    }


def side_by_side(module: Module) -> dict[Value, tuple[Value, ...]]:
    """For each cache of several that one loop folds and that have no heads, all of them in the
    order of their lanes: first that of the values. One copy then brings all that a task folds of a
    token. That is for latent attention, whose keys are those of all caches; keys and values of one
    head lie apart."""
    found: dict[Value, tuple[Value, ...]] = {}
    for op in module.walk():
        if isinstance(op, tile.For) and (streams := streams_of(op)):
            seen = with_new(op)
            caches = {seen.get(one.result, one.result): one.view.buffer for one in streams}
            if any(len(one.view.indices) != one.dim + 1 for one in streams):
                continue  # heads
            keys, values = _folded(op, caches, True), _folded(op, caches, False)
            if {*keys} != {*caches.values()}:
                continue
            order = tuple(dict.fromkeys([*values, *caches.values()]))
            if len(order) > 1:
                found |= dict.fromkeys(order, order)
    return found


def _paired_caches(module: Module) -> dict[str, Paired]:
    """How the lanes of caches of a graph whose rows are in another order are taken: as those of the
    weight that makes what is appended."""
    made = {result: op for op in module.walk() for result in op.results}
    found: dict[str, Paired] = {}

    def given(value: Value) -> list[Value]:
        op = made.get(value)
        if op is None or isinstance(op, graph.Append):
            return [value]
        if isinstance(op, graph.Matmul):
            return [op.tensors()[1 + op.results.index(value)]]
        return [one for operand in op.tensors() for one in given(operand)]

    def named(loop: graph.Repeat) -> dict[Value, str]:
        pairs = zip(loop.regions[0].args, loop.tensors(), strict=True)
        return {inner: outer.name for inner, outer in pairs}

    loops = [op for op in module.walk() if isinstance(op, graph.Repeat)]
    names = {p.value: p.value.name for p in module.function.params}
    for loop in loops:
        names |= named(loop)
    for op in module.walk():
        if isinstance(op, graph.Append):
            cache, new = op.tensors()
            made_by = {names.get(one, "") for one in given(new)} & {*module.paired}
            if made_by:
                (found[names[cache]],) = {module.paired[name] for name in made_by}
    return found


def _folded(op: tile.For, caches: Mapping[Value, Value], transposed: bool) -> list[Value]:
    """The caches that a loop multiplies by: those of keys, which are ``transposed``, or of
    values."""
    views = (
        one.views()[2].buffer
        for one in op.regions[0].ops
        if isinstance(one, tile.Compute)
        and one.kernel == "gemm"
        and one.params["transposed"] is transposed
    )
    return [caches[value] for value in views if value in caches]

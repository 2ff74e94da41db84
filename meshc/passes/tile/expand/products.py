"""Products of decoding, and of attention: local GEMV, dist-GEMM-T and the weighted values."""

from __future__ import annotations

from meshc.ir.affine import Expr
from meshc.ir.core import tensor_type
from meshc.ir.ops import mesh
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import View, Whole
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, Place, expr, window
from meshc.passes.tile.expand.kv_cache import Cache
from meshc.passes.tile.expand.local import score_slot
from meshc.passes.tile.expand.slots import Slots, Turn, align
from meshc.passes.tile.expand.weights import Weights


def gemv(
    emitter: Emitter, weights: Weights, op: mesh.Gemv, left: Place, out: View, rights: list[Value]
) -> None:
    """Products with constants: one local matrix-vector product for all results."""
    matrix = weights.gemv(rights, op.contract, left.width)
    emitter.compute("gemm", out, emitter.flat(left), matrix, accumulate=False, transposed=False)


def by_head(
    emitter: Emitter, weights: Weights, op: mesh.Gemv, left: Place, out: Place, right: Value
) -> None:
    """The product of each head's lanes with the matrix of that head."""
    heads = tensor_type(op.operands[0]).dims[-2]
    matrix = weights.by_head(right, heads, op.contract)
    count, views = left.shape[0], []
    for place in (out, left):
        width = place.shape[1]
        shape, order = ((count, width), (1, 0, 2)) if place.rows else ((count, 1, width), ())
        views.append(emitter.view(place, shape, order))
    emitter.compute("gemm", *views, matrix, accumulate=False, transposed=False)


class Attention:
    """dist-GEMM-T for the scores and MeshGEMM for the weighted values of one layer, with the cache
    that is ``which`` of those that share a buffer. Cached rows turn ``both_ways``, or one."""

    def __init__(self, emitter: Emitter, cache: Cache, which: int, both_ways: bool) -> None:
        self.emitter = emitter
        self.cache = cache
        self.which = which
        self.lanes = cache.lanes[which]
        self.tiling = emitter.tiling
        segment = self.tiling.segment
        self.across = rings.ring(emitter, emitter.mesh.inner) if segment > 1 else None
        self.along = rings.ring(emitter, emitter.mesh.down) if emitter.mesh.rows > 1 else None
        self.groups = self.tiling.key_block
        self.shared = self.tiling.query_block // self.groups
        self.chunk_lanes = self.tiling.key_lanes // self.tiling.chunks_y
        self.both_ways = both_ways

    def scores(self, queries: Place, out: Place, dtype: DType, factor: float) -> None:
        """Scores of all keys, times ``factor``: keys move along rows, accumulators in segments.

        Step t of core (i, c) works on key chunk (a*i + b*c + t) mod n, so that after n steps each
        accumulator is back where the weighted values want it.
        """
        emitter, tiling = self.emitter, self.tiling
        keys = self.key_chunks("key_chunks")
        rows, lanes = window(0, emitter.rows), window(0, emitter.chunk_keys)
        shape = (tiling.row_lanes, tiling.query_block, self.chunk_lanes)
        sums = Slots(emitter, "score_chunks", tiling.chunks_x, shape, dtype, self.across)
        emitter.compute("fill", View(sums.buffer), value=0.0)
        query = self.heads_of(queries)

        def multiply(step: Expr | int) -> None:
            emitter.compute(
                "gemm",
                self.chunk_heads(sums.view(step, rows, Whole(), lanes)),
                query,
                self.group_view(keys.view(step, Whole(), lanes)),
                accumulate=True,
                transposed=True,
            )

        with emitter.loop("t", tiling.chunks) as t:
            tokens = keys.shift(t, Whole(), lanes)
            multiply(t)
            tokens += sums.shift(t, rows, Whole(), lanes)
            if tokens:
                emitter.wait(*tokens)
        with emitter.loop("m", tiling.chunks_x) as m:
            last = sums.view(m + tiling.chunks, rows, Whole(), lanes)
            slot = score_slot(emitter, out, m)
            if factor == 1.0:
                emitter.compute("copy", slot, last)
            else:
                emitter.compute("scale", slot, last, factor=factor)

    def values(self, weights: Place, out: Place) -> None:
        """Weighted values: weights, which are gone then, move in segments, values along rows."""
        emitter, tiling = self.emitter, self.tiling
        chunks = self.key_chunks("value_chunks")
        rows, lanes = window(0, emitter.rows), window(0, emitter.chunk_keys)
        moving = Slots.over(emitter, weights.buffer, tiling.chunks_x, self.across)
        target = self.heads_of(out)
        emitter.compute("fill", emitter.view(out), value=0.0)

        def multiply(step: Expr | int) -> None:
            emitter.compute(
                "gemm",
                target,
                self.chunk_heads(moving.view(step, rows, Whole(), lanes)),
                self.group_view(chunks.view(step, Whole(), lanes)),
                accumulate=True,
                transposed=False,
            )

        with emitter.loop("t", tiling.chunks - 1) as t:
            tokens = moving.shift(t, rows, Whole(), lanes) + chunks.shift(t, Whole(), lanes)
            multiply(t)
            if tokens:
                emitter.wait(*tokens)
        multiply(tiling.chunks - 1)

    def key_chunks(self, name: str) -> Slots:
        """The cached rows cut into chunks (row u is in chunk u mod a), aligned along the ring."""
        emitter, tiling = self.emitter, self.tiling
        per_row, dtype = tiling.chunks_y, self.cache.dtype
        shape = (self.groups, self.chunk_lanes, self.lanes)
        slots = Slots(emitter, name, per_row, shape, dtype, self.along)
        lanes = window(0, emitter.chunk_keys)
        with emitter.loop("c", per_row) as c:
            part = window(c, emitter.chunk_keys, per_row)
            cached = self.cache.one(self.which, part)
            emitter.compute("copy", slots.view(c, Whole(), lanes), cached)
        if tiling.segment == 1:
            return slots
        ahead, stride = emitter.index_of(emitter.mesh.inner) * tiling.chunks_x, tiling.chunks_x
        if self.along is None:
            slots.offset = ahead
        else:
            several = self.both_ways and tiling.chunks > 2 * stride
            back = rings.ring(emitter, emitter.mesh.down, 1) if several else None
            turn = Turn(slots, ahead, stride, tiling.segment * stride, back, (Whole(), lanes))
            align(emitter, [turn])
        slots.settle(Whole(), lanes)
        return slots

    def heads_of(self, place: Place) -> View:
        """Queries or outputs as ``[groups, heads per group, rows, lanes]``."""
        shape = (self.groups, self.shared, self.lanes)
        return self.emitter.view(place, shape, (1, 2, 0, 3))

    def chunk_heads(self, view: View) -> View:
        """A chunk ``[rows, heads, keys]`` as ``[groups, heads per group, rows, keys]``."""
        rows, _, keys = view.shape()
        shape = (rows, expr(self.groups), expr(self.shared), keys)
        return View(view.buffer, view.indices, shape, (1, 2, 0, 3))

    def group_view(self, view: View) -> View:
        """A chunk of keys ``[groups, keys, lanes]``, to be shared by the heads of a group."""
        groups, keys, lanes = view.shape()
        return View(view.buffer, view.indices, (groups, expr(1), keys, lanes), ())

"""Expands products, of weights and of caches, and what is appended to caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import cast

from meshc.ir.batch import BATCH
from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import mesh
from meshc.ir.types import Layout
from meshc.ir.values import Value
from meshc.passes.tile.expand.chunks import Chunks
from meshc.passes.tile.expand.emitter import Place
from meshc.passes.tile.expand.gemm import Product, gemm
from meshc.passes.tile.expand.gemm_t import Transposed
from meshc.passes.tile.expand.kv_cache import Cache
from meshc.passes.tile.expand.products import Attention, by_head, gemv
from meshc.passes.tile.expand.values import Values
from meshc.support.diagnostics import fail


class Contractions(Values):
    """A method for each op, named after its mnemonic."""

    def gemv(self, op: mesh.Gemv) -> None:
        """One row times one or several weights, side by side where there are several; a weight may
        have a matrix for each head, and a cache stands for all of its tokens."""
        left, *rights = (cast(Value, o) for o in op.operands)
        if rights[0] in self.caches:
            self.gemv_cache(op, left, rights[0])
            return
        for result in op.results:
            if result not in self.places:
                self.result_place(op)
        places = [self.places[r] for r in op.results]
        self.check_matrices(op, rights)
        if len(rights) == 1 and self.is_by_head(op):
            by_head(self.emitter, self.weights, op, self.place_of(left), places[0], rights[0])
            return
        self.check_lanes(op, left)
        self.check_side_by_side(op, places)
        width = sum(p.width for p in places)
        first = places[0]
        out = replace(first, shape=(width,)) if first.offset is not None else first
        gemv(self.emitter, self.weights, op, self.place_of(left), self.emitter.flat(out), rights)

    def is_by_head(self, op: mesh.Gemv) -> bool:
        """Whether the only right operand has a matrix for each head of the left one."""
        left, right = (tensor_type(operand).dims for operand in op.operands)
        heads = self.emitter.tiling.heads
        return heads is not None and heads.query in {*left} & {*right} - {*op.contract}

    def check_matrices(
        self, op: mesh.Gemv | mesh.Gemm | mesh.GemmT, rights: Sequence[Value]
    ) -> None:
        """Right operands of a product lie as it wants them, which values on the cores do not; rows
        of tokens stay rows."""
        rows = self.module.row_dim
        if rows in op.contract or any(rows in tensor_type(right).dims for right in rights):
            fail(
                "unsupported-op",
                f"a product of {op.NAME} whose right side has {rows}, the rows of tokens",
                op.span,
                help="a right side has other dims than the rows of the left one",
            )
        if any(right not in self.weights.stacks for right in rights):
            fail(
                "unsupported-op",
                f"a right operand of {op.NAME} is neither a weight nor an input of its own",
                op.span,
            )

    def check_lanes(self, op: mesh.Gemv, left: Value) -> None:
        """What a row of the left operand holds is contracted: another dim beside that of rows has
        one lane on a core."""
        if self.place_of(left).width == self.lanes_of(left, op.contract):
            return
        rows = self.module.row_dim or "none that the header names"
        fail(
            "unsupported-layout",
            f"{op.NAME} of {left}, which has several lanes beside the rows ({rows}) and "
            f"{', '.join(op.contract)}, which it sums over",
            op.span,
            help="name the dim of the rows in the header, such as: rows dim = L, capacity = L",
        )

    def gemv_cache(self, op: mesh.Gemv, left: Value, right: Value) -> None:
        """Scores of a query, or values weighted by its scores, against the core's own slots."""
        cache, which = self.caches[right]
        tiling = self.emitter.tiling
        groups, shared = tiling.key_block, tiling.query_block // tiling.key_block
        source, target = self.place_of(left), self.result_place(op)
        keys = tiling.heads is not None and tiling.heads.keys in tensor_type(op.result).dims
        inner, outer = (
            (cache.lanes[which], cache.slots) if keys else (cache.slots, cache.lanes[which])
        )
        self.emitter.compute(
            "gemm",
            self.emitter.view(target, (groups, shared, outer)),
            self.emitter.view(source, (groups, shared, inner)),
            cache.one(which),
            accumulate=False,
            transposed=keys,
        )

    def gemm(self, op: mesh.Gemm) -> None:
        """Rows times one or several weights as MeshGEMM, with the left side and the weights moving;
        scores times cached values as :class:`Attention` has them."""
        left, *rights = (cast(Value, o) for o in op.operands)
        if rights[0] in self.caches:
            cache, which = self.caches[rights[0]]
            out = self.result_place(op)
            (moving,) = self.overwritten(op, [left])
            Attention(self.emitter, cache, which, op.both_ways).values(moving, out)
            return
        self.check_rows(op)
        for result in op.results:
            if result not in self.places:
                self.result_place(op)
        self.check_matrices(op, rights)
        places = [self.places[r] for r in op.results]
        self.check_side_by_side(op, places)
        first, width = places[0], sum(p.width for p in places)
        out = replace(first, shape=(width,)) if first.offset is not None else first
        layout = tensor_type(left).layout or Layout()
        splits = tuple(s for d in op.contract for s in layout.splits if s.dim == d)
        chunks = Chunks.of(self.emitter.mesh, self.lanes_of(left, op.contract))
        source = self.direct.get(left) or self.place_of(left)
        gemm(self.emitter, self.weights, Product(op, source, rights, splits, chunks), out)

    def check_rows(self, op: Op) -> None:
        """Fail with ``unsupported-layout`` where the module does not say what its rows are, or the
        left operand has none, or only sums over them."""
        if not self.module.row_dim:
            fail(
                "unsupported-layout",
                f"{op.NAME} works on rows, but the header does not name their dim",
                op.span,
                help="add a line such as: rows dim = L, capacity = L",
            )
        rows, left = self.module.row_dim, tensor_type(op.operands[0])
        if rows not in left.dims or rows in getattr(op, "contract", ()):
            fail(
                "unsupported-layout",
                f"{op.NAME} works on rows, but those of {op.operands[0]} are not over {rows}",
                op.span,
                help=f"the header says: rows dim = {rows}",
            )

    def lanes_of(self, value: Value, dims: tuple[str, ...]) -> int:
        """Lanes of ``dims`` that a core holds of ``value``."""
        kind = tensor_type(value)
        local = dict(zip(kind.dims, kind.local_shape(self.module.dims), strict=True))
        return prod(local[d] for d in dims)

    def gemm_t(self, op: mesh.GemmT) -> None:
        """Scores that are only read to be scaled are, and rounded, as each chunk of them ends."""
        left, right = (cast(Value, o) for o in op.operands)
        if right not in self.caches:
            self.check_rows(op)
            Transposed(self.emitter, op, self.place_of(left)).expand()
            return
        cache, which = self.caches[right]
        tiling = self.emitter.tiling
        chunk = tiling.key_lanes // tiling.chunks_y
        shape = (tiling.query_block, tiling.chunks_x, chunk)
        scaled = self.lives.only_reader(op.result)
        factor, result = 1.0, op.result
        if isinstance(scaled, mesh.Scale):
            self.scaled.add(scaled)
            factor, result = scaled.factor, scaled.result
        chunks = tiling.chunks_x + (tiling.segment > 1)  # the weighted values receive one more
        room = (chunks, tiling.row_lanes, tiling.query_block, chunk)
        buffer = self.emitter.buffer(result.name, room, self.dtype(result))
        place = self.settle(result, Place(buffer, shape, rows=True, chunked=True))
        sums = self.dtype(op.result)
        attention = Attention(self.emitter, cache, which, op.both_ways)
        attention.scores(self.place_of(left), place, sums, factor)

    def append(self, op: mesh.Append) -> None:
        """Keys and values of new tokens behind those of a cache, by its policy. Raises
        ``unsupported-layout`` where the header does not say what heads and lanes are."""
        if self.emitter.tiling.heads is None:
            words = "the header does not say which dims are heads, lanes and keys of this cache"
            line = f"attention query = H, key = G, lane = D, keys = {op.dim}"
            fail("unsupported-layout", words, op.span, help=f"add a section such as: {line}")
        tensors = op.tensors()
        layers, layer = self.layers if self.layers else (None, None)
        kind = tensor_type(tensors[0])
        dtype = kind.dtype
        split = (kind.layout or Layout()).split_of(op.dim)
        slots = split.block if split else self.module.dims[op.dim]
        lanes = [self.cached_lanes(v, op.dim) for v in tensors[::2]]
        cache = Cache(self.emitter, lanes, layers, layer, dtype, slots, op.policy)
        new = [self.place_of(v) for v in tensors[1::2]]
        for which, value in enumerate(op.results):
            self.caches[value] = (cache, which)
        cache.check_lanes(op, new)
        if self.emitter.many_rows:
            cache.fill(new)
        else:
            cache.append(op, new)

    def cached_lanes(self, cache: Value, keys: str) -> int:
        """Lanes that a core holds of an entry of a cache: of a head, or of one without heads."""
        tiling, kind = self.emitter.tiling, tensor_type(cache)
        if tiling.heads is None or not tiling.heads.headless:
            return tiling.lane_block
        return self.lanes_of(cache, tuple(d for d in kind.dims if d not in (BATCH, keys)))

"""Products: local GEMV, MeshGEMM by cyclic shifts, dist-GEMM-T and the weighted values."""

from __future__ import annotations

from meshc.analysis.tiling import ceil_div
from meshc.ir.affine import Cond, Expr
from meshc.ir.ops import mesh
from meshc.ir.types import DType, Split
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, Symbol, View, Whole
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, Place, expr, index_of, point, window
from meshc.passes.tile.expand.local import score_slot
from meshc.passes.tile.expand.weights import Weights, chunk_count


class Slots:
    """A rotating buffer of chunks: ``count`` in use, one more to receive into when they move."""

    def __init__(
        self,
        emitter: Emitter,
        name: str,
        count: int,
        shape: tuple[int, ...],
        dtype: DType,
        channel: Symbol | None,
    ) -> None:
        self.emitter = emitter
        self.count = count
        self.channel = channel
        self.size = count + 1 if channel is not None else count
        self.buffer: Value = emitter.buffer(name, (self.size, *shape), dtype)

    def view(self, slot: Expr | int, *rest: Index) -> View:
        """Chunk ``slot`` (modulo the size of the buffer)."""
        return View(self.buffer, (point(expr(slot) % self.size), *rest))

    def shift(self, step: Expr | int, *rest: Index, when: Cond | None = None) -> list[Value]:
        """Pass on the first chunk in use at ``step`` and receive the one to come last."""
        if self.channel is None:
            return []
        sent = self.emitter.send(self.channel, self.view(step, *rest), when=when)
        got = self.emitter.recv(self.channel, self.view(step + self.count, *rest), when=when)
        return [sent, got]

    def rotate(self, by: Expr, *rest: Index) -> None:
        """Chunk ``i + by`` becomes chunk ``i``, locally."""
        every = View(self.buffer, (window(0, self.size), *rest))
        self.emitter.compute("rotate", every, by=by)


def gemv(
    emitter: Emitter, weights: Weights, op: mesh.Gemv, left: Place, out: View, rights: list[Value]
) -> None:
    """Products with constants: one local matrix-vector product for all results."""
    matrix = weights.gemv(rights, op.contract, left.width)
    emitter.compute("gemm", out, emitter.flat(left), matrix, accumulate=False, transposed=False)


def gemm(
    emitter: Emitter,
    weights: Weights,
    op: mesh.Gemm,
    left: Place,
    out: Place,
    rights: list[Value],
    splits: tuple[Split, ...],
) -> None:
    """MeshGEMM: align the left operand, then compute and shift (WaferLLM section 5.3).

    The contraction is cut into lcm(rows, columns) chunks (section 5.4); a core holds
    ``per_column`` chunks of the left operand and ``per_row`` of the weights, and each step
    consumes one of either.
    """
    rows, columns = emitter.mesh.rows, emitter.mesh.columns
    steps = chunk_count(rows, columns)
    per_row, per_column = steps // rows, steps // columns
    chunk = ceil_div(left.width, per_column)
    matrix = weights.gemm(rights, op.contract, splits, chunk)
    target = emitter.flat(out)
    if steps == 1:
        first = View(matrix.buffer, (*matrix.indices, point(0)))
        emitter.compute(
            "gemm", target, emitter.flat(left), first, accumulate=False, transposed=False
        )
        return
    moving = _left_slots(emitter, left, per_column, chunk)
    _align_left(emitter, moving, per_row)
    stationary = _weight_slots(emitter, matrix, per_row, (chunk, out.width))
    row_window = window(0, emitter.rows)
    emitter.compute("fill", target, value=0.0)

    def multiply(step: Expr | int) -> None:
        b = stationary(step)
        emitter.compute(
            "gemm", target, moving.view(step, row_window), b, accumulate=True, transposed=False
        )

    with emitter.loop("t", steps - 1) as t:
        tokens = moving.shift(t, row_window) + stationary.shift(t)
        multiply(t)
        if tokens:
            emitter.wait(*tokens)
    multiply(steps - 1)


def _left_slots(emitter: Emitter, left: Place, count: int, chunk: int) -> Slots:
    """The left operand cut into chunks, padded with zeros to a whole number of them."""
    kind = left.buffer.type
    dtype = getattr(kind, "dtype", DType.F32)
    channel = rings.ring(emitter, "x") if emitter.mesh.columns > 1 else None
    capacity = emitter.tiling.row_lanes
    slots = Slots(emitter, "left_chunks", count, (capacity, chunk), dtype, channel)
    rows = window(0, emitter.rows)
    flat = emitter.flat(left)
    if count == 1:
        emitter.compute("copy", slots.view(0, rows), flat)
        return slots
    source, first = _whole_chunks(emitter, left, count * chunk, dtype)
    with emitter.loop("c", count) as c:
        part = View(source, (rows, window(c * chunk + first, chunk)))
        emitter.compute("copy", slots.view(c, rows), part)
    return slots


def _whole_chunks(emitter: Emitter, left: Place, width: int, dtype: DType) -> tuple[Value, int]:
    """A buffer ``[rows, ..]`` whose lanes from a first one on are those of ``left``, zeros behind
    up to ``width``: its own where the lanes lie flat and divide evenly, else a copy."""
    flat = left.offset is not None or len(left.shape) == 1
    if flat and width == left.width:
        return left.buffer, left.offset or 0
    rows = window(0, emitter.rows)
    wide = emitter.buffer("left_flat", (emitter.tiling.row_lanes, width), dtype)
    if width != left.width:
        behind = View(wide, (rows, window(left.width, width - left.width)))
        emitter.compute("fill", behind, value=0.0)
    lanes = (rows, window(0, left.width)) if width != left.width else (rows,)
    emitter.compute("copy", View(wide, lanes), emitter.flat(left))
    return wide, 0


def _align_left(emitter: Emitter, slots: Slots, per_row: int) -> None:
    """Row i starts with the chunk i*per_row further along the ring."""
    if emitter.mesh.rows == 1:
        return
    ahead = index_of("y") * per_row
    rows = window(0, emitter.rows)
    if slots.channel is not None:
        with emitter.loop("a", per_row * (emitter.mesh.rows - 1)) as step:
            emitter.wait(*slots.shift(step, rows, when=Cond.gt(ahead, step)))
    slots.rotate(ahead, rows)


class _Matrix:
    """The weights of a product: moving copies, or in place where a column is one core."""

    def __init__(self, matrix: View, per_row: int, slots: Slots | None) -> None:
        self.matrix, self.per_row, self.slots = matrix, per_row, slots

    def __call__(self, step: Expr | int) -> View:
        if self.slots is not None:
            return self.slots.view(step)
        return View(self.matrix.buffer, (*self.matrix.indices, Point(expr(step) % self.per_row)))

    def shift(self, step: Expr | int) -> list[Value]:
        return self.slots.shift(step) if self.slots is not None else []


def _weight_slots(emitter: Emitter, matrix: View, per_row: int, shape: tuple[int, ...]) -> _Matrix:
    """Weights move up; the originals stay, since the next prompt needs them in place."""
    if emitter.mesh.rows == 1:
        return _Matrix(matrix, per_row, None)
    dtype = matrix.buffer_type.dtype
    slots = Slots(emitter, "weight_chunks", per_row, shape, dtype, rings.ring(emitter, "y"))
    emitter.compute("copy", View(slots.buffer, (window(0, per_row),)), matrix)
    return _Matrix(matrix, per_row, slots)


class Attention:
    """dist-GEMM-T for the scores and MeshGEMM for the weighted values of one layer."""

    def __init__(self, emitter: Emitter, cache: Place) -> None:
        self.emitter = emitter
        self.cache = cache
        self.tiling = emitter.tiling
        segment = self.tiling.segment
        self.across = rings.ring(emitter, "xd") if segment > 1 else None
        self.along = rings.ring(emitter, "y") if emitter.mesh.rows > 1 else None
        self.groups = self.tiling.key_block
        self.shared = self.tiling.query_block // self.groups
        self.chunk_lanes = self.tiling.row_lanes // self.tiling.chunks_y

    def scores(self, queries: Place, out: Place, dtype: DType) -> None:
        """Scores of all keys: keys move along y, accumulators along xd.

        Step t of core (i, c) works on key chunk (a*i + b*c + t) mod n, so that after n steps each
        accumulator is back where the weighted values want it.
        """
        emitter, tiling = self.emitter, self.tiling
        keys = self.key_chunks("key_chunks", 0)
        rows, lanes = window(0, emitter.rows), window(0, emitter.chunk_rows)
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
            emitter.compute("copy", score_slot(emitter, out, m), last)

    def values(self, weights: Place, out: Place, dtype: DType) -> None:
        """Weighted values: weights move along xd, values along y."""
        emitter, tiling = self.emitter, self.tiling
        chunks = self.key_chunks("value_chunks", 1)
        rows, lanes = window(0, emitter.rows), window(0, emitter.chunk_rows)
        shape = (tiling.row_lanes, tiling.query_block, self.chunk_lanes)
        moving = Slots(emitter, "weight_of_keys", tiling.chunks_x, shape, dtype, self.across)
        with emitter.loop("m", tiling.chunks_x) as m:
            source = score_slot(emitter, weights, m)
            emitter.compute("copy", moving.view(m, rows, Whole(), lanes), source)
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

    def key_chunks(self, name: str, which: int) -> Slots:
        """The cached rows cut into chunks (row u is in chunk u mod a), aligned along the ring."""
        emitter, tiling = self.emitter, self.tiling
        per_row, lane = tiling.chunks_y, tiling.lane_block
        dtype = getattr(self.cache.buffer.type, "dtype", DType.F32)
        shape = (self.groups, self.chunk_lanes, lane)
        slots = Slots(emitter, name, per_row, shape, dtype, self.along)
        lanes = window(0, emitter.chunk_rows)
        with emitter.loop("c", per_row) as c:
            part = window(c, emitter.chunk_rows, per_row)
            cached = View(self.cache.buffer, (*self.cache.prefix, point(which), Whole(), part))
            emitter.compute("copy", slots.view(c, Whole(), lanes), cached)
        if tiling.segment == 1:
            return slots
        ahead = index_of("xd") * tiling.chunks_x
        if self.along is not None:
            with emitter.loop("a", tiling.chunks_x * (tiling.segment - 1)) as step:
                moved = slots.shift(step, Whole(), lanes, when=Cond.gt(ahead, step))
                emitter.wait(*moved)
        slots.rotate(ahead, Whole(), lanes)
        return slots

    def heads_of(self, place: Place) -> View:
        """Queries or outputs as ``[groups, heads per group, rows, lanes]``."""
        shape = (self.groups, self.shared, self.tiling.lane_block)
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

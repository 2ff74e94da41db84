"""Distributed products of many rows: MeshGEMM and Cannon, SUMMA, allgather (WaferLLM section 5).

Rows of the left operand lie over y and its contracted dim over x; the contracted dim of the right
operands lies over y and their other dims over x, as those of the result do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import tensor_type
from meshc.ir.module import Param, Port
from meshc.ir.ops import mesh
from meshc.ir.types import DType, Split, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Symbol, View, Whole
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.chunks import Chunks
from meshc.passes.tile.expand.emitter import Emitter, Place, expr, point, window
from meshc.passes.tile.expand.packing import LaneMap
from meshc.passes.tile.expand.slots import Slots, Turn, align
from meshc.passes.tile.expand.weights import Weights


@dataclass(frozen=True)
class Product:
    """One product to expand.

    ``left`` is where the left operand lies, or the input of the program that it is; ``rights`` are
    parameters, side by side; ``splits`` those of the contracted dims of the left operand.
    """

    op: mesh.Gemm
    left: Place | Param
    rights: list[Value]
    splits: tuple[Split, ...]
    chunks: Chunks

    @property
    def dtype(self) -> DType:
        """Element type of the left operand."""
        return tensor_type(self.op.operands[0]).dtype

    @property
    def right_aligned(self) -> bool:
        """Whether the host places the right operands skewed."""
        layout = tensor_type(self.rights[0]).layout
        return any(s.skew for s in layout.splits) if layout else False


def gemm(emitter: Emitter, weights: Weights, product: Product, out: Place) -> None:
    """Expand ``product`` by its algorithm."""
    _ALGORITHMS[product.op.algo](emitter, weights, product, emitter.flat(out))


def _cyclic_shift(emitter: Emitter, weights: Weights, product: Product, target: View) -> None:
    """Align, then compute and shift: MeshGEMM on interleaved axes, Cannon on natural ones."""
    chunks = product.chunks
    rows = row_index(emitter)
    if chunks.count == 1:
        left, right = _whole(emitter, weights, product)
        emitter.compute("gemm", target, left, right, accumulate=False, transposed=False)
        return
    moving = _moving_left(emitter, product)
    stationary, aligned = _moving_right(emitter, weights, product)
    turns = []
    given = isinstance(product.left, Param)
    if not product.op.left_aligned and emitter.mesh.rows > 1:
        ahead, stride = chunks.ahead_left, chunks.per_row
        both = given or product.op.both_ways
        turns += _turn(
            emitter, moving, emitter.mesh.across, ahead, stride, chunks.count, both, rows
        )
    if not aligned and isinstance(stationary, Slots):
        ahead, stride = chunks.ahead_right, chunks.per_column
        turns += _turn(emitter, stationary, emitter.mesh.down, ahead, stride, chunks.count, given)
    align(emitter, turns)
    if isinstance(product.left, Place):
        moving.settle(*rows)
    emitter.compute("fill", target, value=0.0)

    def multiply(step: Expr | int) -> None:
        a, b = moving.view(step, *rows), stationary.view(step)
        emitter.compute("gemm", target, a, b, accumulate=True, transposed=False)

    with emitter.loop("t", chunks.count - 1) as t:
        tokens = moving.shift(t, *rows) + stationary.shift(t)
        multiply(t)
        if tokens:
            emitter.wait(*tokens)
    multiply(chunks.count - 1)


def _turn(
    emitter: Emitter,
    slots: Slots,
    axis: str,
    ahead: Expr,
    stride: int,
    chunks: int,
    both_ways: bool,
    rest: tuple[Index, ...] = (),
) -> list[Turn]:
    """The alignment of one operand; a ring of one core turns where it is. A second ring is for
    products of inputs, and for those of which ``select-collective`` says that routes are free."""
    if slots.channel is None:
        slots.offset = ahead
        return []
    back = rings.ring(emitter, axis, 1) if both_ways and chunks > 2 * stride else None
    return [Turn(slots, ahead, stride, chunks, back, rest)]


def _whole(emitter: Emitter, weights: Weights, product: Product) -> tuple[View, View]:
    """Both operands of a mesh of one core."""
    matrix = weights.gemm(
        product.rights, product.op.contract, product.splits, product.chunks, False
    )
    right = View(matrix.buffer, (*matrix.indices, point(0)))
    if isinstance(product.left, Place):
        return emitter.flat(product.left), right
    slots = _left_input(emitter, product, 0)
    return View(slots, (point(0), *row_index(emitter))), right


def _moving_left(emitter: Emitter, product: Product) -> Slots:
    """The left operand in chunks that move along x, its own buffer if it is an input."""
    chunks = product.chunks
    channel = rings.ring(emitter, emitter.mesh.across) if emitter.mesh.columns > 1 else None
    if isinstance(product.left, Param):
        buffer = _left_input(emitter, product, 1 if channel else 0)
        return Slots.over(emitter, buffer, chunks.per_column, channel)
    capacity = emitter.tiling.row_lanes
    shape = (capacity, chunks.lanes)
    slots = Slots(emitter, "left_chunks", chunks.per_column, shape, product.dtype, channel)
    _cut(emitter, product.left, chunks, slots.view, product.dtype)
    return slots


def _cut(
    emitter: Emitter, left: Place, chunks: Chunks, slot: Callable[..., View], dtype: DType
) -> None:
    """Copy the left operand into chunks, padded with zeros to a whole number of them."""
    rows = window(0, emitter.rows)
    flat = emitter.flat(left)
    if chunks.per_column == 1:
        emitter.compute("copy", slot(0, rows), flat)
        return
    source, first = _whole_chunks(emitter, left, chunks.per_column * chunks.lanes, dtype)
    with emitter.loop("c", chunks.per_column) as c:
        part = View(source, (rows, window(c * chunks.lanes + first, chunks.lanes)))
        emitter.compute("copy", slot(c, rows), part)


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


def _left_input(emitter: Emitter, product: Product, spare: int) -> Value:
    """Declare an input of the program in chunks ``[chunks, rows, lanes]`` as the host places it."""
    assert isinstance(product.left, Param)
    value, chunks = product.left.value, product.chunks
    shape = (chunks.per_column + spare, emitter.tiling.row_lanes, chunks.lanes)
    buffer = emitter.buffer(value.name, shape, tensor_type(value).dtype, "in")
    where = [Cond.lt(Expr.var("s"), chunks.per_column)] if spare else []
    slot = chunks.left(Expr.var("s"), product.op.left_aligned)
    left_port(emitter, product, buffer, slot, where)
    return buffer


def left_port(
    emitter: Emitter, product: Product, buffer: Value, slot: Expr, where: list[Cond]
) -> None:
    """The port of a left operand in a buffer ``[s, i, q]`` whose slot s holds chunk ``slot``."""
    assert isinstance(product.left, Param)
    value, chunks = product.left.value, product.chunks
    kind = tensor_type(value)
    lane_map = LaneMap(emitter)
    lane_map.add([emitter.row_dim], kind, Expr.var("i"))
    contract = product.op.contract
    lanes = lane_map.add(contract, kind, Expr.var("lane"), chunks.parts(), product.splits)
    element = tuple(lane_map.elements.get(d, Expr.const(0)) for d in kind.dims)
    inside = lane_map.where(*where, chunks.within(lanes))
    tensor = TensorType(kind.dtype, kind.dims)
    lets = tuple(chunks.lets(slot))
    emitter.port(Port(value.name, "in", tensor, buffer, ("s", "i", "q"), lets, element, inside))


class Stationary:
    """The right operand where a column is one core: chunks stay, steps go through them."""

    def __init__(self, matrix: View, count: int) -> None:
        self.matrix, self.count = matrix, count

    def view(self, step: Expr | int) -> View:
        """The chunk of ``step``."""
        return View(self.matrix.buffer, (*self.matrix.indices, point(expr(step) % self.count)))

    def shift(self, step: Expr | int) -> list[Value]:
        """Nothing moves."""
        return []


def _moving_right(
    emitter: Emitter, weights: Weights, product: Product
) -> tuple[Slots | Stationary, bool]:
    """The right operand in chunks that move along y, and whether they are aligned: its own buffer
    if it is an input, which the host loads anew; of weights a copy, as the next run needs them."""
    chunks = product.chunks
    fresh = all(weights.stacks[v].role == "in" for v in product.rights)
    channel = rings.ring(emitter, emitter.mesh.down) if emitter.mesh.rows > 1 else None
    aligned = product.right_aligned or channel is None or emitter.mesh.columns == 1
    spare = 1 if fresh and channel else 0
    given = (product.rights, product.op.contract, product.splits, chunks)
    matrix = weights.gemm(*given, aligned, spare)
    if channel is None:
        return Stationary(matrix, chunks.per_row), aligned
    if fresh:
        return Slots.over(emitter, matrix.buffer, chunks.per_row, channel), aligned
    return _copied(emitter, matrix, chunks, channel), aligned


def _copied(emitter: Emitter, matrix: View, chunks: Chunks, channel: Symbol) -> Slots:
    kind = matrix.buffer_type
    shape = kind.shape[-2:]
    slots = Slots(emitter, "weight_chunks", chunks.per_row, shape, kind.dtype, channel)
    emitter.compute("copy", View(slots.buffer, (window(0, chunks.per_row),)), matrix)
    return slots


def _allgather(emitter: Emitter, weights: Weights, product: Product, target: View) -> None:
    """Every core gathers the rows of the left operand and the columns of the right ones that it
    needs, then multiplies alone: what clusters of GPUs do (section 5.1)."""
    chunks = product.chunks
    rows = row_index(emitter)
    left = _Gathered(emitter, emitter.mesh.across, chunks.count, chunks.per_column)
    right = _Gathered(emitter, emitter.mesh.down, chunks.count, chunks.per_row)
    a = _gathered_left(emitter, product, left)
    b = _gathered_right(emitter, weights, product, right)
    left.run(a, rows, right, b)
    total = View(target.buffer, target.indices, (expr(1), *target.shape()), ())
    views = View(a, (Whole(), *rows) if rows else ()), View(b)
    emitter.compute("gemm", total, *views, accumulate=False, transposed=False)


@dataclass(frozen=True)
class _Gathered:
    """All ``count`` chunks of an operand, of which ``own`` are a core's, gathered along an axis."""

    emitter: Emitter
    axis: str
    count: int
    own: int

    @property
    def first(self) -> Expr:
        """A core's first own chunk."""
        return self.emitter.index_of(self.axis) * self.own

    @property
    def steps(self) -> int:
        """Blocks that come from other cores."""
        return self.count // self.own - 1

    def is_own(self) -> Cond:
        """That slot ``s`` is one of the core's own."""
        return Cond.eq(Expr.var("s") // self.own, self.emitter.index_of(self.axis))

    def pass_on(self, buffer: Value, step: Expr, rest: tuple[Index, ...]) -> list[Value]:
        """Give the block that came last to the next core."""
        emitter = self.emitter
        if not self.steps:
            return []
        channel = rings.ring(emitter, self.axis)

        def block(number: Expr) -> View:
            start = number % (self.steps + 1) * self.own
            index = window(start, self.own) if self.own > 1 else point(start)
            return View(buffer, (index, *rest))

        more = Cond.lt(step, self.steps)
        rank = emitter.index_of(self.axis)
        sent = emitter.send(channel, block(rank + step), when=more)
        return [sent, emitter.recv(channel, block(rank + step + 1), when=more)]

    def run(self, buffer: Value, rest: tuple[Index, ...], other: _Gathered, theirs: Value) -> None:
        """Gather this operand and the other one at once."""
        steps = max(self.steps, other.steps)
        if not steps:
            return
        with self.emitter.loop("g", steps) as step:
            tokens = self.pass_on(buffer, step, rest) + other.pass_on(theirs, step, ())
            self.emitter.wait(*tokens)


def _gathered_left(emitter: Emitter, product: Product, gathered: _Gathered) -> Value:
    """The buffer of all chunks of the left operand, a core's own in their places."""
    chunks = product.chunks
    shape = (chunks.count, emitter.tiling.row_lanes, chunks.lanes)
    if isinstance(product.left, Param):
        name = product.left.value.name
        buffer = emitter.buffer(name, shape, product.dtype, "in")
        left_port(emitter, product, buffer, Expr.var("s"), [gathered.is_own()])
        return buffer
    buffer = emitter.buffer("left_chunks", shape, product.dtype)

    def slot(c: Expr | int, *rest: Index) -> View:
        return View(buffer, (point(gathered.first + c), *rest))

    _cut(emitter, product.left, chunks, slot, product.dtype)
    return buffer


def _gathered_right(
    emitter: Emitter, weights: Weights, product: Product, gathered: _Gathered
) -> Value:
    """The buffer of all chunks of the right operands, a core's own in their places: that of the
    operands themselves, but of weights of several layers a copy, as each layer has its own."""
    chunks = product.chunks
    given = (product.rights, product.op.contract, product.splits, chunks)
    if weights.stacks[product.rights[0]].layers is None:
        return weights.gemm(*given, False, everything=gathered.is_own()).buffer
    matrix = weights.gemm(*given, False)
    kind = matrix.buffer_type
    copy = emitter.buffer("right_chunks", (chunks.count, *kind.shape[-2:]), kind.dtype)
    emitter.compute("copy", View(copy, (window(gathered.first, gathered.own),)), matrix)
    return copy


def _summa(emitter: Emitter, weights: Weights, product: Product, target: View) -> None:
    """In step t the owners of chunk t hand it along their rows and columns, while all multiply the
    chunks of the step before; without room for two panels of each, the chunks of step t."""
    chunks = product.chunks
    rows = row_index(emitter)
    left, right = _left_panels(emitter, product), _right_panels(emitter, weights, product)
    ahead = 1 if _has_room(emitter, (left, right)) else 0
    for panels in (left, right):
        panels.declare(1 + ahead)
    emitter.compute("fill", target, value=0.0)

    def multiply(step: Expr) -> None:
        a, b = left.view(step, rows), right.view(step, ())
        emitter.compute("gemm", target, a, b, accumulate=True, transposed=False)

    with emitter.loop("t", chunks.count) as t:
        tokens = left.fetch(t, rows) + right.fetch(t, ())
        if ahead:
            with emitter.under(Cond.ge(t, 1)):
                multiply(t - 1)
        if tokens:
            emitter.wait(*tokens)
        if not ahead:
            multiply(t)
    if ahead:
        multiply(Expr.const(chunks.count - 1))


class _Panels:
    """One operand of SUMMA: its chunks, ``per_core`` on each core of ``axis``, and the panels that
    all cores of a line have of it. A line of one core needs none."""

    def __init__(self, emitter: Emitter, axis: str, per_core: int, chunks: View, name: str) -> None:
        self.emitter, self.axis, self.per_core, self.chunks = emitter, axis, per_core, chunks
        self.name = name
        self.size = emitter.mesh.size(axis)
        self.panels: Value | None = None
        self.depth = 0

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel."""
        kind = self.chunks.buffer_type
        return prod(kind.shape[-2:]) * kind.dtype.bytes if self.size > 1 else 0

    def declare(self, depth: int) -> None:
        """Make room for ``depth`` panels."""
        self.depth = depth
        if self.size > 1:
            kind = self.chunks.buffer_type
            self.panels = self.emitter.buffer(self.name, (depth, *kind.shape[-2:]), kind.dtype)

    def own(self, step: Expr, rest: tuple[Index, ...]) -> View:
        """The chunk of ``step`` where it lies on its owner."""
        slot = point(step % self.per_core)
        return View(self.chunks.buffer, (*self.chunks.indices, slot, *rest))

    def view(self, step: Expr, rest: tuple[Index, ...]) -> View:
        """The chunk of ``step`` where it is multiplied."""
        if self.panels is None:
            return self.own(step, rest)
        return View(self.panels, (point(step % self.depth), *rest))

    def fetch(self, step: Expr, rest: tuple[Index, ...]) -> list[Value]:
        """Bring the chunk of ``step`` to every core of the line, its owner among them."""
        if self.panels is None:
            return []
        emitter, own, panel = self.emitter, self.own(step, rest), self.view(step, rest)
        owner, here = step // self.per_core, self.emitter.index_of(self.axis)
        up = rings.in_turn(emitter, self.axis, 1, self.per_core)
        down = rings.in_turn(emitter, self.axis, -1, self.per_core)
        mine = Cond.eq(here, owner)
        sent = [
            emitter.send(up, own, when=mine & Cond.le(here, self.size - 2)),
            emitter.send(down, own, when=mine),
        ]
        got = [
            emitter.recv(up, panel, when=Cond.gt(here, owner)),
            emitter.recv(down, panel, when=Cond.le(here, owner)),
        ]
        return sent + got


def _left_panels(emitter: Emitter, product: Product) -> _Panels:
    """Panels of the left operand, which travel along rows."""
    chunks = product.chunks
    if isinstance(product.left, Param):
        own = _left_input(emitter, product, 0)
    else:
        shape = (emitter.tiling.row_lanes, chunks.lanes)
        slots = Slots(emitter, "left_chunks", chunks.per_column, shape, product.dtype, None)
        _cut(emitter, product.left, chunks, slots.view, product.dtype)
        own = slots.buffer
    return _Panels(emitter, emitter.mesh.across, chunks.per_column, View(own), "left_panels")


def _right_panels(emitter: Emitter, weights: Weights, product: Product) -> _Panels:
    """Panels of the right operands, which travel along columns."""
    chunks = product.chunks
    own = weights.gemm(product.rights, product.op.contract, product.splits, chunks, False)
    return _Panels(emitter, emitter.mesh.down, chunks.per_row, own, "right_panels")


def _has_room(emitter: Emitter, operands: tuple[_Panels, ...]) -> bool:
    """Whether a core can hold two panels of each operand beside all that is declared so far."""
    room = emitter.source.the_device().room_bytes
    used = sum(buffer.type.bytes for buffer in emitter.module.buffers)
    return room is None or used + 2 * sum(o.panel_bytes for o in operands) <= room


def row_index(emitter: Emitter) -> tuple[Index, ...]:
    """The rows of this run as an index; none where that is all the rows there are."""
    whole = emitter.rows.is_const and emitter.rows.constant == emitter.tiling.row_lanes
    return () if whole else (window(0, emitter.rows),)


_ALGORITHMS: dict[str, Callable[[Emitter, Weights, Product, View], None]] = {
    "cyclic_shift": _cyclic_shift,
    "cannon": _cyclic_shift,
    "summa": _summa,
    "allgather": _allgather,
}

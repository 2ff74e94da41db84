"""``A @ transpose(B)`` without a transpose: dist-GEMM-T (WaferLLM section 5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import tensor_type
from meshc.ir.module import Port
from meshc.ir.ops import mesh
from meshc.ir.types import TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, Place
from meshc.passes.tile.expand.gemm import row_index
from meshc.passes.tile.expand.packing import LaneMap
from meshc.passes.tile.expand.slots import Slots, Turn, align


@dataclass(frozen=True)
class Transposed:
    """The product of ``left``, which stays, with an input ``right`` whose rows move along y, while
    the sums move along x.

    Rows of the right operand are cut into lcm(rows, columns) chunks. Step t of core (i, j) works
    on chunk (a*i + b*j + t) mod n for a chunks per row and b per column, so that after n steps all
    sums are back: the result lies skewed, and no step goes further than to the next rank.
    """

    emitter: Emitter
    op: mesh.GemmT
    left: Place

    @property
    def right(self) -> Value:
        """The moving operand."""
        return self.op.tensors()[1]

    @property
    def new(self) -> str:
        """The dim that the right operand adds."""
        return next(d for d in tensor_type(self.right).dims if d not in self.op.contract)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return lcm(self.emitter.mesh.rows, self.emitter.mesh.columns)

    @property
    def lanes(self) -> int:
        """Rows of the right operand in a chunk."""
        return ceil_div(self.emitter.source.dims[self.new], self.chunks)

    @property
    def per_row(self) -> int:
        """Chunks of the right operand on a core."""
        return self.chunks // self.emitter.mesh.rows

    @property
    def per_column(self) -> int:
        """Chunks of sums on a core."""
        return self.chunks // self.emitter.mesh.columns

    @property
    def ahead(self) -> Expr:
        """By how many chunks the right operand of a column is turned."""
        return self.emitter.index_of(self.emitter.mesh.across) * self.per_column

    def expand(self) -> None:
        """The statements, and the ports of the right operand and of the result."""
        emitter = self.emitter
        rows = row_index(emitter)
        moving = self._moving()
        across = rings.ring(emitter, emitter.mesh.across) if emitter.mesh.columns > 1 else None
        shape = (emitter.tiling.row_lanes, self.lanes)
        total = emitter.source.accumulate()
        sums = Slots(emitter, self.op.result.name, self.per_column, shape, total, across)
        emitter.mark(sums.buffer, "out")
        self._result_port(sums)
        emitter.compute("fill", View(sums.buffer), value=0.0)
        with emitter.loop("t", self.chunks) as t:
            tokens = moving.shift(t, when=Cond.le(t, self.chunks - 2))
            emitter.compute(
                "gemm",
                sums.view(t, *rows),
                emitter.flat(self.left),
                moving.view(t),
                accumulate=True,
                transposed=True,
            )
            tokens += sums.shift(t, *rows)
            if tokens:
                emitter.wait(*tokens)

    def _moving(self) -> Slots:
        """The right operand, turned by the host or here."""
        emitter = self.emitter
        layout = tensor_type(self.right).layout
        by_host = any(s.skew for s in layout.splits) if layout else False
        channel = rings.ring(emitter, emitter.mesh.down) if emitter.mesh.rows > 1 else None
        slots = Slots.over(
            emitter, self._input(by_host, channel is not None), self.per_row, channel
        )
        if by_host or emitter.mesh.columns == 1:
            return slots
        if channel is None:
            slots.offset = self.ahead
            return slots
        back = (
            rings.ring(emitter, emitter.mesh.down, 1) if self.chunks > 2 * self.per_column else None
        )
        align(emitter, [Turn(slots, self.ahead, self.per_column, self.chunks, back)])
        return slots

    def _input(self, turned: bool, spare: bool) -> Value:
        """Declare the buffer ``[chunks, rows, lanes]`` of the right operand and its port."""
        emitter = self.emitter
        kind = tensor_type(self.right)
        shape = (self.per_row + spare, self.lanes, self.left.width)
        buffer = emitter.buffer(self.right.name, shape, kind.dtype, "in")
        chunk = self.emitter.index_of(self.emitter.mesh.down) * self.per_row + Expr.var("s")
        chunk = (chunk + self.ahead) % self.chunks if turned else chunk
        lane_map = LaneMap(emitter)
        lanes = lane_map.add(self.op.contract, tensor_type(self.op.operands[0]), Expr.var("q"))
        assert lanes == self.left.width
        elements = {**lane_map.elements, self.new: Expr.var("k") * self.lanes + Expr.var("j")}
        inside = lane_map.where(Cond.lt(Expr.var("s"), self.per_row) if spare else Cond.true())
        emitter.port(
            Port(
                self.right.name,
                "in",
                TensorType(kind.dtype, kind.dims),
                buffer,
                ("s", "j", "q"),
                (("k", chunk),),
                tuple(elements[d] for d in kind.dims),
                inside,
            )
        )
        return buffer

    def _result_port(self, sums: Slots) -> None:
        """Chunk m of the sums ends in slot (m + n) of its ring buffer."""
        emitter = self.emitter
        kind = tensor_type(self.op.result)
        place = (Expr.var("s") - self.chunks) % sums.size
        own = self.emitter.index_of(self.emitter.mesh.down) * self.per_row + self.ahead
        lane_map = LaneMap(emitter)
        lane_map.add([emitter.row_dim], kind, Expr.var("i"))
        elements = {**lane_map.elements, self.new: Expr.var("k") * self.lanes + Expr.var("j")}
        inside = lane_map.where(Cond.lt(Expr.var("m"), self.per_column))
        emitter.port(
            Port(
                self.op.result.name,
                "out",
                TensorType(sums.buffer_type.dtype, kind.dims),
                sums.buffer,
                ("s", "i", "j"),
                (("m", place), ("k", (own + Expr.var("m")) % self.chunks)),
                tuple(elements.get(d, Expr.const(0)) for d in kind.dims),
                inside,
            )
        )

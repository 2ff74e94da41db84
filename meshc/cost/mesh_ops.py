"""What mesh-level ops cost, each by itself, before anything has chosen their algorithms.

Collectives and products of many rows are counted with the cheapest algorithm that the device has
for them; ``select-collective`` and ``select-gemm`` choose later, for all of them together. Nothing
overlaps here but what an algorithm overlaps itself. Rows of a prompt count as many as there are
at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod

from meshc.cost.operations import Tile, merge, message, product, shifts
from meshc.cost.products import Tiles, product_costs
from meshc.cost.reductions import candidates, ring_cost
from meshc.cost.terms import NOTHING, Cost
from meshc.devices import Device
from meshc.ir.core import Op, Operand
from meshc.ir.mesh import Mesh
from meshc.ir.ops import mesh as ops
from meshc.ir.types import TensorType

TypeOf = Callable[[Operand], TensorType]
_FREE = (ops.Repeat, ops.Yield, ops.Return)


@dataclass
class MeshCosts:
    """Predictions for a mesh of a device; ``extents`` are those of the module's dims."""

    mesh: Mesh
    device: Device
    extents: Mapping[str, int]

    def __post_init__(self) -> None:
        self._reductions: dict[tuple[str, int], Cost] = {}

    def of(self, op: Op, type_of: TypeOf) -> Cost:
        """Cycles of ``op``, whose operands and results have the types that ``type_of`` gives."""
        if isinstance(op, _FREE):
            return NOTHING
        if isinstance(op, (ops.AllReduce, ops.Reduce)):
            words = self.words(op, type_of)
            work = merging(op, type_of, self.extents, self.device)
            return self.reduction(op.axis, words) if work is None else self.tree(op, words, work)
        if isinstance(op, ops.Collective):
            return shifts(self.mesh.size(op.axis) - 1, self.words(op, type_of), 2, self.device)
        if isinstance(op, (ops.Gemm, ops.GemmT)):
            return self.shifted(op, type_of)
        if isinstance(op, ops.Gemv):
            return sum((self.local(op, right, type_of) for right in op.operands[1:]), NOTHING)
        if isinstance(op, ops.Append):
            return message(self.words(op, type_of, op.operands[1::2]), 2, self.device)
        given = op.result if isinstance(op, ops.Part) else op.operands[0]
        return self.elementwise(given, type_of)

    def reduction(self, axis: str, words: int) -> Cost:
        """The cheapest tree, or ring where every core has a word to begin with."""
        known = self._reductions.get((axis, words))
        if known is None:
            size = self.mesh.size(axis)
            segments = self.mesh.segments if axis == self.mesh.across else 1
            ways = [way.cost for way in candidates(size, segments, words, self.device)]
            if words >= size > 1:
                ways.append(ring_cost(size, words, self.device))
            known = min(ways, key=lambda cost: cost.total)
            self._reductions[axis, words] = known
        return known

    def tree(self, op: ops.AllReduce | ops.Reduce, words: int, work: Cost) -> Cost:
        """The cheapest tree whose cores do ``work`` on each message before they send on."""
        size = self.mesh.size(op.axis)
        segments = self.mesh.segments if op.axis == self.mesh.across else 1
        ways = candidates(size, segments, words, self.device, work=work)
        return min((way.cost for way in ways), key=lambda cost: cost.total)

    def shifted(self, op: ops.Gemm | ops.GemmT, type_of: TypeOf) -> Cost:
        """A product by cyclic shifts of both operands, or of one and the sums."""
        left, *rights = (self.local_extents(o, type_of) for o in op.operands)
        k = prod(left[d] for d in op.contract if d in left)
        m = prod(extent for d, extent in left.items() if d not in op.contract)
        n = sum(
            prod(e for d, e in r.items() if d not in op.contract and d not in left) for r in rights
        )
        turned = isinstance(op, ops.Gemm) and not op.left_aligned
        kind = type_of(op.operands[0])
        tiles = Tiles(
            self.mesh.rows, self.mesh.size(op.axis), m, k, n, kind.dtype.bytes, turned, False
        )
        return product_costs(tiles, self.device)["cyclic_shift"].cost

    def local(self, op: ops.Gemv, right: Operand, type_of: TypeOf) -> Cost:
        """The product of what a core holds of both sides."""
        left, matrix = (self.local_extents(o, type_of) for o in (op.operands[0], right))
        k = prod(left[d] for d in op.contract if d in left)
        shared = [d for d in left if d in matrix and d not in op.contract]
        m = prod(e for d, e in left.items() if d not in op.contract and d not in shared)
        n = prod(e for d, e in matrix.items() if d not in op.contract and d not in shared)
        kind = type_of(right)
        one = product(Tile(m, k, n, str(kind.dtype), kind.dtype.bytes), self.device)
        return one * prod(left[d] for d in shared) + Cost(overhead=self.device.op_cycles)

    def elementwise(self, operand: Operand, type_of: TypeOf) -> Cost:
        """Each core's own lanes of ``operand`` once."""
        kind = type_of(operand)
        elements = prod(kind.local_shape(self.extents))
        return Cost(elements / self.device.lanes(str(kind.dtype)), overhead=self.device.op_cycles)

    def local_extents(self, operand: Operand, type_of: TypeOf) -> dict[str, int]:
        """Extents per core by dim."""
        kind = type_of(operand)
        return dict(zip(kind.dims, kind.local_shape(self.extents), strict=True))

    def words(self, op: Op, type_of: TypeOf, operands: list[Operand] | None = None) -> int:
        """Link words of what a core gives."""
        kinds = [type_of(o) for o in (op.operands if operands is None else operands)]
        size = sum(prod(k.local_shape(self.extents)) * k.dtype.bytes for k in kinds)
        return max(1, ceil(size / self.device.link.word_bytes))


def merging(
    op: ops.AllReduce | ops.Reduce, type_of: TypeOf, extents: Mapping[str, int], device: Device
) -> Cost | None:
    """What a core of a tree does with a message that brings softmaxes; None for other sums, which
    are taken as the words arrive."""
    if op.reduce != "softmax":
        return None
    kinds = [type_of(operand) for operand in op.operands]
    elements = [prod(kind.local_shape(extents)) for kind in kinds]
    return merge(sum(elements), elements[-1], str(kinds[0].dtype), device)

"""What mesh-level ops cost before anything has chosen their algorithms, and what they ask of R.

The cost of reductions depends on which channels they share (``Sharing``), so an op gives its
``Demand`` of reductions and channels apart from what it costs in any case. Products of many rows
are counted by the algorithm that they have, which is cyclic shifts until ``select-gemm`` chooses.
Nothing overlaps here but what an algorithm overlaps itself. Rows of a prompt count as many as there
are at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from meshc.analysis.layout.placement import most_turns
from meshc.analysis.layout.tiling import has_many_rows
from meshc.analysis.traffic.tracks import Track, cast_track, own_axis, ring_track
from meshc.cost.dispatching import dispatch_costs
from meshc.cost.emitted_csl import Call, EmittedKernels, LocalProduct, as_emitted
from meshc.cost.emitted_csl import Operand as Elements
from meshc.cost.mesh_kernels import (
    LocalShapes,
    calls_of,
    local_product,
    moved_parts,
    products_of,
)
from meshc.cost.operations import Tile, merge, message, product, shifts
from meshc.cost.products import EmittedStep, Tiles, product_costs
from meshc.cost.reductions import dealing_cost
from meshc.cost.routing_demand import NO_DEMAND, Demand, Reduced
from meshc.cost.sharing import Sharing
from meshc.cost.terms import NOTHING, Cost
from meshc.cost.track_sets import ANY, Algorithms
from meshc.devices import Device
from meshc.ir.batch import BATCH, batch_of
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.module import Module
from meshc.ir.ops import mesh as ops
from meshc.ir.types import TensorType

TypeOf = Callable[[Operand], TensorType]
_FREE = (ops.Repeat, ops.Yield, ops.Return)
_BY_ELEMENT = ("sum", "max")
"""Reductions of which a ring may deal out the elements."""


@dataclass(frozen=True)
class MeshCosts:
    """Predictions for ops of a module that is laid over ``mesh``.

    ``extents`` are those of its dims. ``rows`` is the dim whose elements a core takes as rows of
    one value: tokens of a prompt or requests of a step, or nothing; ``prompt`` says that they are
    tokens. Reductions are counted by ``sharing``. ``kernels`` knows those of emitted CSL, where the
    device has that; ``keys`` are the dims that count cached tokens.
    """

    mesh: Mesh
    device: Device
    extents: Mapping[str, int]
    rows: str
    prompt: bool
    sharing: Sharing
    kernels: EmittedKernels | None = None
    keys: frozenset[str] = frozenset()

    @staticmethod
    def of_module(module: Module, mesh: Mesh, algorithms: Algorithms = ANY) -> MeshCosts:
        """Predictions for ``module``, of the graph or the mesh level."""
        prompt, device = has_many_rows(module, module.row_dim), as_emitted(module.the_device())
        rows = module.row_dim if prompt else BATCH if batch_of(module) > 1 else ""
        free = (device.free("input_queues"), device.free("colors"))
        sharing = Sharing(mesh, device, algorithms, *free)
        kernels = EmittedKernels.of(device) if device.csl_arch is not None else None
        keys = frozenset(each.keys for each in module.attention)
        return MeshCosts(mesh, device, module.dims, rows, prompt, sharing, kernels, keys)

    def without_limits(self) -> MeshCosts:
        """These predictions where reductions may have any number of channels."""
        return replace(self, sharing=replace(self.sharing, inputs=None, colors=None, _rows={}))

    def of(self, op: Op, type_of: TypeOf = tensor_type) -> Cost:
        """Cycles of ``op`` apart from reductions. Its operands and results have the types that
        ``type_of`` gives."""
        if isinstance(op, (*_FREE, ops.AllReduce, ops.Reduce)):
            return NOTHING
        if isinstance(op, ops.Broadcast):
            along = self.device.along(op.axis)
            return message(self.words(op, type_of), self.mesh.size(op.axis), along)
        if isinstance(op, ops.Collective):
            along = self.device.along(op.axis)
            size = self.mesh.size(op.axis)
            hops = 1 if self.device.closes(op.axis, size) else 2
            return shifts(size - 1, self.words(op, type_of), hops, along)
        if isinstance(op, (ops.Gemm, ops.GemmT)):
            return self.shifted(op, type_of)
        if isinstance(op, ops.Gemv):
            products = products_of(op, self.shapes(type_of))
            return sum(map(self.product, products), NOTHING)
        if isinstance(op, ops.ExpertGemv):
            return sum((self.of_experts(op, r, type_of) for r in op.operands[2:]), NOTHING)
        if isinstance(op, ops.Dispatch):
            return self.dispatch(op, type_of)
        if isinstance(op, ops.Append):
            return self.append(op, type_of)
        calls = calls_of(op, self.shapes(type_of)) if self.kernels is not None else None
        if calls is not None:
            return self.called(calls)
        given = op.result if isinstance(op, ops.Part) else op.operands[0]
        return self.elementwise(given, type_of)

    def shapes(self, type_of: TypeOf) -> LocalShapes:
        """What a core holds of values."""
        rows = self.rows if self.prompt else ""
        return LocalShapes(self.extents, type_of, rows, self.keys)

    def called(self, calls: list[Call]) -> Cost:
        """Kernels of emitted CSL, one after the other."""
        assert self.kernels is not None
        return Cost(sum(map(self.kernels.cycles, calls)))

    def product(self, one: LocalProduct) -> Cost:
        """A product of what a core holds of both sides."""
        if self.kernels is not None:
            return Cost(self.kernels.cycles(one))
        tile = Tile(one.m, one.k, one.n, str(one.dtype), one.dtype.bytes)
        return product(tile, self.device) * one.batch + Cost(overhead=self.device.op_cycles)

    def dispatch(self, op: ops.Dispatch, type_of: TypeOf = tensor_type) -> Cost:
        """Rows travel by their way, or by the best where none is chosen yet; then each core goes
        through the places of its experts."""
        cost, size = self.elementwise(op.results[0], type_of), self.mesh.size(op.axis)
        if size == 1 or not op.along:
            return cost
        ways = dispatch_costs(size, self.sent_words(op, type_of), self.device, op.axis)
        return cost + (ways.get(op.algo) or min(ways.values(), key=lambda c: c.total))

    def sent_words(self, op: ops.Dispatch, type_of: TypeOf = tensor_type) -> int:
        """Link words of what a core has of the rows, and of gates that lie as those do."""
        x, gates = op.operands
        travels = op.along in type_of(gates).dims
        return self.words(op, type_of, [x, gates] if travels else [x])

    def of_experts(self, op: ops.ExpertGemv, right: Operand, type_of: TypeOf) -> Cost:
        """Products of the rows that a core's experts are sent where each expert is as likely as any
        other: of as many experts as are then expected to have rows, with as many as those have.
        Some core has an expert with rows, for which the others wait."""
        left, matrix = (self.local_extents(o, type_of) for o in (op.operands[0], right))
        experts, k = left[op.dim], prod(left[d] for d in op.contract)
        rows = prod(left.values()) // max(experts * k, 1)
        n = prod(matrix.values()) // max(experts * k, 1)
        share, asked = self.asked_of(op, rows)
        kind = type_of(right)
        tile = Tile(ceil(rows * share / asked), k, n, str(kind.dtype), kind.dtype.bytes)
        busy = max(1.0, asked * experts)
        return product(tile, self.device) * busy + Cost(overhead=self.device.op_cycles)

    def asked_of(self, op: ops.ExpertGemv, rows: int) -> tuple[float, float]:
        """The share of ``rows`` that an expert is sent, and how likely it is sent any."""
        share = op.count / self.extents[op.dim] if op.count else 1.0
        return share, 1 - (1 - share) ** rows

    def append(self, op: ops.Append, type_of: TypeOf = tensor_type) -> Cost:
        """Rows enter a cache: a copy and, where old ones move up, a message to the next row."""
        calls = calls_of(op, self.shapes(type_of)) if self.kernels is not None else None
        cost = NOTHING if calls is None else self.called(calls)
        for new in op.operands[1::2] if calls is None else ():
            kind = type_of(new)
            elements = prod(kind.local_shape(self.extents))
            each = Cost(elements / self.device.lanes(str(kind.dtype)))
            cost += each + Cost(overhead=self.device.op_cycles)
        if self.shifts_rows(op):
            along = self.device.along(self.mesh.down)
            cost += message(self.words(op, type_of, op.operands[1::2]), 2, along)
        return cost

    def shifts_rows(self, op: ops.Append) -> bool:
        """Whether ``op`` moves rows that are in the cache already."""
        return op.policy == "shift" and not self.prompt and self.mesh.rows > 1

    def demand(self, op: Op, type_of: TypeOf = tensor_type) -> Demand:
        """The reduction that ``op`` is, or the channels that it takes."""
        mesh = self.mesh
        if isinstance(op, (ops.AllReduce, ops.Reduce)):
            return Demand({self.reduced(op, type_of): 1})
        if isinstance(op, ops.Broadcast):
            return Demand(tracks=_tracks(mesh, (op.axis,), cast_track))
        if isinstance(op, ops.Dispatch):
            return Demand(tracks=self.dispatch_tracks(op))
        if isinstance(op, (ops.Gemm, ops.GemmT)):
            return Demand(tracks=_tracks(mesh, (mesh.down, op.axis), ring_track))
        if isinstance(op, ops.Collective):
            return Demand(tracks=_tracks(mesh, (op.axis,), ring_track))
        if isinstance(op, ops.Append) and self.shifts_rows(op):
            return Demand(tracks=_tracks(mesh, (mesh.down,), ring_track))
        return NO_DEMAND

    def dispatch_tracks(self, op: ops.Dispatch) -> frozenset[Track]:
        """What a dispatch goes on: a ring, unless cores multicast in turn, whose channels are their
        own; and a multicast of what the first core gathers."""
        if not op.along or op.algo in ("local", "multicast"):
            return frozenset()
        ring = _tracks(self.mesh, (op.axis,), ring_track)
        gathers = op.algo == "gather"
        return ring | (_tracks(self.mesh, (op.axis,), cast_track) if gathers else frozenset())

    def reduced(self, op: ops.AllReduce | ops.Reduce, type_of: TypeOf = tensor_type) -> Reduced:
        """What ``op`` reduces, in words of a core."""
        size, part, dealing = self.mesh.size(op.axis), 0, NOTHING
        if op.reduce in _BY_ELEMENT:
            kinds = [type_of(value) for value in op.operands]
            rows = [self.local_extents(v, type_of).get(self.rows, 1) for v in op.operands]
            lanes = sum(
                prod(kind.local_shape(self.extents)) // count
                for kind, count in zip(kinds, rows, strict=True)
            )
            elements, dtype = rows[0] * ceil(lanes / size), kinds[0].dtype
            part = ceil(elements * dtype.bytes / self.device.link.word_bytes)
            if str(dtype) in self.device.dtypes:
                copied = rows[0] * lanes, elements * size
                dealing = dealing_cost(*copied, size, str(dtype), self.device)
        words = self.words(op, type_of)
        everywhere = isinstance(op, ops.AllReduce)
        axis, work = own_axis(self.mesh, op.axis), self.merging(op, type_of)
        return Reduced(axis, words, part, everywhere, work, dealing)

    def merging(self, op: ops.AllReduce | ops.Reduce, type_of: TypeOf) -> Cost | None:
        """What a core of a tree does with a message that brings softmaxes; None for other sums,
        which are taken as the words arrive."""
        if op.reduce != "softmax":
            return None
        kinds = [type_of(operand) for operand in op.operands]
        elements = [prod(kind.local_shape(self.extents)) for kind in kinds]
        if self.kernels is not None:
            whole = Elements((1, sum(elements)), kinds[0].dtype)
            call = Call("merge_softmax", (whole, whole), (("count", elements[-1]),))
            return self.called([call])
        return merge(sum(elements), elements[-1], str(kinds[0].dtype), self.device)

    def shifted(self, op: ops.Gemm | ops.GemmT, type_of: TypeOf) -> Cost:
        """A product by the algorithm of ``op``, which moves both operands, or one and the sums, at
        the pace of the slower axis."""
        return product_costs(self.tiles(op, type_of), self.device, self.mesh.down, op.axis)[
            op.algo
        ].cost

    def tiles(self, op: ops.Gemm | ops.GemmT, type_of: TypeOf = tensor_type) -> Tiles:
        """What a core has of a product, and what a step of it takes."""
        shapes, rights = self.shapes(type_of), op.operands[1:]
        whole = local_product(op, rights[0], shapes)
        n = sum(local_product(op, right, shapes).n for right in rights)
        turned = isinstance(op, ops.Gemm) and not op.left_aligned
        kind = type_of(op.operands[0])
        rows, columns = self.mesh.rows, self.mesh.size(op.axis)
        m = whole.m * whole.batch
        tiles = Tiles(rows, columns, m, whole.k, n, kind.dtype.bytes, turned, False)
        if self.kernels is None:
            return tiles
        return replace(tiles, emitted=self.step(op, replace(whole, n=n), tiles, type_of))

    def step(
        self, op: ops.Gemm | ops.GemmT, whole: LocalProduct, tiles: Tiles, type_of: TypeOf
    ) -> EmittedStep:
        """A step of a product as emitted CSL does it."""
        assert self.kernels is not None
        each = replace(whole, k=tiles.chunk, accumulate=True)
        if isinstance(op, ops.GemmT):
            each = replace(whole, n=ceil(whole.n * tiles.rows / tiles.steps), accumulate=True)
        cached = op.group[1:] if op.group else ()
        groups = prod(self.local_extents(op.operands[1], type_of).get(d, 1) for d in cached)
        ours, theirs = moved_parts(op, each, groups)
        words = (ours.words * (tiles.columns > 1), theirs.words * (tiles.rows > 1))
        turned, turns = int(self.turns_cache(op)), 0
        if turned or tiles.turn_left:
            cores = tiles.columns if turned else tiles.rows
            turns = most_turns(tiles.steps, tiles.steps // cores, op.both_ways)
        sums = Elements((whole.m, whole.batch * whole.n), whole.sums, ours.of_run[:1])
        copies = [Call("copy", (part, part)) for part in (ours, theirs, sums)]
        work = self.kernels.work(each)
        return EmittedStep(
            work.cycles,
            work.steps,
            words,
            (self.kernels.start(ours), self.kernels.start(theirs)),
            isinstance(op, ops.GemmT),
            turned,
            turns if words[turned] else 0,
            sum(map(self.kernels.cycles, copies)),
            self.kernels.round_,
            self.kernels.join,
            self.kernels.cycles(replace(each, chunks=tiles.steps)),
        )

    def turns_cache(self, op: ops.Gemm | ops.GemmT) -> bool:
        """Whether ``op`` is a product of attention, ahead of which cached rows turn."""
        return bool(op.group) or op.axis != self.mesh.across

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


def has_costs(module: Module) -> bool:
    """Whether ``module`` names a device whose cores compute with its types."""
    types = {module.dtype().value, module.accumulate().value}
    return module.device is not None and types <= set(module.device.dtypes)


def _tracks(
    mesh: Mesh, axes: tuple[str, ...], track: Callable[[Mesh, str], Track]
) -> frozenset[Track]:
    """The tracks of those of ``axes`` that have more than one core."""
    return frozenset(track(mesh, axis) for axis in axes if mesh.size(axis) > 1)

"""Walks a mesh-level function and expands op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import cast

from meshc.analysis.tiling import ceil_div, tiling_of
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block, Op, Operand, tensor_type
from meshc.ir.module import Function, Module, Param, Port
from meshc.ir.ops import mesh
from meshc.ir.types import DType, Layout, TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand import collectives, local, moves, rings
from meshc.passes.tile.expand.cache import Cache
from meshc.passes.tile.expand.chunks import Chunks
from meshc.passes.tile.expand.emitter import Emitter, Place, index_of
from meshc.passes.tile.expand.gemm import Product, gemm
from meshc.passes.tile.expand.gemm_t import Transposed
from meshc.passes.tile.expand.packing import LaneMap
from meshc.passes.tile.expand.products import Attention, gemv
from meshc.passes.tile.expand.weights import Stack, Weights
from meshc.support.diagnostics import fail


class FunctionExpander:
    """Gives every mesh value a place and emits the statements that compute it."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.emitter = Emitter(module, tiling_of(module))
        self.weights = Weights(self.emitter)
        self.places: dict[Value, Place] = {}
        self.caches: dict[Value, tuple[Cache, int]] = {}
        self.direct: dict[Value, Param] = {}
        self.last_use: dict[Value, Op] = {}
        self.layers: tuple[int, Expr] | None = None
        self.carried: list[Value] = []

    # --- the function and the loop over layers

    def expand(self, function: Function) -> Block:
        """The statements of the whole phase."""
        for param in function.params:
            if param.role == "weight":
                self.weights.stacks[param.value] = Stack(param.value, None, None)
            elif param.role == "in":
                self.input(param, function.body)
        self.block(function.body)
        return self.emitter.block

    def input(self, param: Param, body: Block) -> None:
        """A tensor that the host provides. What only one product reads is placed as that wants
        it; what has no rows of tokens may be placed at will."""
        kind = tensor_type(param.value)
        rows = self.module.options.get("row_dim")
        users = [op for op in body.walk() if param.value in op.operands]
        matrix = bool(users) and all(is_matrix(op, param.value) for op in users)
        if rows not in kind.dims if rows else matrix:
            self.weights.stacks[param.value] = Stack(param.value, None, None, role="in")
            return
        if len(users) == 1 and users[0] in body.ops and self.takes_inputs(users[0], param.value):
            self.direct[param.value] = param
            return
        place = self.emitter.new_place(param.value.name, kind, "in")
        self.places[param.value] = place
        roots = (kind.layout or Layout()).roots
        holds = [Cond.eq(index_of(axis), 0) for axis in roots]
        if self.emitter.mesh.regions > 1:
            holds.append(Cond.eq(Expr.var("r"), 0))
        where = Cond.all(holds) if holds else None
        self.io_port(param.value.name, "in", kind, place, where)

    def takes_inputs(self, op: Op, value: Value) -> bool:
        """Whether ``op`` declares the port of its left operand ``value`` itself."""
        return isinstance(op, mesh.Gemm) and op.operands[0] is value

    def io_port(
        self, name: str, direction: str, kind: TensorType, place: Place, where: Cond | None
    ) -> None:
        """Port of an activation: rows and lanes as its layout says."""
        lanes: list[str] = []
        lane_map = LaneMap(self.emitter, False)
        dims = self.emitter.local_dims(kind)
        for dim in dims:
            lanes.append(f"i_{dim.lower()}")
            lane_map.add([dim], kind, Expr.var(lanes[-1]))
        element = tuple(lane_map.elements.get(d, Expr.const(0)) for d in kind.dims)
        self.emitter.port(
            Port(
                name,
                "in" if direction == "in" else "out",
                TensorType(kind.dtype, kind.dims),
                place.buffer,
                tuple(lanes),
                (),
                element,
                where,
            )
        )

    def block(self, block: Block) -> None:
        """Expand the ops of ``block`` in order."""
        for op in block.ops:
            for operand in op.tensors():
                self.last_use[operand] = op
        self.join(block)
        for op in block.ops:
            self.handler(op)(op)

    def join(self, block: Block) -> None:
        """Values that travel in one message, or come from one product, share a buffer."""
        for op in block.ops:
            several = isinstance(op, (mesh.Gemv, mesh.Gemm)) and len(op.results) > 1
            if several:
                self.place_jointly(op.results)
            elif isinstance(op, mesh.AllReduce) and len(op.operands) > 1:
                values = op.tensors()
                if any(v not in self.places for v in values):
                    self.place_jointly(values)

    def place_jointly(self, values: Sequence[Value]) -> None:
        """One buffer for ``values``."""
        name = "_".join(v.name for v in values)
        kinds = [tensor_type(v) for v in values]
        self.places.update(zip(values, self.emitter.joint_places(name, kinds), strict=True))

    def handler(self, op: Op) -> Callable[[Op], None]:
        """The method named after the op's mnemonic."""
        name = op.NAME.partition(".")[2].replace("return", "returned").replace("yield", "yielded")
        method = getattr(self, name, None)
        if method is None:
            fail("unsupported-op", f"{op.NAME} has no expansion", op.span)
        return cast(Callable[[Op], None], method)

    def repeat(self, op: mesh.Repeat) -> None:
        """The loop over layers; over several regions each runs its share, one after the other."""
        emitter = self.emitter
        layers = self.module.dims[op.dim]
        regions = emitter.mesh.regions
        share = ceil_div(layers, regions)
        (body,) = op.regions
        region = Expr.var("r")
        carried = [self.places[v] for v in op.tensors()[: op.carried]]
        if regions == 1:
            self.layer_loop(op, body, share, carried, None)
        else:
            with emitter.sweep(region, regions):
                self.from_region(carried)
                self.layer_loop(op, body, share, carried, layers)
                self.to_region(carried)
            emitter.guards.append(Cond.eq(region, regions - 1))
        for value, place in zip(op.results, carried, strict=False):
            self.places[value] = place

    def from_region(self, carried: Sequence[Place]) -> None:
        """Take the carried values from the region before; a replicated one is spread over x."""
        emitter, region, column = self.emitter, Expr.var("r"), Expr.var("x")
        later = Cond.ge(region, 1)
        spread = not emitter.many_rows and emitter.mesh.columns > 1
        way = rings.next_region(emitter, spread)
        for place in carried:
            edge = later & Cond.eq(column, 0) if spread else later
            emitter.wait(emitter.recv(way, self.view(place), when=edge))
            if spread:
                cast = rings.multicast(emitter, "x")
                sent = emitter.send(cast, self.view(place), when=edge)
                got = emitter.recv(cast, self.view(place), when=later & Cond.ge(column, 1))
                emitter.wait(sent, got)

    def to_region(self, carried: Sequence[Place]) -> None:
        """Hand the carried values to the next region."""
        emitter = self.emitter
        last = emitter.mesh.columns - 1
        spread = not emitter.many_rows and last > 0
        way = rings.next_region(emitter, spread)
        more = Cond.le(Expr.var("r"), emitter.mesh.regions - 2)
        edge = more & Cond.eq(Expr.var("x"), last) if spread else more
        for place in carried:
            emitter.send(way, self.view(place), when=edge)

    def layer_loop(
        self, op: mesh.Repeat, body: Block, share: int, carried: Sequence[Place], layers: int | None
    ) -> None:
        """The body for each of a region's layers."""
        emitter = self.emitter
        with emitter.loop("layer", share) as layer:
            exists = Cond.true()
            stride = 0
            if layers is not None:
                exists = Cond.lt(layer + Expr.var("r") * share, layers)
                stride = share
            outer, self.layers = self.layers, (share, layer)
            outer_carried, self.carried = self.carried, list(body.args[: op.carried])
            for position, (arg, operand) in enumerate(zip(body.args, op.operands, strict=True)):
                if position < op.carried:
                    self.places[arg] = carried[position]
                elif isinstance(operand, Value) and operand in self.weights.stacks:
                    param = self.weights.stacks[operand].param
                    self.weights.stacks[arg] = Stack(param, share, layer, stride)
            with emitter.under(exists):
                self.block(body)
            self.layers, self.carried = outer, outer_carried

    def yielded(self, op: mesh.Yield) -> None:
        """Carried values end in the buffers they began in."""
        for arg, operand in zip(self.carried, op.operands, strict=False):
            source, target = self.places[cast(Value, operand)], self.places[arg]
            if source != target:
                self.emitter.compute("copy", self.view(target), self.view(source))

    def returned(self, op: mesh.Return) -> None:
        """Results become out-ports; caches stay where they are."""
        for value in op.tensors():
            if value not in self.places:
                continue
            kind, place = tensor_type(value), self.places[value]
            if place.offset is not None:
                copy = self.emitter.new_place(value.name, kind)
                self.emitter.compute("copy", self.view(copy), self.view(place))
                place = copy
            name = "logits" if self.is_logits(op, value) else value.name
            self.emitter.rename(place.buffer, value.name)
            self.mark_output(place)
            where = Cond.all([*self.emitter.guards, *self.first_copy(kind)])
            self.io_port(name, "out", kind, place, None if where.is_true else where)

    def is_logits(self, op: mesh.Return, value: Value) -> bool:
        """Whether ``value`` is what the host samples from: the first result of a decode step."""
        return value is op.operands[0] and self.module.option("phase", "") == "decode"

    def mark_output(self, place: Place) -> None:
        """Outputs keep their memory to the end."""
        self.emitter.mark(place.buffer, "out")

    def first_copy(self, kind: TensorType) -> list[Cond]:
        """Of replicas, the first core is read."""
        used = {s.axis for s in (kind.layout.splits if kind.layout else ())}
        conds = []
        for axis in ("y", "x", "xh", "xd"):
            inside = axis in used or (axis == "x" and used & {"xh", "xd"})
            covered = axis in ("xh", "xd") and "x" in used
            if (
                not inside
                and not covered
                and not (axis in ("xh", "xd") and not used & {"xh", "xd"})
            ):
                conds.append(Cond.eq(index_of(axis), 0))
        return conds

    # --- places

    def view(self, place: Place) -> View:
        """The value at ``place``."""
        return self.emitter.view(place)

    def result_place(self, op: Op, reuse: Operand | None = None) -> Place:
        """Where the op's result goes: its joint buffer, its dying operand's, or a new buffer."""
        value = op.result
        if value in self.places:
            return self.places[value]
        kind = tensor_type(value)
        dying = isinstance(reuse, Value) and self.last_use.get(reuse) is op
        if dying and isinstance(reuse, Value) and self.same_room(self.places[reuse], kind):
            self.places[value] = self.places[reuse]
        else:
            self.places[value] = self.emitter.new_place(value.name, kind)
        return self.places[value]

    def same_room(self, place: Place, kind: TensorType) -> bool:
        """Whether a value of ``kind`` fits where another one lies."""
        if getattr(place.buffer.type, "dtype", None) != kind.dtype:
            return False
        return place.chunked or place.shape == self.emitter.local_shape(kind)

    def constant(self, operand: Operand, place: Place) -> View:
        """The second operand of a pointwise op: a weight's lanes or another value."""
        assert isinstance(operand, Value)
        if operand in self.weights.stacks:
            kind = tensor_type(operand)
            return self.weights.vector(operand, kind.local_shape(self.module.dims))
        return self.view(self.places[operand])

    # --- local ops

    def unary(self, op: Op, kernel: str, **params: float | str) -> None:
        """A pointwise kernel of one operand."""
        source = self.places[cast(Value, op.operands[0])]
        target = self.result_place(op, op.operands[0])
        self.emitter.compute(kernel, self.view(target), self.view(source), **params)

    def binary(self, op: Op, kernel: str) -> None:
        """A pointwise kernel of two operands; either may give its room to the result."""
        left, right = (cast(Value, o) for o in op.operands)
        source = self.places[left]
        second = self.constant(right, source)
        reuse: Operand = left
        if self.last_use.get(left) is not op and right in self.places:
            reuse = right
        target = self.result_place(op, reuse)
        self.emitter.compute(kernel, self.view(target), self.view(source), second)

    def add(self, op: Op) -> None:
        self.binary(op, "add")

    def mul(self, op: Op) -> None:
        self.binary(op, "mul")

    def div(self, op: Op) -> None:
        self.binary(op, "div")

    def exp_sub(self, op: Op) -> None:
        self.binary(op, "exp_sub")

    def silu(self, op: Op) -> None:
        self.unary(op, "silu")

    def gelu(self, op: mesh.Gelu) -> None:
        self.unary(op, "gelu", form=op.form)

    def scale(self, op: mesh.Scale) -> None:
        self.unary(op, "scale", factor=op.factor)

    def square_sum(self, op: Op) -> None:
        self.reduction(op, "square_sum")

    def row_max(self, op: Op) -> None:
        self.reduction(op, "row_max")

    def row_sum(self, op: Op) -> None:
        self.reduction(op, "row_sum")

    def reduction(self, op: Op, kernel: str) -> None:
        """A kernel that reduces the trailing dim of its view (the key dim of scores in its chunks);
        another dim is put last."""
        value = cast(Value, op.operands[0])
        source, target = self.places[value], self.result_place(op)
        single = not source.rows and not target.shape
        last = self.put_last(tensor_type(value), str(getattr(op, "dim", "")))
        if last and source.chunked:
            fail("unsupported-op", f"{op.NAME} of scores over a dim that is not the last", op.span)
        view = self.emitter.flat(source) if single else self.emitter.view(source, order=last)
        self.emitter.compute(kernel, self.view(target), view)

    def put_last(self, kind: TensorType, dim: str) -> tuple[int, ...]:
        """The order of a value's dims on a core that ends in ``dim``; empty where it does now."""
        row_dim = self.emitter.row_dim
        dims = [d for d in self.emitter.local_dims(kind) if d != row_dim]
        dims = [row_dim] * self.emitter.has_rows(kind) + dims
        if dim not in dims[:-1]:
            return ()
        return (*(i for i, d in enumerate(dims) if d != dim), dims.index(dim))

    def rms_scale(self, op: mesh.RmsScale) -> None:
        source, total = (self.places[cast(Value, o)] for o in op.operands[:2])
        gain = self.constant(op.operands[2], source)
        target = self.result_place(op, op.operands[0])
        count = self.module.dims[op.dim]
        views = [self.view(p) for p in (target, source)]
        sums = self.view(total)
        if not source.rows:
            views = [View(v.buffer, v.indices, (Expr.const(1), *v.shape())) for v in views]
        self.emitter.compute("rms_scale", *views, sums, gain, count=count, eps=op.eps)

    def rope(self, op: mesh.Rope) -> None:
        source = self.places[cast(Value, op.operands[0])]
        target = self.result_place(op, op.operands[0])
        local.rope(self.emitter, op, source, target)

    def mask(self, op: mesh.Mask) -> None:
        source = self.places[cast(Value, op.operands[0])]
        ring = self.current_cache().state if self.caches else None
        self.places[op.result] = source
        local.mask(self.emitter, op, source, ring)

    def relayout(self, op: mesh.Relayout) -> None:
        value = cast(Value, op.operands[0])
        source, target = self.places[value], self.result_place(op)
        (old,) = (tensor_type(value).layout or Layout()).splits
        (new,) = (tensor_type(op.result).layout or Layout()).splits
        shift = index_of(new.axis) * new.block - index_of(old.axis) * old.block
        self.emitter.compute("select_lanes", self.view(target), self.view(source), shift=shift)

    # --- distributed ops

    def all_reduce(self, op: mesh.AllReduce) -> None:
        """In place; several operands lie side by side and travel together."""
        values = op.tensors()
        places = [self.places[v] for v in values]
        lanes = sum(p.width for p in places)
        first = places[0]
        if len(places) > 1:
            joined = replace(first, shape=(lanes,))
            view = self.emitter.view(joined)
        else:
            view = self.view(first)
        if self.emitter.mesh.size(op.axis) > 1:
            with self.emitter.under(moves.at_roots(op)):
                collectives.all_reduce(self.emitter, op, view, lanes, first.rows)
        self.places.update(zip(op.results, places, strict=True))

    def reduce(self, op: mesh.Reduce) -> None:
        """In place on the first core of the axis."""
        for value, result in zip(op.tensors(), op.results, strict=True):
            place = self.places[value]
            if self.emitter.mesh.size(op.axis) > 1:
                with self.emitter.under(moves.at_roots(op)):
                    collectives.reduce(self.emitter, op, self.view(place))
            self.places[result] = place

    def broadcast(self, op: mesh.Broadcast) -> None:
        """In place: only the first core of the axis had anything there."""
        place = self.places[cast(Value, op.operands[0])]
        if self.emitter.mesh.size(op.axis) > 1:
            with self.emitter.under(moves.at_roots(op)):
                collectives.broadcast(self.emitter, op.axis, self.view(place))
        self.places[op.result] = place

    def gather(self, op: mesh.Gather | mesh.AllGather) -> None:
        """The parts lie side by side; where they are padded, a copy without the padding."""
        parts = moves.spread(self.emitter, op, self.places[cast(Value, op.operands[0])])
        extent = self.module.dims[op.dim]
        if extent == parts.size * parts.block:
            shape = self.emitter.local_shape(tensor_type(op.result))
            self.places[op.result] = Place(parts.buffer, shape)
        else:
            target = self.result_place(op)
            with self.emitter.under(moves.at_roots(op)):
                self.emitter.compute("copy", self.view(target), parts.first(extent))

    def all_gather(self, op: mesh.AllGather) -> None:
        self.gather(op)

    def scatter(self, op: mesh.Scatter | mesh.ReduceScatter) -> None:
        """The core's own part, in a buffer of its own."""
        parts = moves.divide(self.emitter, op, self.places[cast(Value, op.operands[0])])
        target = self.result_place(op)
        with self.emitter.under(moves.at_roots(op)):
            self.emitter.compute("copy", self.view(target), parts.part(parts.rank))

    def reduce_scatter(self, op: mesh.ReduceScatter) -> None:
        self.scatter(op)

    def shift(self, op: mesh.Shift) -> None:
        """To a buffer of its own: what leaves and what comes are underway at once."""
        source = self.places[cast(Value, op.operands[0])]
        moves.shift(self.emitter, op, source, self.result_place(op))

    def gemv(self, op: mesh.Gemv) -> None:
        left, *rights = (cast(Value, o) for o in op.operands)
        if rights[0] in self.caches:
            self.gemv_cache(op, left, rights[0])
            return
        for result in op.results:
            if result not in self.places:
                self.result_place(op)
        places = [self.places[r] for r in op.results]
        width = sum(p.width for p in places)
        first = places[0]
        out = replace(first, shape=(width,)) if first.offset is not None else first
        self.check_matrices(op, rights)
        gemv(self.emitter, self.weights, op, self.places[left], self.emitter.flat(out), rights)

    def check_matrices(self, op: Op, rights: Sequence[Value]) -> None:
        """Right operands of a product lie as it wants them, which values on the cores do not."""
        if any(right not in self.weights.stacks for right in rights):
            fail(
                "unsupported-op",
                f"a right operand of {op.NAME} is neither a weight nor an input of its own",
                op.span,
            )

    def gemv_cache(self, op: mesh.Gemv, left: Value, right: Value) -> None:
        """Scores of a query, or values weighted by its scores, against the core's own slots."""
        cache, which = self.caches[right]
        tiling = self.emitter.tiling
        groups, shared = tiling.key_block, tiling.query_block // tiling.key_block
        source, target = self.places[left], self.result_place(op)
        keys = tiling.heads is not None and tiling.heads.keys in tensor_type(op.result).dims
        inner, outer = (
            (tiling.lane_block, cache.slots) if keys else (cache.slots, tiling.lane_block)
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
        left, *rights = (cast(Value, o) for o in op.operands)
        if rights[0] in self.caches:
            cache, _ = self.caches[rights[0]]
            out = self.result_place(op)
            Attention(self.emitter, cache.place).values(self.places[left], out, self.dtype(left))
            return
        for result in op.results:
            if result not in self.places:
                self.result_place(op)
        self.check_matrices(op, rights)
        first = self.places[op.results[0]]
        width = sum(self.places[r].width for r in op.results)
        out = replace(first, shape=(width,)) if first.offset is not None else first
        layout = tensor_type(left).layout or Layout()
        splits = tuple(s for d in op.contract for s in layout.splits if s.dim == d)
        chunks = Chunks.of(self.emitter.mesh, self.lanes_of(left, op.contract))
        source = self.direct.get(left) or self.places[left]
        gemm(self.emitter, self.weights, Product(op, source, rights, splits, chunks), out)

    def lanes_of(self, value: Value, dims: tuple[str, ...]) -> int:
        """Lanes of ``dims`` that a core holds of ``value``."""
        kind = tensor_type(value)
        local = dict(zip(kind.dims, kind.local_shape(self.module.dims), strict=True))
        return prod(local[d] for d in dims)

    def gemm_t(self, op: mesh.GemmT) -> None:
        left, right = (cast(Value, o) for o in op.operands)
        if right not in self.caches:
            Transposed(self.emitter, op, self.places[left]).expand()
            return
        cache, _ = self.caches[right]
        tiling = self.emitter.tiling
        chunk = tiling.row_lanes // tiling.chunks_y
        shape = (tiling.query_block, tiling.chunks_x, chunk)
        dtype = self.dtype(op.result)
        buffer = self.emitter.buffer(op.result.name, (tiling.row_lanes, *shape), dtype)
        place = Place(buffer, shape, rows=True, chunked=True)
        self.places[op.result] = place
        Attention(self.emitter, cache.place).scores(self.places[left], place, dtype)

    def append(self, op: mesh.Append) -> None:
        tensors = op.tensors()
        count = len(tensors) // 2
        layers, layer = self.layers if self.layers else (None, None)
        kind = tensor_type(tensors[0])
        dtype = kind.dtype
        split = (kind.layout or Layout()).split_of(op.dim)
        slots = split.block if split else self.module.dims[op.dim]
        cache = Cache(self.emitter, count, layers, layer, dtype, slots)
        new = [self.places[v] for v in tensors[1::2]]
        for which, value in enumerate(op.results):
            self.caches[value] = (cache, which)
        if self.emitter.many_rows:
            cache.fill(new)
        else:
            cache.append(op, new)

    def current_cache(self) -> Cache:
        """The cache appended to last."""
        return list(self.caches.values())[-1][0]

    def dtype(self, value: Value) -> DType:
        """Element type of a value."""
        return tensor_type(value).dtype


def is_matrix(op: Op, value: Value) -> bool:
    """Whether ``value`` is a right operand of the product ``op``, and only that."""
    products = (mesh.Gemv, mesh.Gemm, mesh.GemmT)
    return isinstance(op, products) and value is not op.operands[0]

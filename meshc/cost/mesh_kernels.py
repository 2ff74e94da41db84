"""The microkernels that an op of the mesh level becomes on a core, as far as their cost goes.

``expand-programs`` writes them; here stands only what each takes: its kernel and the shapes of its
operands. Ops of several results or of caches are one product where the program has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from meshc.cost.emitted_csl import Call, LocalProduct, Operand
from meshc.ir.core import Op
from meshc.ir.core import Operand as Value
from meshc.ir.functions import Function
from meshc.ir.ops import mesh as ops
from meshc.ir.ops.tile import ParamValue
from meshc.ir.types import DType, TensorType

TypeOf = Callable[[Value], TensorType]


@dataclass(frozen=True)
class LocalShapes:
    """What a core holds of values that have types of ``type_of``, in dims of these ``extents``.
    Only the run knows how many ``rows`` a prompt has, and so how many ``keys`` its scores; ``rows``
    is empty where there is no prompt."""

    extents: Mapping[str, int]
    type_of: TypeOf
    rows: str = ""
    keys: frozenset[str] = frozenset()

    def of(self, value: Value) -> dict[str, int]:
        """Extents per core by dim."""
        kind = self.type_of(value)
        return dict(zip(kind.dims, kind.local_shape(self.extents), strict=True))

    def size(self, value: Value) -> int:
        """Elements per core."""
        return prod(self.of(value).values())

    def dtype(self, value: Value) -> DType:
        """The type of elements."""
        return self.type_of(value).dtype

    def flat(self, value: Value) -> Operand:
        """A value whose dims mean nothing to a kernel, but for rows and keys that the run counts:
        as [rows, elements of a row] or [rows, heads, keys]."""
        local = self.of(value)
        size, rows = prod(local.values()), local.get(self.rows, 1)
        keys = prod(extent for dim, extent in local.items() if dim in self.keys)
        if not self.rows or self.rows not in local:
            return Operand((size,), self.dtype(value))
        if self.keys.isdisjoint(local):
            return Operand((rows, size // rows), self.dtype(value), (0,))
        return Operand((rows, size // (rows * keys), keys), self.dtype(value), (0, 2))


def calls_of(op: Op, shapes: LocalShapes) -> list[Call] | None:
    """The kernels of an op that is no product; None of ops that have none of their own here."""
    name = op.NAME.partition(".")[2]
    match op:
        case ops.RowReduction() if name in ("row_max", "row_sum", "square_sum"):
            lanes = prod(e for d, e in shapes.of(op.operands[0]).items() if d in op.over())
            return [_by_rows(name, shapes, op.result, op.operands[0], lanes)]
        case ops.RmsScale():
            value, total, gain = op.operands
            lanes = shapes.size(gain)
            shape = (shapes.size(value) // lanes, lanes)
            whole = [Operand(shape, shapes.dtype(v)) for v in (op.result, value)]
            sums = Operand(shape[:1], shapes.dtype(total))
            return [Call(name, (*whole, sums, shapes.flat(gain)))]
        case ops.Div() | ops.ExpSub():
            value, each = op.operands
            if shapes.rows:
                return [Call(name, tuple(map(shapes.flat, (op.result, value, each))))]
            rows = shapes.size(each)
            shape = (rows, shapes.size(value) // rows)
            whole = [Operand(shape, shapes.dtype(v)) for v in (op.result, value)]
            return [Call(name, (*whole, shapes.flat(each)))]
        case ops.Add() | ops.Mul() | ops.Larger():
            left, right = op.operands
            tail = shapes.size(right)
            if shapes.of(left) == shapes.of(right):
                return [Call(name, tuple(map(shapes.flat, (op.result, left, right))))]
            shape = (shapes.size(left) // tail, tail)
            whole = [Operand(shape, shapes.dtype(v)) for v in (op.result, left)]
            return [Call(name, (*whole, shapes.flat(right)))]
        case ops.Scale():
            return [_alike("copy" if op.factor == 1 else name, shapes, op)]
        case ops.AtLeast() | ops.InverseRms() | Function():
            params = tuple(op.attributes().items()) if isinstance(op, Function) else ()
            return [_alike(name, shapes, op, params)]  # type: ignore[arg-type]
        case ops.Rope():
            return [_rope(op, shapes)]
        case ops.Mask():
            return [_mask(op, shapes)]
        case ops.Append():
            return [_appended(shapes, new) for new in op.operands[1::2]]
        case ops.Part() | ops.Relayout():
            return [_selected(shapes, op.result)]
        case ops.KeepLanes():
            return [_selected(shapes, op.result)] * 2
    return None


def products_of(op: ops.Gemv, shapes: LocalShapes) -> list[LocalProduct]:
    """What is multiplied of operands that stay where they are: right operands that are weights lie
    side by side, as one."""
    found = [local_product(op, right, shapes) for right in op.operands[1:]]
    first = found[0]
    if first.batch > 1:
        return found
    return [replace(first, n=sum(one.n for one in found))]


def local_product(
    op: ops.Gemv | ops.Gemm | ops.GemmT, right: Value, shapes: LocalShapes
) -> LocalProduct:
    """The product of what a core holds of both sides. Query heads of a group share the key head of
    a cache; dims that both sides have and none contracts count products."""
    left, matrix = shapes.of(op.operands[0]), shapes.of(right)
    shared = [d for d in left if d in matrix and d not in op.contract]
    k = prod(e for d, e in left.items() if d in op.contract)
    m = prod(e for d, e in left.items() if d not in (*op.contract, *shared))
    batch = prod(left[d] for d in shared)
    if len(op.group) == 2 and op.group[0] != op.group[1]:
        groups = matrix.pop(op.group[1], 1)
        batch, m = batch * groups, max(1, m // groups)
    n = prod(e for d, e in matrix.items() if d not in op.contract and d not in shared)
    kind = shapes.type_of(right)
    place = [d for d in kind.dims if d in matrix and d not in shared]
    transposed = bool(place) and place[-1] in op.contract and len(op.group) == 2
    sums = shapes.dtype(op.results[0])
    found = LocalProduct(m, k, n, kind.dtype, sums, batch, transposed)
    if shapes.rows not in left:
        return found
    if not op.group:
        return replace(found, of_run="m")
    # Queries of a prompt lie row by row, each head a product of its own.
    rows = left[shapes.rows]
    heads, run = m // rows, "mn" if transposed else "mk"
    return replace(found, m=rows, batch=batch * heads, of_run=run, interleaved=True, sharing=heads)


def moved_parts(
    op: ops.Gemm | ops.GemmT, product: LocalProduct, groups: int
) -> tuple[Operand, Operand]:
    """The chunks that move while ``product``, that of a step, is computed: left factors or, of a
    transposed product, sums; and right factors, of caches those of so many ``groups``."""
    m, k, n, heads = product.m, product.k, product.n, product.batch
    rows = (0,) if "m" in product.of_run else ()
    keys = (2,) if op.group and rows else ()
    if isinstance(op, ops.GemmT):
        ours = Operand((m, heads, n), product.sums, (*rows, *keys))
    else:
        ours = Operand((m, heads, k), product.dtype, (*rows, *keys))
    return ours, Operand((groups, k, n), product.dtype)


def _by_rows(name: str, shapes: LocalShapes, to: Value, value: Value, lanes: int) -> Call:
    """A kernel that makes one number of the ``lanes`` of each row."""
    if shapes.rows:
        return Call(name, (shapes.flat(to), shapes.flat(value)))
    rows = shapes.size(value) // lanes
    source = Operand((rows, lanes), shapes.dtype(value))
    return Call(name, (Operand((rows,), shapes.dtype(to)), source))


def _alike(
    name: str, shapes: LocalShapes, op: Op, params: tuple[tuple[str, ParamValue], ...] = ()
) -> Call:
    """A kernel of each element by itself."""
    return Call(name, (shapes.flat(op.results[0]), shapes.flat(op.operands[0])), params)


def _rope(op: ops.Rope, shapes: LocalShapes) -> Call:
    """Pairs of lanes of all heads of a row are turned together."""
    local = shapes.of(op.result)
    rows, lanes = local.get(shapes.rows, 1), local[op.dim]
    shape = (prod(local.values()) // (rows * lanes), rows, lanes)
    return Call("rope", tuple(Operand(shape, shapes.dtype(v)) for v in (op.result, op.operands[0])))


def _mask(op: ops.Mask, shapes: LocalShapes) -> Call:
    """Elements that a mask sets: in a step the empty slots of a cache, in a prompt what lies behind
    a row's query."""
    local, kind = shapes.of(op.result), shapes.dtype(op.result)
    keys, rows = local[op.dim], local.get(shapes.rows, 1)
    others = prod(local.values()) // keys
    if not shapes.rows:
        return Call("mask_slots", (Operand((others, keys), kind),))
    return Call("mask_causal", (Operand((others // rows, rows, keys), kind),))


def _appended(shapes: LocalShapes, new: Value) -> Call:
    """A copy of ``new`` into the slots of a cache."""
    if shapes.rows:
        return Call("copy", (shapes.flat(new), shapes.flat(new)))
    return Call("ring_push", (shapes.flat(new),))


def _selected(shapes: LocalShapes, value: Value) -> Call:
    """Lanes that are taken one by one."""
    return Call("select_lanes", (shapes.flat(value),))

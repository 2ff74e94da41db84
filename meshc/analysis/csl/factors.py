"""The operands of the kernel ``gemm`` in CSL: one product, and the loops of a call around it.

Heads that share keys are rows of one product with these: a loop over products with the same right
factor is *joined* to their rows where those of result and left factor follow each other evenly. A
loop over products that are added up is joined to their contraction where the rows of its right
factors do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from meshc.analysis.csl.strided_windows import Dim, Window, window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.views import View


@dataclass(frozen=True)
class Product:
    """``c[m, n] += a[m, k] b[k, n]`` on one core; windows have just these dims."""

    c: Window
    a: Window
    b: Window

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, k, n."""
        return self.a.dims[0].extent, self.b.dims[0].extent, self.b.dims[1].extent

    @property
    def in_chunks(self) -> bool:
        """Whether the left factor has the contraction in chunks, as ``[m, chunks, k]``, which do
        not follow each other evenly as those of the right factor do."""
        return len(self.a.dims) > 2

    @property
    def mixed(self) -> bool:
        """Whether factors of 16 bits go into f32 sums."""
        return self.c.dtype == DType.F32 and self.b.dtype.half

    @property
    def one_row(self) -> bool:
        """Whether the result is one row at one place, whose registers are loaded for good."""
        return self.c.dims[0].extent == 1 and self.c.start.is_const and self.c.constant

    @property
    def constant(self) -> bool:
        """Whether all extents are known when the program is compiled."""
        return all(side.constant for side in (self.c, self.a, self.b))

    def flipped(self) -> Product:
        """The same product as ``transpose(c) += transpose(b) transpose(a)``."""
        return Product(_flip(self.c), _flip(self.b), _flip(self.a))


class Batch(NamedTuple):
    """A loop over products: its dim, and the strides of result, left and right factors."""

    dim: Dim
    strides: tuple[int, int, int]


def operands(op: Compute) -> tuple[Window, Window, Window]:
    """Result and factors of a call of ``gemm``, the right factor as ``[.., k, n]``."""
    to, left, right = (window(v, op.span) for v in op.operands if isinstance(v, View))
    if op.params["transposed"]:
        right = right.inner([*right.dims[:-2], right.dims[-1], right.dims[-2]])
    return to, left, right


_JOINED = "_joined"
"""Ends the ways of calls whose loops are joined to rows as far as can be."""


class Call(NamedTuple):
    """A call of ``gemm``: one product, and the loops around it by the number of the leading dim."""

    product: Product
    batches: dict[int, Batch]

    @property
    def times(self) -> int:
        """How many products there are."""
        return prod(batch.dim.extent for batch in self.batches.values())

    @property
    def adds(self) -> bool:
        """Whether there are loops over products that are added up."""
        return any(not batch.strides[0] for batch in self.batches.values())

    def each(self, variable: Callable[[int], Expr]) -> Product:
        """The product of one pass of the loops, whose variables ``variable`` gives by number."""
        found = [self.product.c, self.product.a, self.product.b]
        for place, batch in self.batches.items():
            at = variable(place)
            found = [w.moved(at * s) for w, s in zip(found, batch.strides, strict=True)]
        return Product(*found)

    def joined(self) -> Call:
        """The same products with as few loops as can be."""
        product, left = self.product, dict(self.batches)
        for place in sorted(self.batches, reverse=True):
            join = _joined_rows if left[place].strides[0] else _joined_chunks
            more = join(product, left[place])
            if more is not None:
                product = more
                del left[place]
        return Call(product, left)


def without_joining(way: str) -> str:
    """What a ``way`` says of the product alone."""
    return way.removesuffix(_JOINED)


def with_joining(way: str) -> str:
    """The way of a call whose product goes in ``way`` once its loops are joined."""
    return way + _JOINED


def call(op: Compute) -> Call:
    """A call of ``gemm``, with the loops that its way leaves."""
    found = apart(op)
    return found if without_joining(op.way) == op.way else found.joined()


def apart(op: Compute) -> Call:
    """A call of ``gemm`` with a loop for each leading dim."""
    given = operands(op)
    left = given[1]
    count = len(left.dims) - 2
    heads = [one.dims[: len(one.dims) - 2] for one in given]
    found = {}
    for place in range(count):
        if left.dims[place].extent > 1:
            c, a, b = (_stride(head, place, count) for head in heads)
            found[place] = Batch(left.dims[place], (c, a, b))
    return Call(Product(*(one.trailing(2) for one in given)), found)


def one_product(op: Compute) -> Product:
    """The product that each pass of the loops of a call of ``gemm`` does."""
    return call(op).each(batch_variable)


def batch_variable(place: int) -> Expr:
    """The variable of the loop over a leading dim, in what is no text yet."""
    return Expr.var(f"batch.{place}")


def _joined_rows(product: Product, batch: Batch) -> Product | None:
    """``product`` with the rows of all passes of ``batch``; None where these do not follow each
    other evenly, or have right factors of their own."""
    sums, left, right = batch.strides
    if right or batch.dim.count is not None:
        return None
    c, a = (
        _woven(side.dims[0], Dim(batch.dim.extent, stride))
        for side, stride in ((product.c, sums), (product.a, left))
    )
    if c is None or a is None or (c.extent, c.count) != (a.extent, a.count):
        return None
    if (c.stride == sums) != (a.stride == left):
        return None  # rows in another order
    return Product(
        product.c.inner([c, product.c.dims[1]]), product.a.inner([a, product.a.dims[1]]), product.b
    )


def _joined_chunks(product: Product, batch: Batch) -> Product | None:
    """``product`` with the contractions of all passes of ``batch`` as one; None where the rows of
    the right factors do not follow each other evenly."""
    _, left, right = batch.strides
    deep = product.b.dims[0]
    if product.in_chunks or deep.extent * deep.stride != right or not _constant(product, batch):
        return None
    rows, lanes = product.a.dims
    chunks = [Dim(batch.dim.extent, left), lanes]
    if left == lanes.extent * lanes.stride:
        chunks = [Dim(batch.dim.extent * lanes.extent, lanes.stride)]
    every = Dim(batch.dim.extent * deep.extent, deep.stride)
    a, b = product.a.inner([rows, *chunks]), product.b.inner([every, product.b.dims[1]])
    return Product(product.c, a, b)


def _constant(product: Product, batch: Batch) -> bool:
    """Whether the contraction of ``product`` and the passes of ``batch`` are known when the program
    is compiled."""
    return all(dim.count is None for dim in (batch.dim, product.a.dims[1], product.b.dims[0]))


def _woven(rows: Dim, loop: Dim) -> Dim | None:
    """The rows of all passes of a ``loop`` as one dim, with those of the loop inside or outside."""
    if rows.extent == 1 or rows.stride == loop.extent * loop.stride:
        count = None if rows.count is None else rows.count * loop.extent
        return Dim(rows.extent * loop.extent, loop.stride, count)
    if rows.count is None and loop.stride == rows.extent * rows.stride:
        return Dim(rows.extent * loop.extent, rows.stride)
    return None


def _stride(head: tuple[Dim, ...], position: int, count: int) -> int:
    """Stride of batch dim ``position`` of ``count`` for an operand that may lack leading ones."""
    own = position - (count - len(head))
    return head[own].stride if own >= 0 and head[own].extent > 1 else 0


def _flip(window: Window) -> Window:
    return window.inner(window.dims[::-1])

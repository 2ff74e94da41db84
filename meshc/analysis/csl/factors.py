"""The operands of the kernel ``gemm`` in CSL: one product, and the loops of a call around it.

Heads that share keys are rows of one product with these: a loop over products with the same right
factor is *joined* to their rows where those of result and left factor follow each other evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from meshc.analysis.csl.windows import Dim, Window, window
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
        return self.a.dims[0].extent, self.a.dims[1].extent, self.b.dims[1].extent

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
            rows = _joined_rows(product, left[place])
            if rows is not None:
                product = rows
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
    to = given[0]
    count = len(to.dims) - 2
    heads = [one.dims[: len(one.dims) - 2] for one in given]
    found = {}
    for place in range(count):
        if to.dims[place].extent > 1:
            c, a, b = (_stride(head, place, count) for head in heads)
            found[place] = Batch(to.dims[place], (c, a, b))
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

"""The operands of the kernel ``gemm`` in CSL: one product, and the loops of a call around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


def batches(given: Sequence[Window]) -> dict[int, Batch]:
    """The loops around one product of ``given`` operands, by the number of the leading dim."""
    to = given[0]
    count = len(to.dims) - 2
    heads = [one.dims[: len(one.dims) - 2] for one in given]
    found = {}
    for place in range(count):
        if to.dims[place].extent > 1:
            c, a, b = (_stride(head, place, count) for head in heads)
            found[place] = Batch(to.dims[place], (c, a, b))
    return found


def one_product(op: Compute) -> Product:
    """The product that each pass of the loops of a call of ``gemm`` does."""
    given = operands(op)
    found = [one.trailing(2) for one in given]
    for place, batch in batches(given).items():
        at = Expr.var(f"batch.{place}")
        found = [w.moved(at * s) for w, s in zip(found, batch.strides, strict=True)]
    return Product(*found)


def _stride(head: tuple[Dim, ...], position: int, count: int) -> int:
    """Stride of batch dim ``position`` of ``count`` for an operand that may lack leading ones."""
    own = position - (count - len(head))
    return head[own].stride if own >= 0 and head[own].extent > 1 else 0


def _flip(window: Window) -> Window:
    return window.inner(window.dims[::-1])

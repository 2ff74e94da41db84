"""Views as strided windows of one buffer: where they start, and the dims they walk through.

A memory DSD walks up to four dims with constant extents and strides; only its start may differ from
core to core and from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meshc.ir.affine import Expr
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View, Whole
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

STRIDES = range(-128, 128)
"""Of a DSD of one dim, in elements: eight bits (vendor's page on DSDs)."""


@dataclass(frozen=True)
class Dim:
    """``extent`` elements, ``stride`` elements apart."""

    extent: int
    stride: int


@dataclass(frozen=True)
class Window:
    """Elements of ``buffer`` from ``start`` (in elements) along ``dims``, outermost first."""

    buffer: Value
    dtype: DType
    start: Expr
    dims: tuple[Dim, ...]

    @property
    def size(self) -> int:
        """Elements in all."""
        total = 1
        for dim in self.dims:
            total *= dim.extent
        return total

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dims."""
        return tuple(dim.extent for dim in self.dims)

    def moved(self, by: Expr | int) -> Window:
        """The window that starts ``by`` elements later."""
        return Window(self.buffer, self.dtype, self.start + by, self.dims)

    def inner(self, dims: Sequence[Dim]) -> Window:
        """A part with other dims and the same start."""
        return Window(self.buffer, self.dtype, self.start, tuple(dims))

    def merged(self) -> Window:
        """The same elements in the same order with as few dims as possible."""
        return self.inner(_joined(self.dims) or [Dim(1, 1)])

    @property
    def pace(self) -> int:
        """The stride that counts for lanes: that of a window with one dim. For others no rule is
        documented, and the simulator has none; they count as dense."""
        dims = self.merged().dims
        return dims[0].stride if len(dims) == 1 else 1

    def trailing(self, count: int) -> Window:
        """The window of the last ``count`` dims."""
        return self.inner(self.dims[len(self.dims) - count :])


def has_one_dim(window: Window) -> bool:
    """Whether a DSD of one dim walks through ``window``; the DSD of four has wide strides."""
    dims = window.merged().dims
    return len(dims) == 1 and dims[0].stride in STRIDES


def window(view: View, span: Span | None = None) -> Window:
    """``view`` as a window.

    Raises ``csl-extent`` for extents that depend on the run, ``csl-view`` for a reshape of what
    does not lie evenly.
    """
    shape = view.buffer_type.shape
    strides = [*accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)][::-1]
    start, dims = Expr.const(0), []
    for position, stride in enumerate(strides):
        index = view.indices[position] if position < len(view.indices) else Whole()
        if isinstance(index, Point):
            start = start + index.at * stride
        elif isinstance(index, Range):
            start = start + index.start * stride
            dims.append(Dim(_constant(index.extent, view, span), index.step * stride))
        else:
            dims.append(Dim(shape[position], stride))
    if view.reshape:
        dims = _reshaped(dims, [_constant(e, view, span) for e in view.reshape], view, span)
    if view.order:
        dims = [dims[i] for i in view.order]
    return Window(view.buffer, view.buffer_type.dtype, start, tuple(dims))


def _constant(extent: Expr, view: View, span: Span | None) -> int:
    if not extent.is_const:
        fail(
            "csl-extent",
            f"the extent {extent} of {view} is known only when the program runs",
            span,
            help="compile a phase whose extents are constant, such as a product or one token",
        )
    return extent.constant


def _reshaped(dims: list[Dim], shape: list[int], view: View, span: Span | None) -> list[Dim]:
    """``dims`` split to ``shape``, from the last dim on, once those that can be are joined."""
    found: list[Dim] = []
    left = _joined(dims)
    for extent in reversed(shape):
        if extent == 1:
            found.append(Dim(1, found[-1].stride * found[-1].extent if found else 1))
            continue
        last = left.pop()
        if last.extent % extent:
            fail("csl-view", f"{view} does not lie evenly in memory", span)
        if last.extent > extent:
            left.append(Dim(last.extent // extent, last.stride * extent))
        found.append(Dim(extent, last.stride))
    return found[::-1]


def _joined(dims: Iterable[Dim]) -> list[Dim]:
    """``dims`` joined to as few as walk through the same elements in the same order."""
    kept: list[Dim] = []
    for dim in dims:
        if dim.extent == 1:
            continue
        if kept and kept[-1].stride == dim.extent * dim.stride:
            kept[-1] = Dim(kept[-1].extent * dim.extent, dim.stride)
        else:
            kept.append(dim)
    return kept

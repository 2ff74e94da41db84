"""Views as strided windows of one buffer: where they start, and the dims they walk through.

A memory DSD of several dims, at most four, has constant extents and strides; only its start may
differ from core to core and from step to step. That of a single dim may also get its length when
the program runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from operator import mul

from meshc.ir.affine import Expr
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import Point, Range, View, Whole
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

MOST_DIMS = 4
"""Dims of a DSD of memory (vendor's page on DSDs)."""
STRIDES = range(-128, 128)
"""Strides of a DSD of one dim, in elements: eight bits (vendor's page on DSDs)."""
OWN = "own."
"""Begins the name of a variable that an emitted function declares itself."""


@dataclass(frozen=True)
class Dim:
    """``extent`` elements, ``stride`` elements apart; with a ``count`` that is what the program
    finds when it runs, and ``extent`` the most that it can be."""

    extent: int
    stride: int
    count: Expr | None = None

    @property
    def steps(self) -> Expr:
        """The elements as an expression."""
        return Expr.const(self.extent) if self.count is None else self.count


@dataclass(frozen=True)
class Window:
    """Elements of ``buffer`` from ``start`` (in elements) along ``dims``, outermost first."""

    buffer: Value
    dtype: DType
    start: Expr
    dims: tuple[Dim, ...]

    @cached_property
    def size(self) -> int:
        """Elements in all; the most that there can be."""
        return prod(dim.extent for dim in self.dims)

    @property
    def count(self) -> Expr:
        """Elements of what a DSD walks through, as an expression."""
        dims = self.fewest
        return dims[0].steps if len(dims) == 1 else Expr.const(self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dims; the most that they can be."""
        return tuple(dim.extent for dim in self.dims)

    @property
    def constant(self) -> bool:
        """Whether all extents are known when the program is compiled."""
        return all(dim.count is None for dim in self.dims)

    @property
    def walked(self) -> bool:
        """Whether a DSD can walk through it: its extents are constant, or it is a single dim whose
        stride is one of :data:`STRIDES`."""
        dims = self.fewest
        return self.constant or (len(dims) == 1 and dims[0].stride in STRIDES)

    def moved(self, by: Expr | int) -> Window:
        """The window that starts ``by`` elements later."""
        return Window(self.buffer, self.dtype, self.start + by, self.dims)

    def inner(self, dims: Sequence[Dim]) -> Window:
        """A part with other dims and the same start."""
        return Window(self.buffer, self.dtype, self.start, tuple(dims))

    @cached_property
    def fewest(self) -> tuple[Dim, ...]:
        """As few dims as possible that walk through the same elements in the same order."""
        return _merged(self.dims)

    def merged(self) -> Window:
        """The same elements in the same order with as few dims as possible."""
        return self if self.fewest == self.dims else self.inner(self.fewest)

    @property
    def pace(self) -> int:
        """The stride that counts for lanes: that of a window with one dim. For others no rule is
        documented, and the simulator has none; they count as dense."""
        return self.fewest[0].stride if len(self.fewest) == 1 else 1

    def trailing(self, count: int) -> Window:
        """The window of the last ``count`` dims."""
        return self.inner(self.dims[len(self.dims) - count :])


def own(name: str) -> Expr:
    """A variable that an emitted function declares itself, whatever the program calls its own."""
    return Expr.var(f"{OWN}{name}")


def has_one_dim(window: Window) -> bool:
    """Whether a DSD of one dim walks through ``window``; the DSD of four has wide strides."""
    return len(window.fewest) == 1 and window.fewest[0].stride in STRIDES


@lru_cache(maxsize=8192)
def _merged(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(_joined(dims)) or (Dim(1, 1),)


def window(view: View, span: Span | None = None) -> Window:
    """``view`` as a window. An extent that depends on the run is at least 1, as
    ``kernels/extents.py`` of the back end checks.

    Raises ``csl-view`` for a reshape of what does not lie evenly.
    """
    shape = view.buffer_type.shape
    strides = dense_strides(shape)
    start, dims = Expr.const(0), []
    single: set[Expr] = set()  # extents that can only be 1
    for position, stride in enumerate(strides):
        index = view.indices[position] if position < len(view.indices) else Whole()
        if isinstance(index, Point):
            start = start + index.at * stride
        elif isinstance(index, Range):
            start = start + index.start * stride
            dims.append(_ranged(index, shape[position], stride))
            if dims[-1].extent == 1:
                single.add(index.extent)
        else:
            dims.append(Dim(shape[position], stride))
    if view.reshape:
        extents = [Expr.const(1) if e in single else e for e in view.reshape]
        dims = _reshaped(dims, extents, view, span)
    if view.order:
        dims = [dims[i] for i in view.order]
    return Window(view.buffer, view.buffer_type.dtype, start, tuple(dims))


Loops = list[tuple[str, Dim]]
"""Variables, and the dims that they walk through, the outermost first."""


def first_part(windows: Sequence[Window]) -> tuple[Loops, list[Window]]:
    """Loops over the first dims of windows of one shape, and the part of each window, moved by the
    variables of the loops, through which a DSD can walk."""
    part, loops = [*windows], list[tuple[str, Dim]]()
    for place, dim in enumerate(windows[0].dims):
        if all(window.walked for window in part):
            break
        rest = [window.inner(window.dims[1:] or (Dim(1, 1),)) for window in part]
        if dim.extent > 1:
            variable = f"h{place}"
            loops.append((variable, dim))
            steps = (own(variable) * window.dims[0].stride for window in part)
            rest = [window.moved(step) for window, step in zip(rest, steps, strict=True)]
        part = rest
    return loops, part


def rounds(loops: Loops) -> int:
    """How often the body of ``loops`` runs at most."""
    return prod(dim.extent for _, dim in loops)


def dense(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The extents of ``shape`` in memory without gaps, each dim with room for the most elements."""
    strides = dense_strides([dim.extent for dim in shape])
    return tuple(Dim(d.extent, s, d.count) for d, s in zip(shape, strides, strict=True))


def dense_strides(shape: Sequence[int]) -> list[int]:
    """Strides of an array without gaps."""
    return [*accumulate(reversed(shape[1:]), mul, initial=1)][::-1]


def _ranged(index: Range, positions: int, stride: int) -> Dim:
    """A range of a dim that has so many ``positions``."""
    step = index.step * stride
    if index.extent.is_const:
        return Dim(index.extent.constant, step)
    first = index.start.constant if index.start.is_const else 0
    most = -(-(positions - first) // index.step)
    return Dim(most, step, index.extent if most > 1 else None)


def _reshaped(dims: list[Dim], shape: Sequence[Expr], view: View, span: Span | None) -> list[Dim]:
    """``dims`` split to ``shape``, from the last dim on, once those that can be are joined."""
    found: list[Dim] = []
    left = _joined(dims)
    for extent in reversed(shape):
        if extent == Expr.const(1):
            found.append(Dim(1, found[-1].stride * found[-1].extent if found else 1))
            continue
        last = left.pop()
        if extent == last.steps:
            found.append(last)
            continue
        rest = last.steps // max(extent.constant, 1)
        if not extent.is_const or rest * extent.constant != last.steps:
            fail("csl-view", f"{view} does not lie evenly in memory", span)
        by = extent.constant
        count = None if last.count is None else rest
        left.append(Dim(last.extent // by, last.stride * by, count))
        found.append(Dim(by, last.stride))
    return found[::-1]


def _joined(dims: Iterable[Dim]) -> list[Dim]:
    """``dims`` joined to as few as walk through the same elements in the same order."""
    kept: list[Dim] = []
    for dim in dims:
        if dim.extent == 1:
            continue
        outer = kept[-1] if kept else None
        if outer and dim.count is None and outer.stride == dim.extent * dim.stride:
            count = None if outer.count is None else outer.count * dim.extent
            kept[-1] = Dim(outer.extent * dim.extent, dim.stride, count)
        else:
            kept.append(dim)
    return kept

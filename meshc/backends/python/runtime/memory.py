"""Memory of the cores: buffers and the strided windows of them that statements work on.

An array behind a buffer has a hidden leading axis, one lane per core. Programs hold buffers and
views, which do not show it: kernels and channels reach the arrays, core by core.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from .cores import Cores, Fabric
from .percore import IsolationError, PerCore
from .scattered import Scattered

Array = NDArray[Any]

_CACHED_VIEWS = 4096  # per buffer; views that change from run to run must not pile up


class Span(NamedTuple):
    """``extent`` positions from ``start``, which differs between cores, ``step`` apart."""

    start: PerCore
    extent: int
    step: int = 1


def span(start: PerCore | int, extent: int, step: int = 1) -> slice | Span:
    """A window of one dim; a plain slice when it lies at the same place on all cores."""
    if isinstance(start, PerCore):
        return Span(start, extent, step)
    return slice(start, start + (extent - 1) * step + 1 if extent else start, step)


Index = int | slice | PerCore | Span


def round_f16(array: Array) -> None:
    """Round float32 values to the nearest half-precision ones (ties to even), in place."""
    size = np.abs(array)
    # below 2**-14 the last place is 2**-24, which is that of float32 numbers from 0.5 to 1
    small = np.copysign((size + np.float32(0.5)) - np.float32(0.5), array)
    _drop_bits(array, 13)
    np.copyto(array, small, where=size < np.float32(2.0**-14))
    np.copyto(array, np.copysign(np.float32(np.inf), array), where=size >= np.float32(65520))


def round_bf16(array: Array) -> None:
    """Round float32 values to the nearest bfloat16 ones (ties to even), in place."""
    _drop_bits(array, 16)


def _drop_bits(array: Array, count: int) -> None:
    """Round to float32 values whose last ``count`` bits are zero; what is not finite stays."""
    finite = np.isfinite(array)
    bits = array.view(np.uint32)
    odd = (bits >> np.uint32(count)) & np.uint32(1)
    rounded = (bits + (odd + np.uint32(2 ** (count - 1) - 1))) & np.uint32(2**32 - 2**count)
    np.copyto(bits, rounded, where=finite)


ROUNDING: dict[str, Callable[[Array], None]] = {"f16": round_f16, "bf16": round_bf16}


# A core packs two codes of 4 bits into a byte; here each has a byte of its own.
_NUMPY: dict[str, type[np.generic]] = {"i32": np.int32, "u8": np.uint8, "u4": np.uint8}
"""NumPy types of the elements that are no floats."""


class View:
    """A window of a buffer, the same shape on every core: the operand of kernels and transfers.

    ``shaped`` reshapes (row-major), then ``ordered`` permutes dims. The methods that take cores
    are the runtime's; the arrays they remember stay valid because memory never moves once taken.
    """

    def __init__(
        self,
        memory: Memory,
        index: tuple[Index, ...] = (),
        reshape: tuple[int, ...] | None = None,
        order: tuple[int, ...] | None = None,
    ) -> None:
        self.fabric: Fabric = memory.fabric
        self.memory = memory
        self.rounds = ROUNDING.get(memory.dtype)
        self._index, self._reshape, self._order = index, reshape, order
        self._plain = _shape(memory.shape, index)
        self.shape = self._plain if reshape is None else reshape
        if prod(self.shape) != prod(self._plain):
            raise ValueError(f"a view of {self._plain} elements has no shape {reshape}")
        if order is not None:
            self.shape = tuple([self.shape[i] for i in order])
        self.derived: dict[object, Array] = {}  # what a kernel remembers of a constant
        self._scattered = any(isinstance(part, (PerCore, Span)) for part in index)
        self._arrays: dict[Cores, Array | None] = {}
        self._places: dict[Cores, Scattered] = {}
        self._shaped: dict[tuple[int, ...], View] = {}
        self._ordered: dict[tuple[int, ...], View] = {}

    # --- what programs use

    def shaped(self, *shape: int) -> View:
        """The same elements, in row-major order, with other extents."""
        found = self._shaped.get(shape)
        if found is None:
            found = self._shaped[shape] = View(self.memory, self._index, shape)
        return found

    def ordered(self, *order: int) -> View:
        """The same elements with the dims permuted."""
        found = self._ordered.get(order)
        if found is None:
            found = self._ordered[order] = View(self.memory, self._index, self._reshape, order)
        return found

    def __iter__(self) -> NoReturn:
        raise IsolationError(f"'{self.memory.name}' can be reached by kernels and channels only")

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise IsolationError(f"'{self.memory.name}' can be reached by kernels and channels only")

    # --- what kernels and channels use

    def read(self, cores: Cores) -> Array:
        """The elements on ``cores``, ``[cores, *shape]``; not to be written to."""
        array = self._arrays.get(cores)
        if array is None:
            array = self.direct(cores)
        return self.load(cores) if array is None else array

    def direct(self, cores: Cores) -> Array | None:
        """The memory itself as ``[cores, *shape]``, or None where that is no strided window."""
        if cores in self._arrays:
            return self._arrays[cores]
        array = None
        if isinstance(cores.key, slice) and not self._scattered:
            array = _aliased(self._based(cores.key), self._reshape, self._order, 1)
        self._arrays[cores] = array
        return array

    @cached_property
    def on_grid(self) -> Array | None:
        """All of the memory as ``[regions, rows, columns, *shape]``, where cores lie in order."""
        whole = self.direct(self.fabric.everyone) if self.fabric.natural else None
        return None if whole is None else whole.reshape(self.fabric.mesh.grid + self.shape)

    def apart(self, other: View) -> bool:
        """Whether the two surely have no element in common."""
        pairs = zip(self._index, other._index, strict=False)
        return self.memory is not other.memory or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs
        )

    def load(self, cores: Cores) -> Array:
        """A copy of the elements on ``cores``, ``[cores, *shape]``."""
        if self._scattered:
            array = self._scatter(cores).load()
        else:
            every, lanes = self._based(slice(None)), cores.lanes
            array = every.take(lanes, axis=0) if every.flags.c_contiguous else every[lanes]
        if self._reshape is not None:
            array = array.reshape((cores.count, *self._reshape))
        if self._order is not None:
            array = array.transpose(0, *(1 + i for i in self._order))
        return array

    def store(self, cores: Cores, value: Array) -> None:
        """Write ``[cores, *shape]`` elements."""
        if self._order is not None:
            value = value.transpose(0, *(1 + i for i in np.argsort(self._order)))
        value = value.reshape((cores.count, *self._plain))
        if self._scattered:
            self._scatter(cores).store(value)
        else:
            self._based(slice(None))[cores.key] = value

    # --- how

    def _based(self, key: slice) -> Array:
        """Memory of a slice of cores, sliced by the indices that are equal on all cores."""
        plain = [slice(None) if isinstance(i, (PerCore, Span)) else i for i in self._index]
        array: Array = self.memory.array[(key, *plain)]
        return array

    def _scatter(self, cores: Cores) -> Scattered:
        """Where the elements lie on ``cores``; computed once."""
        found = self._places.get(cores)
        if found is None:
            found = self._places[cores] = self._located(cores)
        return found

    def _located(self, cores: Cores) -> Scattered:
        axes: list[int] = []
        parts: list[PerCore | Span] = []
        axis = 1
        for part in self._index:
            if isinstance(part, (PerCore, Span)):
                axes.append(axis)
                parts.append(part)
            axis += not isinstance(part, int)
        array = self._based(slice(None))
        wide = [isinstance(part, Span) for part in parts]
        places: list[Array] = [cores.lanes.reshape(-1, *[1] * sum(wide))]
        for number, (part, axis) in enumerate(zip(parts, axes, strict=True)):
            places.append(_positions(cores, part, sum(wide[:number]), sum(wide)))
            if places[-1].min() < 0 or places[-1].max() >= array.shape[axis]:
                extent = array.shape[axis]
                raise IndexError(f"an index of '{self.memory.name}' leaves its extent {extent}")
        kept = [a for a, is_span in zip(axes, wide, strict=True) if is_span]
        return Scattered(array, axes, kept, tuple(places))


class Memory:
    """The array behind a buffer, ``[cores, *shape]``. Half types are kept as rounded float32.

    The first ``stacked`` dims vary slowest in the host's memory, before the cores: statements that
    work on one layer then find what all cores have of it side by side. ``by_columns`` is the order
    in which BLAS multiplies a vector by matrices with short columns sooner.
    """

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        stacked: int = 0,
        by_columns: bool = False,
    ) -> None:
        self.fabric = fabric
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self._stacked, self._by_columns = stacked, by_columns
        self.constant = False  # holds the same as long as the program is loaded
        self.requests: int | None = None  # which dim counts requests
        self.array: Array = np.empty((0, *shape))

    def allocate(self) -> Array:
        """Take room, filled with zeros, on every core."""
        kind = _NUMPY.get(self.dtype, np.float32)
        # empty, then filled: NumPy asks for large pages, which makes first use much faster
        stack, rest = self.shape[: self._stacked], self.shape[self._stacked :]
        if self._by_columns:
            rest = (*rest[:-2], rest[-1], rest[-2])
        array = np.empty((*stack, self.fabric.mesh.count, *rest), kind)
        array.fill(0)
        if self._by_columns:
            array = array.swapaxes(-1, -2)
        self.array = np.moveaxis(array, self._stacked, 0)
        return self.array

    def poison(self) -> None:
        """Fill with NaN (integers with 0), so that nothing is used before it is written."""
        self.array.fill(0 if self.dtype in _NUMPY else np.nan)


class Buffer(View):
    """All of a buffer; ``buffer[i, lo:hi, span(start, n)]`` is a window of it."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.name = memory.name
        self._windows: dict[object, View] = {}

    def __getitem__(self, index: Index | tuple[Index, ...]) -> View:
        name: object = index
        if type(index) is slice:  # slices have no hash
            name = (index.start, index.stop, index.step)
        elif type(index) is tuple:  # what differs between cores is told apart by identity
            name = tuple([(p.start, p.stop, p.step) if type(p) is slice else p for p in index])
        found = self._windows.get(name)
        if found is None:
            if len(self._windows) >= _CACHED_VIEWS:
                self._windows.clear()
            parts: tuple[Index, ...] = index if type(index) is tuple else (index,)  # type: ignore[assignment]
            found = self._windows[name] = View(self.memory, parts)
        return found


def _shape(extents: tuple[int, ...], index: tuple[Index, ...]) -> tuple[int, ...]:
    shape = []
    for axis, extent in enumerate(extents):
        part = index[axis] if axis < len(index) else slice(None)
        if isinstance(part, slice):
            if part.stop is not None and part.stop > extent:
                raise IndexError(f"a window ends at {part.stop}, beyond the extent {extent}")
            shape.append(len(range(*part.indices(extent))))
        elif isinstance(part, Span):
            shape.append(part.extent)
    return tuple(shape)


def _aliased(
    array: Array, reshape: tuple[int, ...] | None, order: tuple[int, ...] | None, lead: int
) -> Array | None:
    """``array`` with other dims after the ``lead`` first, if that takes no copy."""
    if reshape is not None:
        shaped = array.reshape(array.shape[:lead] + reshape)
        if shaped.size and not np.may_share_memory(shaped, array):
            return None
        array = shaped
    if order is not None:
        array = array.transpose(*range(lead), *(lead + i for i in order))
    return array


def _positions(cores: Cores, part: PerCore | Span, before: int, wide: int) -> Array:
    """Where a per-core index points, ``[cores, 1.., extent, ..1]`` over ``wide`` spans."""
    start = part.start if isinstance(part, Span) else part
    lanes = cores.fabric.by_lane(start)[cores.lanes].reshape(-1, *[1] * wide)
    if not isinstance(part, Span):
        return lanes
    shape = [1] * (1 + wide)
    shape[1 + before] = part.extent
    return lanes + (np.arange(part.extent) * part.step).reshape(shape)

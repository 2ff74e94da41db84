"""Global memory of kernels, between pages that nobody may touch.

An array ends where such pages begin, and there are as many in front of the page that it begins in.
So an access behind the end, or in front of that page, ends a run in any mode (``mc_faults.cc`` says
which array it was); what lies between the page's start and the array is looked at behind each
launch. Memory of a GPU begins where the widest load may, and so an array begins at a multiple of 16
bytes here: one of another size ends up to 15 bytes in front of the pages, and these are looked at
too.
"""

from __future__ import annotations

import ctypes as ct
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Argument = np.ndarray | np.generic
"""What a kernel is given: arrays by their addresses, numbers by their values."""
_GUARD = 1 << 20  # bytes on either side, which are kept free and take no memory
_ALIGNED = 16  # bytes of the widest load
_UNTOUCHED = 0xFF  # what lies in front of an array, and behind it
_NO_ACCESS = 0  # PROT_NONE


class GuardedMemory(mmap.mmap):
    """``count`` bytes between memory that cannot be read or written."""

    count: int

    @classmethod
    def of(cls, count: int) -> GuardedMemory:
        """Zeros. Raises OSError when there is not enough memory."""
        inner = -(-max(count, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        made = cls(-1, inner + 2 * _GUARD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        made.count = count
        for at in (made.begin, made.end - _GUARD):
            _protect(at)
        for first, end in made._around:
            ct.memset(made.begin + first, _UNTOUCHED, end - first)
        return made

    @property
    def begin(self) -> int:
        """The address of the first byte that nobody may touch."""
        return ct.addressof(ct.c_char.from_buffer(self))

    @property
    def end(self) -> int:
        """The address behind the last byte that nobody may touch."""
        return self.begin + len(self)

    @property
    def written(self) -> str:
        """Where around the bytes something was written, in one page with the first or the last:
        in words, empty for nowhere."""
        for where, (first, end) in zip(("in front of", "behind"), self._around, strict=True):
            if self[first:end] != bytes((_UNTOUCHED,)) * (end - first):
                return where
        return ""

    def array(self, shape: Sequence[int], dtype: DTypeLike, offset: int = 0) -> Array:
        """The bytes from ``offset`` on as an array."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self, kind, count, self._first + offset).reshape(shape)

    @property
    def _first(self) -> int:
        """Where the bytes begin."""
        return (len(self) - _GUARD - self.count) // _ALIGNED * _ALIGNED

    @property
    def _around(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """What lies between the guards and the bytes, in front of them and behind them."""
        return (_GUARD, self._first), (self._first + self.count, len(self) - _GUARD)


def guarded(array: Array) -> Array:
    """A copy of ``array`` in guarded memory. Raises OSError when there is not enough memory."""
    made = GuardedMemory.of(array.nbytes).array(array.shape, array.dtype)
    made[...] = array
    return made


def memory_of(array: Array) -> GuardedMemory | None:
    """The guarded memory that ``array`` lies in, if it does."""
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    found = base.obj if isinstance(base, memoryview) else base
    return found if isinstance(found, GuardedMemory) else None


@contextmanager
def placed(arguments: Sequence[Argument]) -> Iterator[list[Argument]]:
    """``arguments`` with their arrays in guarded memory: others are copied there, and back behind
    the block; those that overlap do so there too. What is not contiguous stays where it is. Raises
    OSError when there is not enough memory."""
    found, copied = list(arguments), []
    for span in _spans(arguments):
        first = min(array.ctypes.data for _, array in span)
        end = max(array.ctypes.data + array.nbytes for _, array in span)
        memory = GuardedMemory.of(end - first)
        for n, array in span:
            made = memory.array(array.shape, array.dtype, array.ctypes.data - first)
            made[...] = array
            found[n] = made
            copied.append((array, made))
    try:
        yield found
    finally:
        for array, made in copied:
            if array.flags.writeable:
                array[...] = made


def _spans(arguments: Sequence[Argument]) -> list[list[tuple[int, Array]]]:
    """The arguments that are contiguous arrays outside of guarded memory, with their places, those
    together that overlap."""
    loose = [
        (n, one)
        for n, one in enumerate(arguments)
        if isinstance(one, np.ndarray) and one.flags.c_contiguous and memory_of(one) is None
    ]
    found: list[list[tuple[int, Array]]] = []
    end = -1
    for n, array in sorted(loose, key=lambda one: one[1].ctypes.data):
        if not found or array.ctypes.data >= end:
            found.append([])
        found[-1].append((n, array))
        end = max(end, array.ctypes.data + array.nbytes)
    return found


def _protect(at: int) -> None:
    """Let nobody read or write the guard at this address. Raises OSError."""
    if _mprotect(at, _GUARD, _NO_ACCESS):
        code = ct.get_errno()
        raise OSError(code, os.strerror(code))


_mprotect = ct.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ct.c_void_p, ct.c_size_t, ct.c_int)

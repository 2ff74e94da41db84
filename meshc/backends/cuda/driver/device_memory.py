"""Memory of a device, and arguments of kernels as bytes."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshc.backends.cuda.driver.context import Context, Owned
from meshc.backends.cuda.driver.driver_api import OUT_OF_MEMORY
from meshc.backends.cuda.driver.streams import Stream
from meshc.support.diagnostics import fail

_MIB = 1024 * 1024


class Buffer:
    """``nbytes`` of memory of the device, at least one; the content at first is anything."""

    def __init__(
        self, context: Context, nbytes: int, stream: Stream, lent: np.uint64 | None = None
    ) -> None:
        """Raises MeshcError, ``cuda-memory`` when there is too little free memory, and ValueError
        for a negative size. ``stream`` is that of copies that name none. With an address that is
        ``lent`` the memory is another library's, which gives it back."""
        if nbytes < 0:
            raise ValueError(f"a buffer of {nbytes} bytes")
        self.nbytes = nbytes
        self._context = context
        self._stream = stream
        self._owned: Owned | None = None
        self._address: int | None = None if lent is None else int(lent)
        if lent is None:
            self._allocate()

    def _allocate(self) -> None:
        context, nbytes = self._context, self.nbytes
        address = ct.c_uint64()
        code = context.driver.result("cuMemAlloc_v2", ct.byref(address), max(nbytes, 1))
        if code == OUT_OF_MEMORY:
            _fail_memory(context, nbytes)
        elif code:
            context.driver.explain("cuMemAlloc_v2", code)
        self._owned = context.own("cuMemFree_v2", address.value)
        self._address = address.value

    def address(self, offset: int = 0) -> np.uint64:
        """The device address ``offset`` bytes behind the start, as an argument of a kernel.

        Raises ValueError outside of the buffer, and for one that was freed.
        """
        return np.uint64(self._range(offset, 0))

    def write(self, array: NDArray[Any], offset: int = 0, stream: Stream | None = None) -> None:
        """Copy ``array`` to the device. Raises MeshcError, and ValueError for one that does not
        fit, and while the stream is captured."""
        data = np.ascontiguousarray(array)
        place = self._range(offset, data.nbytes)
        target = self._order(stream)
        if data.nbytes:
            self._context.driver.call(
                "cuMemcpyHtoDAsync_v2", place, data.ctypes.data, data.nbytes, target.handle
            )

    def read(
        self,
        dtype: DTypeLike,
        shape: int | Sequence[int],
        offset: int = 0,
        stream: Stream | None = None,
    ) -> NDArray[Any]:
        """A copy of an array that lies in the buffer; waits for the stream. Raises as ``write``."""
        found = np.empty(shape, dtype)
        place = self._range(offset, found.nbytes)
        source = self._order(stream)
        if found.nbytes:
            self._context.driver.call(
                "cuMemcpyDtoHAsync_v2", found.ctypes.data, place, found.nbytes, source.handle
            )
        source.synchronize()
        return found

    def fill(self, byte: int = 0, stream: Stream | None = None) -> None:
        """Set every byte. Raises as ``write``."""
        target = self._order(stream)
        self._context.driver.call(
            "cuMemsetD8Async", self._range(0, 0), byte, self.nbytes, target.handle
        )

    def free(self) -> None:
        """Give the memory back, unless it is lent. Raises MeshcError."""
        self._address = None
        if self._owned is not None:
            self._context.release(self._owned)

    def _range(self, offset: int, size: int) -> int:
        if self._address is None:
            raise ValueError("the buffer was freed")
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} lie outside of {self.nbytes}")
        return self._address + offset

    def _order(self, stream: Stream | None) -> Stream:
        """A copy in a capture would read or write host memory whenever the graph is launched."""
        used = stream or self._stream
        if used.graph is not None:
            raise ValueError("memory of the host cannot be copied while a stream is captured")
        return used


def _fail_memory(context: Context, nbytes: int) -> None:
    free, total = ct.c_size_t(), ct.c_size_t()
    context.driver.result("cuMemGetInfo_v2", ct.byref(free), ct.byref(total))
    fail(
        "cuda-memory",
        f"{nbytes / _MIB:.1f} MiB do not fit on {context.facts.name}: "
        f"{free.value / _MIB:.1f} MiB of {total.value / _MIB:.1f} MiB are free",
        help="a shorter --seq or a smaller batch needs less; `nvidia-smi` lists who uses the rest",
    )


def argument_bytes(argument: object) -> bytes:
    """An argument as a kernel receives it: buffers, tensors of torch and arrays with
    ``__cuda_array_interface__`` by address, NumPy scalars by value.

    Raises TypeError for anything else, for memory of the host and for what is not contiguous.
    """
    value = argument if isinstance(argument, np.generic) else address_of(argument)
    return value.tobytes()


def address_of(argument: object) -> np.uint64:
    """Where a buffer, a tensor of torch or an array with ``__cuda_array_interface__`` begins in
    memory of the device. Raises TypeError as :func:`argument_bytes`."""
    if isinstance(argument, Buffer):
        return argument.address()
    # Before the interface, which torch has not for all of its types.
    if callable(pointer := getattr(argument, "data_ptr", None)):
        if not getattr(argument, "is_cuda", True):
            raise TypeError("a tensor in memory of the host cannot be given to a kernel")
        if not getattr(argument, "is_contiguous", lambda: True)():
            raise TypeError("a tensor that is not contiguous cannot be given to a kernel")
        return np.uint64(pointer())
    if isinstance(described := getattr(argument, "__cuda_array_interface__", None), dict):
        if described.get("strides") is not None:
            raise TypeError("an array that is not contiguous cannot be given to a kernel")
        return np.uint64(described["data"][0])
    raise TypeError(f"{type(argument).__name__} cannot be given to a kernel")

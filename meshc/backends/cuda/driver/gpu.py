"""A GPU: its memory, streams and kernels, from opening to closing."""

from __future__ import annotations

import ctypes as ct
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.driver.context import Context, DeviceFacts
from meshc.backends.cuda.driver.device_memory import Buffer, address_of
from meshc.backends.cuda.driver.driver_api import LIBRARY, Driver
from meshc.backends.cuda.driver.launch import Kernel, load_kernels
from meshc.backends.cuda.driver.streams import Stream
from meshc.backends.cuda.toolchain.toolkit import Cubin
from meshc.support.diagnostics import MeshcError


class Device:
    """An open GPU, used by one thread at a time; a context manager that gives everything back.

    ``stream`` is where copies and launches go that name no other.
    """

    def __init__(self, index: int | None = None, library: str = LIBRARY) -> None:
        """Open device ``index``, or the first that can run the kernels.

        Raises MeshcError: ``cuda-driver`` without a driver that is new enough, ``cuda-device``
        without a device of compute capability 9.0 or newer.
        """
        self._context = Context(Driver(library), index)
        try:
            self.stream = Stream.create(self._context)
        except MeshcError:
            self._close_quietly()
            raise

    @property
    def facts(self) -> DeviceFacts:
        """What the driver says of the device."""
        return self._context.facts

    @property
    def index(self) -> int:
        """Which of the driver's devices this is."""
        return self._context.index

    @property
    def free_bytes(self) -> int:
        """Memory that is free now. Raises MeshcError."""
        free, total = ct.c_size_t(), ct.c_size_t()
        self._context.driver.call("cuMemGetInfo_v2", ct.byref(free), ct.byref(total))
        return free.value

    def use_here(self) -> None:
        """Let the calling thread use it, of which the one that opened it waits for the end before
        it closes. Raises MeshcError."""
        self._context.use_here()

    def load(self, cubin: Cubin) -> dict[str, Kernel]:
        """The kernels of a cubin by name. Raises MeshcError, ``cuda-driver`` for a driver that is
        too old for it."""
        return load_kernels(self._context, cubin)

    def allocate(self, nbytes: int) -> Buffer:
        """Memory whose content is anything. Raises MeshcError ``cuda-memory``."""
        return Buffer(self._context, nbytes, self.stream)

    def upload(self, array: NDArray[Any]) -> Buffer:
        """Memory that holds ``array``. Raises MeshcError ``cuda-memory``."""
        buffer = self.allocate(np.asarray(array).nbytes)
        buffer.write(array)
        return buffer

    def adopt(self, memory: Any, nbytes: int) -> Buffer:
        """So many bytes of another library's ``memory`` on the device, such as a tensor of torch,
        which is not freed here. Raises as :func:`address_of`."""
        return Buffer(self._context, nbytes, self.stream, address_of(memory))

    def create_stream(self) -> Stream:
        """A further stream. Raises MeshcError."""
        return Stream.create(self._context)

    def create_stream_ahead(self) -> Stream:
        """A further stream, whose blocks go before those of others. Raises MeshcError."""
        return Stream.create_ahead(self._context)

    def adopt_stream(self, handle: int) -> Stream:
        """Another library's stream by its ``CUstream``, such as torch's ``cuda_stream``."""
        return Stream(self._context, handle or None)

    def close(self) -> None:
        """Give everything back; nothing of the device can be used after. Raises MeshcError."""
        self._context.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if problem is None:
            self.close()
        else:
            self._close_quietly()

    def _close_quietly(self) -> None:
        """Close; what was wrong before is what the user is told."""
        try:
            self._context.close()
        except MeshcError:
            return

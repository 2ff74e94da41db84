"""Work in order: streams, events that measure time and order streams, graphs that repeat what was
captured."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterator
from contextlib import contextmanager

from meshc.backends.cuda.driver.context import Context, Owned

# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do is no part of the capture.
_THREAD_LOCAL = 1


class Event:
    """A point in a stream."""

    def __init__(self, context: Context, owned: Owned) -> None:
        self._context = context
        self._owned = owned

    @property
    def handle(self) -> int | None:
        """The driver's ``CUevent``."""
        return self._owned.handle

    def milliseconds_since(self, earlier: Event) -> float:
        """Time between two events of which this one is later; waits for this one.

        Raises MeshcError.
        """
        elapsed = ct.c_float()
        self._context.driver.call("cuEventSynchronize", self.handle)
        self._context.driver.call(
            "cuEventElapsedTime", ct.byref(elapsed), earlier.handle, self.handle
        )
        return elapsed.value

    def free(self) -> None:
        """Give the event back. Raises MeshcError."""
        self._context.release(self._owned)


class Graph:
    """What a stream was told while it was captured, to be launched as one."""

    def __init__(self, context: Context, stream: Stream) -> None:
        self._context = context
        self._stream = stream
        self._owned: Owned | None = None
        self.kernels: list[str] = []

    def launch(self, stream: Stream | None = None) -> None:
        """Start all of it, on the stream that was captured or on another.

        Raises MeshcError, and ValueError while it is still being captured.
        """
        if self._owned is None:
            raise ValueError("a graph is launched after its capture has ended")
        target = stream or self._stream
        self._context.driver.call("cuGraphLaunch", self._owned.handle, target.handle)
        self._context.driver.running(*self.kernels)

    def free(self) -> None:
        """Give the graph back. Raises MeshcError."""
        if self._owned is not None:
            self._context.release(self._owned)

    def _fill(self, template: ct.c_void_p) -> None:
        """Make the captured ``template`` launchable; the template itself is not kept."""
        driver, made = self._context.driver, ct.c_void_p()
        code = driver.result("cuGraphInstantiateWithFlags", ct.byref(made), template, 0)
        driver.result("cuGraphDestroy", template)
        if code:
            driver.explain("cuGraphInstantiateWithFlags", code)
        self._owned = self._context.own("cuGraphExecDestroy", made.value)


class Stream:
    """Copies and launches, one after the other."""

    def __init__(self, context: Context, handle: int | None, owned: Owned | None = None) -> None:
        self._context = context
        self._owned = owned
        self.handle = handle
        self.graph: Graph | None = None

    @classmethod
    def create(cls, context: Context) -> Stream:
        """A stream that waits for, and is waited for by, the process's default stream, so that
        other libraries' work on that one is ordered with it. Raises MeshcError."""
        handle = ct.c_void_p()
        context.driver.call("cuStreamCreate", ct.byref(handle), 0)
        return cls(context, handle.value, context.own("cuStreamDestroy_v2", handle.value))

    @classmethod
    def create_ahead(cls, context: Context) -> Stream:
        """Like :meth:`create`, a stream whose blocks take multiprocessors that become free before
        those of other streams. Raises MeshcError."""
        least, greatest, handle = ct.c_int(), ct.c_int(), ct.c_void_p()
        context.driver.call("cuCtxGetStreamPriorityRange", ct.byref(least), ct.byref(greatest))
        context.driver.call("cuStreamCreateWithPriority", ct.byref(handle), 0, greatest.value)
        return cls(context, handle.value, context.own("cuStreamDestroy_v2", handle.value))

    def synchronize(self) -> None:
        """Wait until all of it is done. Raises MeshcError, ``cuda-fault`` for a kernel's fault."""
        self._context.driver.call("cuStreamSynchronize", self.handle)
        self._context.driver.finished()

    def record(self) -> Event:
        """A new event behind all that was given to the stream. Raises MeshcError."""
        handle = ct.c_void_p()
        self._context.driver.call("cuEventCreate", ct.byref(handle), 0)
        owned = self._context.own("cuEventDestroy_v2", handle.value)
        self._context.driver.call("cuEventRecord", handle, self.handle)
        return Event(self._context, owned)

    def wait(self, event: Event) -> None:
        """Let what follows wait for ``event``. Raises MeshcError."""
        self._context.driver.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def launched(self, kernel: str) -> None:
        """Note a launch: in the graph while one is captured, among the running ones otherwise."""
        if self.graph is not None:
            self.graph.kernels.append(kernel)
        else:
            self._context.driver.running(kernel)

    @contextmanager
    def capture(self, *beside: Stream) -> Iterator[Graph]:
        """Collect launches into a graph, which is ready when the block ends; those on the streams
        ``beside`` too, which then wait for an event of this one before and are waited for behind.

        Raises MeshcError, and ValueError for a capture within a capture.
        """
        if self.graph is not None:
            raise ValueError("the stream is being captured already")
        driver, template = self._context.driver, ct.c_void_p()
        driver.call("cuStreamBeginCapture_v2", self.handle, _THREAD_LOCAL)
        graph = Graph(self._context, self)
        for stream in (self, *beside):
            stream.graph = graph
        try:
            yield graph
        except BaseException:
            if not driver.result("cuStreamEndCapture", self.handle, ct.byref(template)):
                driver.result("cuGraphDestroy", template)
            raise
        finally:
            for stream in (self, *beside):
                stream.graph = None
        driver.call("cuStreamEndCapture", self.handle, ct.byref(template))
        graph._fill(template)

    def free(self) -> None:
        """Give the stream back; one that was adopted stays. Raises MeshcError."""
        if self._owned is not None:
            self._context.release(self._owned)

"""A machine whose kernels run on a GPU: a decode step or a chunk of a prompt is one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshc.analysis.cuda.stream_turns import COMMUNICATION, COMPUTE
from meshc.backends.cuda.driver import product_check
from meshc.backends.cuda.driver.context import DeviceFacts
from meshc.backends.cuda.driver.device_memory import Buffer, address_of
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel as LoadedKernel
from meshc.backends.cuda.driver.streams import Event, Graph, Stream
from meshc.backends.cuda.executor import Grid
from meshc.backends.cuda.launches import Launch, part_of
from meshc.backends.cuda.program import Kernel, Target
from meshc.backends.cuda.queues import Queue
from meshc.backends.cuda.toolchain.toolkit import CompilerName, Cubin, compile_cubin
from meshc.support.diagnostics import fail
from meshc.support.native import BuildError

Array = NDArray[Any]
_MOST_GRAPHS = 8


class GpuMachine:
    """Buffers of a device as memory. The first run of a step captures it; later runs repeat the
    graph, whose kernels start while the ones in front of them end. The last few steps that differ
    are kept: decode, and chunks of a prompt with logits and without.

    With ``checked`` every kernel is waited for instead, so that a fault names the one.
    """

    def __init__(
        self,
        device: Device,
        target: Target,
        kernels: Mapping[str, Kernel],
        texts: Mapping[str, str],
        compiler: CompilerName | None = None,
        checked: bool = False,
    ) -> None:
        """Compiles everything for ``target`` and loads it. Raises MeshcError, ``cuda-device`` for a
        device that does not run what is for the target, ``cuda-products`` for one that multiplies
        otherwise than kernels expect, and ``cuda-toolkit`` when it cannot be compiled."""
        _check_runs(device.facts, target)
        self.device = device
        self.checked = checked
        self._kernels: dict[str, tuple[LoadedKernel, Grid]] = {}
        files = sorted({kernel.file for kernel in kernels.values()})
        own = [texts[name] for name in files]
        checks = [product_check.TEXT] if product_check.has_products(own) else []
        cubins = _compiled([*own, *checks], target.arch, compiler)
        for cubin in cubins[len(own) :]:
            product_check.check_products(device, device.load(cubin)[product_check.NAME])
        loaded = {name: device.load(cubin) for name, cubin in zip(files, cubins, strict=False)}
        for name, kernel in kernels.items():
            found = loaded[kernel.file][name]
            self._kernels[name] = found, found.resident(Grid.of(kernel))
        self._beside: Stream | None = None  # of communication, once it is needed
        self._memory: dict[str, tuple[Buffer, tuple[int, ...], DTypeLike]] = {}
        self._graphs: list[tuple[object, Graph]] = []

    def use_here(self) -> None:
        """The calling thread is the one that uses it from now on. Raises MeshcError."""
        self.device.use_here()

    def store(self, name: str, array: Array) -> None:
        """Memory called ``name`` that holds ``array``. Raises MeshcError ``cuda-memory``."""
        if name in self._memory:
            self._forget()
            self._memory.pop(name)[0].free()
        self._memory[name] = self.device.upload(array), array.shape, array.dtype

    def lend(self, name: str, memory: Any) -> None:
        """Let ``name`` be ``memory`` from now on, which another library owns and keeps alive: a
        tensor of torch or an array with ``__cuda_array_interface__`` on this device, contiguous and
        of the shape and type that ``name`` had. Captured steps are forgotten where it is another
        one than before. Raises MeshcError, and TypeError for other memory."""
        held, shape, dtype = self._memory[name]
        if address_of(memory) == held.address():
            return
        self._forget()
        held.free()
        self._memory[name] = self.device.adopt(memory, held.nbytes), shape, dtype

    def write(self, name: str, array: Array) -> None:
        """Replace what ``name`` holds by an array of its shape. Raises MeshcError."""
        buffer, shape, dtype = self._memory[name]
        buffer.write(np.broadcast_to(array, shape).astype(dtype, copy=False))

    def read(self, name: str) -> Array:
        """What ``name`` holds, behind all that was started. Raises MeshcError."""
        buffer, shape, dtype = self._memory[name]
        return buffer.read(dtype, shape)

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """Start the launches of a step, one after the other. Raises MeshcError."""
        if self.checked:
            self._launch(launches)
            return
        step = list(launches)
        self._repeated(step, lambda: self._launch(step))

    def run_queue(self, queue: Queue) -> None:
        """Start the launches of ``queue`` on two streams. Raises MeshcError."""
        if self._beside is None:
            self._beside = self.device.create_stream_ahead()
        streams = {COMPUTE: self.device.stream, COMMUNICATION: self._beside}
        if self.checked:
            self._follow(queue, streams)
            return
        self._repeated(list(queue), lambda: self._follow(queue, streams), self._beside)

    def _repeated(self, step: object, launch: Callable[[], None], *beside: Stream) -> None:
        """Launch the graph of ``step``, which is captured from ``launch`` unless it is known."""
        known = next((graph for other, graph in self._graphs if other == step), None)
        if known is None:
            if len(self._graphs) == _MOST_GRAPHS:
                self._graphs.pop(0)[1].free()
            with self.device.stream.capture(*beside) as known:
                launch()
            self._graphs.append((step, known))
        known.launch()

    def _follow(self, queue: Queue, streams: Mapping[str, Stream]) -> None:
        """Launch ``queue`` as it stands, the stream of communication within that of compute."""
        events: dict[str, Event] = {}
        made = [streams[COMPUTE].record()]
        streams[COMMUNICATION].wait(made[0])
        # A kernel may start while the one in front of it ends, where nothing else orders them.
        early = dict.fromkeys(streams, False)
        for one, layer in queue:
            stream = streams[one.stream]
            if one.waits:
                stream.wait(events[one.waits])
                early[one.stream] = False
            kernel, grid = self._kernels[one.launch.kernel]
            arguments = [self._argument(a, layer) for a in one.launch.arguments]
            overlaps = early[one.stream] and not self.checked and kernel.may_start_early(grid)
            kernel.launch(grid, arguments, stream, programmatic=overlaps)
            early[one.stream] = not one.records
            if one.records:
                events[one.records] = stream.record()
                made.append(events[one.records])
            if self.checked:
                stream.synchronize()
        made.append(streams[COMMUNICATION].record())
        streams[COMPUTE].wait(made[-1])
        for event in made:
            event.free()

    def _launch(self, launches: Sequence[tuple[Launch, int]]) -> None:
        stream = self.device.stream
        for n, (launch, layer) in enumerate(launches):
            kernel, grid = self._kernels[launch.kernel]
            arguments = [self._argument(a, layer) for a in launch.arguments]
            # Kernels wait themselves for the one in front of them, which the first one has not.
            early = n > 0 and not self.checked and kernel.may_start_early(grid)
            kernel.launch(grid, arguments, stream, programmatic=early)
            if self.checked:
                stream.synchronize()

    def _argument(self, argument: str | int, layer: int) -> np.generic:
        if isinstance(argument, int):
            return np.int32(argument)
        if not argument:
            return np.uint64(0)
        name, part = part_of(argument, layer)
        buffer, shape, _ = self._memory[name]
        return buffer.address(0 if part is None else part * buffer.nbytes // shape[0])

    def _forget(self) -> None:
        while self._graphs:
            self._graphs.pop()[1].free()


def other_than(facts: DeviceFacts, target: Target) -> str:
    """In what the device of ``facts`` differs from the ``target`` of a program, by which its work
    was divided, in words; empty for the same."""
    found, wanted = facts.multiprocessors, target.multiprocessors
    if found == wanted and facts.shared_bytes == target.block_bytes:
        return ""
    return (
        f"the program was compiled for {target.name} ({wanted} multiprocessors, "
        f"{target.block_bytes} bytes of shared memory in a block); {facts.name} has {found} and "
        f"{facts.shared_bytes}"
    )


def _check_runs(facts: DeviceFacts, target: Target) -> None:
    """Raise ``cuda-device`` unless the device runs machine code for ``target`` in blocks of its
    size."""
    if facts.capability != target.capability:
        wanted = f"{target.capability[0]}.{target.capability[1]}"
        fail(
            "cuda-device",
            f"the program was compiled for {target.name} (compute capability {wanted}), not for "
            f"{facts.words()}",
            help="compile it for this GPU (--device); `--backend cuda-cpu` runs it on the CPU",
        )
    if facts.shared_bytes < target.block_bytes:
        fail("cuda-device", other_than(facts, target), help="compile it for this GPU (--device)")


def _compiled(texts: Sequence[str], arch: str, compiler: CompilerName | None) -> list[Cubin]:
    """The cubins of ``texts``, compiled at the same time: each takes seconds, on one core."""
    with ThreadPoolExecutor() as pool:
        try:
            return list(pool.map(lambda text: compile_cubin(text, arch, compiler), texts))
        except BuildError as problem:
            fail("cuda-toolkit", f"a kernel cannot be compiled: {problem}")

"""The GPUs of all ranks in the executor on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.executor.cpu_kernels import (
    CXX,
    FIRST,
    ExecutorError,
    Grid,
    Mode,
)
from meshc.backends.cuda.executor.cpu_machine import CpuMachine
from meshc.backends.cuda.executor.guarded_memory import Argument
from meshc.backends.cuda.executor.stream_races import (
    allowed_order,
    check_races,
    known_before,
    written_by,
)
from meshc.backends.cuda.executor.symmetric import SymmetricMemory, symmetric_memory
from meshc.backends.cuda.launches import OF_ALL, OF_EACH, RANK, RANKS, Launch
from meshc.backends.cuda.program import Kernel
from meshc.backends.cuda.queues import Queue
from meshc.support.diagnostics import fail
from meshc.support.native import Toolchain

Array = NDArray[Any]


MOST_BLOCKS = 132
"""Blocks of all GPUs together, of a kernel that takes any number of them: each block's threads are
alive at once, and a node of full grids has a hundred thousand."""


class CpuNode:
    """``count`` GPUs that take each launch of a step in turn, and together where it meets.

    What the host writes goes to all of them; what it reads must be the same on all. ``link_bytes``
    counts what GPUs loaded from others and stored to them. Raises ``cuda-executor`` when there is
    no compiler, and when a kernel does what none may.
    """

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        texts: Mapping[str, str],
        count: int,
        mode: Mode = FIRST,
        toolchain: Toolchain = CXX,
    ) -> None:
        first = CpuMachine(kernels, texts, mode, toolchain)
        self.gpus = [first, *(first.twin() for _ in range(count - 1))]
        self.mode = mode
        self._written = {
            name: written_by(texts[kernel.file], name) for name, kernel in kernels.items()
        }
        self.symmetric: dict[str, SymmetricMemory] = {}
        self.link_bytes = 0

    @property
    def here(self) -> range:
        """Ranks whose GPUs these are."""
        return range(len(self.gpus))

    def store_of(self, rank: int, name: str, array: Array) -> None:
        """Memory called ``name`` of the GPU of ``rank`` alone."""
        self.gpus[rank].store(name, array)

    def store_symmetric(self, name: str, array: Array, role: str) -> None:
        """Memory called ``name`` that GPUs reach of each other, zeros like ``array``."""
        number, count = len(self.symmetric), len(self.gpus)
        held = (role == kind for kind in ("signals", "counters", "words"))
        made = symmetric_memory(number, count, array.shape, array.dtype, *held)
        self.symmetric[name] = made
        for gpu, part in zip(self.gpus, made.parts, strict=True):
            gpu.arrays[name] = part

    def store(self, name: str, array: Array) -> None:
        """Memory called ``name`` of each GPU that holds ``array``."""
        for gpu in self.gpus:
            gpu.store(name, array.copy())

    def write(self, name: str, array: Array) -> None:
        """Replace what ``name`` holds on each GPU."""
        for gpu in self.gpus:
            gpu.write(name, array)

    def read(self, name: str) -> Array:
        """A copy of what ``name`` holds on every GPU."""
        first, *others = (gpu.read(name) for gpu in self.gpus)
        if any(first.tobytes() != other.tobytes() for other in others):
            fail("cuda-executor", f"the GPUs of the ranks hold different values in {name}")
        return first

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """The launches one after the other."""
        for launch, layer in launches:
            if self.gpus[0].kernels[launch.kernel].meets:
                self._meet(launch, layer)
                continue
            for gpu in self.gpus:
                gpu.run([(launch, layer)])

    def run_queue(self, queue: Queue) -> None:
        """The launches of ``queue`` one after the other, in an order that its streams and events
        allow. Raises ``cuda-executor`` for what races."""
        known = known_before(queue)
        check_races(queue, known, self._written)
        for one, layer in allowed_order(queue, known, self.mode):
            self.run([(one.launch, layer)])

    def _meet(self, launch: Launch, layer: int) -> None:
        kernel = self.gpus[0].kernels[launch.kernel]
        if kernel.whole_grid:
            few = max(MOST_BLOCKS // len(self.gpus), kernel.least_blocks)
            kernel = replace(kernel, blocks=min(kernel.blocks, few))
        names = [str(a).partition("@")[0] for a in launch.arguments]
        memories = [self.symmetric[n] for n in dict.fromkeys(names) if n in self.symmetric]
        given = [[self._argument(rank, a, layer) for a in launch.arguments] for rank in self.here]
        grid = Grid.of(kernel)
        library = self.gpus[0].library(launch.kernel)
        try:
            self.link_bytes += library.run_on_gpus(launch.kernel, grid, given, memories, self.mode)
        except ExecutorError as problem:
            fail("cuda-executor", str(problem))

    def _argument(self, rank: int, argument: str | int, layer: int) -> Argument:
        if argument in (RANK, RANKS):
            return np.int32(rank if argument == RANK else len(self.gpus))
        if isinstance(argument, str) and argument.endswith(OF_ALL):
            return np.uint64(self.symmetric[argument.removesuffix(OF_ALL)].multicast)
        if isinstance(argument, str) and argument.endswith(OF_EACH):
            return self.symmetric[argument.removesuffix(OF_EACH)].addresses
        return self.gpus[rank].argument(argument, layer)

"""A machine whose kernels run in the executor on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.executor.cpu_kernels import (
    CXX,
    FIRST,
    QUICK,
    ExecutorError,
    Grid,
    Library,
    Mode,
)
from meshc.backends.cuda.executor.guarded_memory import Argument, guarded
from meshc.backends.cuda.launches import Launch, part_of
from meshc.backends.cuda.program import Kernel
from meshc.support.diagnostics import fail
from meshc.support.native import BuildError, Toolchain

Array = NDArray[Any]
_FEW_BYTES = 64 << 20


def toolchain_for(weight_bytes: int) -> Toolchain:
    """The compiler for kernels of a model of so many bytes: one that optimises less where a step
    takes less time than to compile kernels well."""
    return QUICK if weight_bytes < _FEW_BYTES else CXX


class CpuMachine:
    """Arrays as memory, the executor for launches. A kernel is compiled when it is launched first.
    Raises ``cuda-executor`` when there is no compiler, or a kernel does what none may."""

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        texts: Mapping[str, str],
        mode: Mode = FIRST,
        toolchain: Toolchain = CXX,
    ) -> None:
        self.kernels = dict(kernels)
        self.mode = mode
        self.arrays: dict[str, Array] = {}
        self._texts = texts
        self._toolchain = toolchain
        self._libraries: dict[str, Library] = {}
        if toolchain.path() is None:
            _refuse(f"no {toolchain.language} compiler was found")

    def twin(self) -> CpuMachine:
        """A machine with the same kernels and memory of its own."""
        other = copy(self)
        other.arrays = {}
        return other

    def library(self, kernel: str) -> Library:
        """What ``kernel`` was compiled to."""
        found = self._libraries.get(kernel)
        if found is None:
            try:
                found = Library(self._texts[self.kernels[kernel].file], toolchain=self._toolchain)
            except BuildError as problem:
                _refuse(str(problem))
            self._libraries[kernel] = found
        return found

    def store(self, name: str, array: Array) -> None:
        """Memory called ``name`` that holds ``array``."""
        self.arrays[name] = guarded(array)

    def lend(self, name: str, memory: Array) -> None:
        """Let ``name`` be ``memory`` from now on, which another library owns, contiguous and of the
        shape and type that it had. Kernels find a copy in guarded memory, which is copied back
        behind each launch."""
        self.arrays[name] = memory

    def write(self, name: str, array: Array) -> None:
        """Replace what ``name`` holds."""
        self.arrays[name][...] = array

    def read(self, name: str) -> Array:
        """A copy of what ``name`` holds."""
        return self.arrays[name].copy()

    def run(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """The launches one after the other."""
        for launch, layer in launches:
            kernel = self.kernels[launch.kernel]
            grid = Grid.of(kernel)
            arguments = [self.argument(a, layer) for a in launch.arguments]
            try:
                self.library(launch.kernel).run(launch.kernel, grid, arguments, self.mode)
            except ExecutorError as problem:
                fail("cuda-executor", str(problem))

    def argument(self, argument: str | int, layer: int) -> Argument:
        """What a kernel is given for an argument of a launch in ``layer``."""
        if isinstance(argument, int):
            return np.int32(argument)
        name, part = part_of(argument, layer)
        return self.arrays[name] if part is None else self.arrays[name][part, ...]


def _refuse(problem: str) -> NoReturn:
    fail(
        "cuda-executor",
        f"kernels cannot be compiled for the CPU: {problem}",
        help="the executor needs a C++20 compiler; name one with CXX",
    )

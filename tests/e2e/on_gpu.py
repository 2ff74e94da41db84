"""A machine that tests take in place of the CPU executor where ``MESHC_TEST_GPU`` names a driver,
such as ``libcuda.so.1``: the kernels run on its GPU, in the order that this one takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import numpy as np

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.gpu_machine import GpuMachine
from meshc.backends.cuda.program import Kernel, Target

DRIVER = os.environ.get("MESHC_TEST_GPU", "")


class OnGpu(GpuMachine):
    """What a CpuMachine is to tests. An order of threads is taken from none."""

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        texts: Mapping[str, str],
        mode: object = None,
        toolchain: object = None,
    ) -> None:
        """Raises MeshcError."""
        facts = _device().facts
        arch = f"sm_{facts.capability[0]}{facts.capability[1]}a"
        super().__init__(
            _device(), Target(facts.name, arch, facts.multiprocessors, 0), kernels, texts
        )

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """A copy of all memory by name."""
        return {name: self.read(name) for name in self._memory}

    def __del__(self) -> None:
        if "_graphs" in vars(self):  # it was made
            self._forget()
            for buffer, _, _ in self._memory.values():
                buffer.free()


@cache
def _device() -> Device:
    return Device(library=DRIVER)

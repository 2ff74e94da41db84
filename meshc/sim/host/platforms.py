"""Where programs of the layout API run: the simulator, with its options."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from meshc.sim.sema.csl_types import BF16, CB16, F16, Float
from meshc.support.diagnostics import fail


class SdkTarget(IntEnum):
    """Architectures."""

    WSE2 = 0
    WSE3 = 1


class FP16TYPE(IntEnum):
    """Formats of 16-bit floats."""

    F16 = 0
    BF16 = 1
    CB16 = 2


HALF: dict[FP16TYPE, Float] = {FP16TYPE.F16: F16, FP16TYPE.BF16: BF16, FP16TYPE.CB16: CB16}


@dataclass
class SimfabConfig:
    """Options of a simulation. ``num_threads`` is that of another simulator: ``cs_python`` says how
    many threads this one has. A core file is a dump as ``dump_core`` writes it."""

    num_threads: int = 16
    suppress_trace: bool = False
    dump_core: bool = False
    core_path: Any = None


@dataclass
class SdkExecutionPlatform:
    """Where a layout runs."""

    target: SdkTarget
    config: SimfabConfig | None = None


def get_platform(
    addr: str | None = None,
    config: SimfabConfig | None = None,
    target: SdkTarget = SdkTarget.WSE2,
) -> SdkExecutionPlatform:
    """The simulation of an architecture; ``addr`` of a real system is refused."""
    if addr:
        get_system(addr)
    return SdkExecutionPlatform(target, config)


def get_simulator(
    config: SimfabConfig | None = None, target: SdkTarget = SdkTarget.WSE3
) -> SdkExecutionPlatform:
    """The simulation of an architecture."""
    return SdkExecutionPlatform(target, config)


def get_system(cmaddr: str) -> SdkExecutionPlatform:
    """A real system is refused. Raises MeshcError ``csl-host``."""
    fail("csl-host", "the simulator cannot reach a system by address")

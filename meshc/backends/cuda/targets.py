"""The GPU of a program, from what is known of a device, and what its kernels compute with."""

from __future__ import annotations

from meshc.analysis.cuda.blocks import block_memory
from meshc.backends.cuda.program import Target
from meshc.devices import Device
from meshc.ir.module import Module
from meshc.support.diagnostics import fail

_KINDS = ("f16", "bf16")


def target_of(device: Device) -> Target:
    """What a program says of the GPU that it is for."""
    return Target(device.name, device.cuda_arch, device.cores, block_memory(device))


def kind_of(module: Module) -> str:
    """The element type of the weights and caches of ``module``. Raises ``cuda-dtype``."""
    dtype = str(module.dtype())
    if dtype not in _KINDS:
        fail(
            "cuda-dtype",
            f"kernels have weights and caches of f16 or bf16, not {dtype}",
            help="--dtype f16 or --dtype bf16",
        )
    return dtype

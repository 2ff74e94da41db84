"""The GPU of a program, from what is known of a device."""

from __future__ import annotations

from meshc.analysis.cuda.blocks import block_memory
from meshc.backends.cuda.program import Target
from meshc.devices import Device


def target_of(device: Device) -> Target:
    """What a program says of the GPU that it is for."""
    return Target(device.name, device.cuda_arch, device.cores, block_memory(device))

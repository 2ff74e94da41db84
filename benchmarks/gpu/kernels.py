"""Kernels of a text on a device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshc.backends.cuda.device import Device
from meshc.backends.cuda.launch import Kernel
from meshc.backends.cuda.toolkit import compile_cubin
from meshc.support.diagnostics import fail
from meshc.support.native import BuildError


def load(device: Device, text: str) -> dict[str, Kernel]:
    """The kernels of ``text`` by name. Raises MeshcError, ``cuda-toolkit`` when they cannot be
    compiled."""
    try:
        return device.load(compile_cubin(text))
    except BuildError as problem:
        fail("cuda-toolkit", f"a kernel cannot be compiled: {problem}")


@cache
def probes() -> str:
    """The text of the kernels that measure the device."""
    return (Path(__file__).parent / "probes.cu").read_text(encoding="utf-8")

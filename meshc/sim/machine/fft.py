"""The closed 3-D FFT kernel, as a model: right data, time by formula.

The transform is computed once all PEs have called. Element (x, y, z) lies on PE (x // T, y // T) at
``z T T + (y mod T) T + x mod T``, real and imaginary part side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshc.sim.machine.parts import AnyPe
from meshc.sim.machine.pe import Pe

_NORMS: tuple[Any, ...] = ("backward", "ortho", "forward")


def fft3d(
    pe: Pe, addr: int, time_addr: int, n: int, pencils: int, norm: int, inverse: int, wide: int
) -> None:  # fmt: skip
    """``pe`` joins the transform; the last PE to call starts it."""
    machine = pe.machine
    waiting = machine.collectives.transforms
    waiting.append((pe, pe.t))
    if len(waiting) < len(machine.pes):
        return
    calls, waiting[:] = list(waiting), []
    start = max(t for _, t in calls)
    dtype = np.dtype("<f4" if wide else "<f2")
    grid = np.zeros((n, n, n), np.complex128)
    for other, _ in calls:
        _block(grid, other, pencils)[...] = _local(other, addr, dtype, n, pencils)
    transform = np.fft.ifftn if inverse else np.fft.fftn
    grid = transform(grid, norm=_NORMS[norm])
    cycles = duration(n, pencils, machine.program.width)
    for other, _ in calls:
        block = _block(grid, other, pencils)
        parts = np.stack([block.real, block.imag], axis=-1).astype(dtype)
        other.mem[addr : addr + parts.nbytes] = parts.tobytes()
        other.mem[time_addr : time_addr + 8] = cycles.to_bytes(8, "little")
        machine.at(max(start + cycles, machine.now), _through, other)


def duration(n: int, pencils: int, width: int) -> int:
    """Cycles (predicted): three sets of pencils, ten operations per butterfly, two transposes."""
    butterflies = 3 * pencils * pencils * (n // 2) * max(1, n.bit_length() - 1)
    return 10 * butterflies + 2 * 2 * pencils * pencils * n + 2 * width


def _through(time: int, pe: AnyPe) -> None:
    pe.unblocked += 1


def _block(grid: Any, pe: AnyPe, pencils: int) -> Any:
    """The part of the grid that a PE holds, indexed [z, y, x]."""
    y, x = pe.y * pencils, pe.x * pencils
    return grid.transpose(2, 0, 1)[:, y : y + pencils, x : x + pencils]


def _local(pe: AnyPe, addr: int, dtype: Any, n: int, pencils: int) -> Any:
    parts = np.ndarray((n, pencils, pencils, 2), dtype, pe.mem, addr).astype(np.float64)
    return parts[..., 0] + 1j * parts[..., 1]

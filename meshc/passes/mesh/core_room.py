"""What a core surely has memory for, before memory is planned."""

from __future__ import annotations

from math import prod

from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.values import Value


def surely_fits(module: Module, more: int = 0) -> bool:
    """Whether a core has room for ``more`` bytes beside parameters and results.

    What parameters leave is enough for them twice, and for them beside all results of ops, though
    most of these share memory. Never on a device without a limit of memory, whose programs are to
    suit any mesh.
    """
    room = module.the_device().room_bytes
    if room is None:
        return False
    ops = [op for op in module.walk() if not op.regions]
    held = sum(_local_bytes(p.value, module) for p in module.function.params)
    results = sum(_local_bytes(value, module) for op in ops for value in op.results)
    return more + max(more, results) <= room - held


def _local_bytes(value: Value, module: Module) -> int:
    """What a core has of ``value``."""
    kind = tensor_type(value)
    return prod(kind.local_shape(module.dims)) * kind.dtype.bytes

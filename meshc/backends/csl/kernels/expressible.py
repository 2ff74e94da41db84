"""What of a tile program has no CSL, said with the place in the model that asks for it."""

from __future__ import annotations

from collections.abc import Collection

from meshc.analysis.csl.codes import KERNEL
from meshc.analysis.csl.operands import CACHES
from meshc.backends.csl.spelling.memory_dsds import ELEMENTS
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.support.diagnostics import Diagnostics


def check_expressible(module: Module, kernels: Collection[str]) -> None:
    """Raise every ``csl-kernel``, for kernels other than ``kernels``, and ``csl-dtype``, each at
    the first statement it stands for; ``csl-dtype`` also where both formats of 16-bit floats are
    used."""
    found = Diagnostics()
    kinds: set[DType] = set()
    for op in module.walk():
        if isinstance(op, Compute) and op.kernel not in kernels:
            found.error(
                "csl-kernel",
                f"the CSL back end does not emit '{op.kernel}'",
                op.span,
                help=f"it emits {', '.join(sorted(kernels))}",
            )
            continue
        for kind in _unknown(op) - kinds:
            kinds.add(kind)
            found.error(
                "csl-dtype",
                f"elements of type {kind} cannot be emitted as CSL",
                op.span,
                help=f"use {', '.join(map(str, ELEMENTS))}",
            )
    if {DType.F16, DType.BF16} <= {buffer.type.dtype for buffer in module.buffers}:
        found.error(
            "csl-dtype",
            "a program of CSL has one format of 16-bit floats, not both f16 and bf16",
            help="choose one with --dtype",
        )
    found.raise_errors()


def _unknown(op: Op) -> set[DType]:
    """Element types of the operands of ``op`` that CSL does not have."""
    types = (view.buffer.type for view in op.views())
    dtypes = {kind.dtype for kind in types if isinstance(kind, BufferType)}
    states = {DType.I32} if isinstance(op, Compute) and op.kernel in CACHES else set()
    if isinstance(op, Compute) and op.kernel == KERNEL:
        states |= {kind for kind in dtypes if kind.coded}
    return dtypes - {*ELEMENTS} - states

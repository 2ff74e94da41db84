"""Memory of a core that a CSL program takes for elements: its buffers, and scratch of kernels.

Buffers have memory of their own, or parts of an array that those share which are never needed
together (``shared_buffers.py``); scratch is shared by all kernels, since none keeps anything there.
"""

from __future__ import annotations

from meshc.analysis.csl import resources
from meshc.analysis.csl.chosen_elements import choosing
from meshc.analysis.csl.codes import CODES, KERNEL, WORD_BYTES, WORDS, decoding
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.products import planned_call
from meshc.analysis.csl.rope_vectors import scratch_of_turns
from meshc.analysis.csl.shared_buffers import homes, wrong_sharing
from meshc.analysis.csl.strided_windows import window
from meshc.analysis.csl.vector_ways import copied_words, scratch_words
from meshc.analysis.csl.ways import HALF, parts_of
from meshc.analysis.layout.liveness import ALIGNMENT_BYTES
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.ir.views import View

WIDENED = "widened"
"""Name of the f32 scratch for copies of f16 operands; that of others is their element type."""


def scratch_of(module: Module) -> dict[str, int]:
    """Elements of scratch that the kernels of a program share, by name, in the order of first use:
    each as large as the kernel that needs the most. Products must say their way."""
    found: dict[str, int] = {}
    costs = Costs(module.the_device())
    wide = 0
    for op in module.walk():
        if isinstance(op, Compute):
            for name, elements in _scratch_of(op, costs).items():
                found[name] = max(found.get(name, 0), elements)
            wide = max(wide, copied_words(op))
    return {**found, WIDENED: wide} if wide else found


def _scratch_of(op: Compute, costs: Costs) -> dict[str, int]:
    """Elements of what one kernel needs besides its operands, by name."""
    if op.kernel == KERNEL:
        return decoding(op).scratch
    if op.kernel == "rope":
        return {str(dtype): elements for dtype, elements in scratch_of_turns(op, costs).items()}
    dtype, elements = _own_scratch(op, costs)
    return {str(dtype): elements} if elements else {}


def _own_scratch(op: Compute, costs: Costs) -> tuple[DType, int]:
    """Element type and elements of what one kernel needs besides its operands."""
    given = [window(v, op.span) for v in op.operands if isinstance(v, View)]
    to = given[0]
    if op.kernel == "gemm":
        plan = planned_call(op, costs)
        return (to.dtype, 0) if plan is None else (plan.scratch_dtype, plan.scratch)
    if op.kernel == "square_sum":
        return to.dtype, given[1].size
    if op.kernel == "top_k":
        return DType.F32, choosing(op, to.dims[-1].extent).scratch
    if op.kernel == "rotate":
        return to.dtype, to.size // to.dims[0].extent
    if op.kernel == "row_max":
        return given[1].dtype, scratch_words(op, costs)
    if op.way:
        return DType.F16 if HALF in parts_of(op) else DType.F32, scratch_words(op, costs)
    return to.dtype, 0


def late(buffer: Buffer) -> int:
    """Elements that lie unused before a buffer, so that it begins in another bank."""
    return (buffer.address or 0) % ALIGNMENT_BYTES // buffer.type.dtype.bytes


def element_bytes(module: Module) -> int:
    """Bytes of the buffers, with what lies unused before them, and of the scratch that a module
    says."""
    buffers = sum(home.bytes for home in homes(module))
    return buffers + sum(
        n * stored_bytes(scratch_type(name)) for name, n in resources.scratch(module).items()
    )


def scratch_type(name: str) -> DType:
    """The element type of the scratch called ``name``."""
    return {WIDENED: DType.F32, CODES: WORDS}.get(name) or DType(name)


def stored_bytes(dtype: DType) -> int:
    """Bytes of an element of an array; codes lie in words."""
    return WORD_BYTES if dtype.coded else dtype.bytes


def wrong_memory(module: Module) -> str | None:
    """What is wrong with the addresses and the scratch that a module says, in words; None where
    buffers that share memory are never needed together and kernels have the scratch that they
    need."""
    for buffer in module.buffers:
        name = f"buffer '{buffer.value.name}'"
        if buffer.address is None:
            return f"{name} has no address"
        if buffer.address % ALIGNMENT_BYTES not in (0, buffer.type.dtype.bytes):
            return f"{name} begins neither at a multiple of {ALIGNMENT_BYTES} nor an element later"
    if (wrong := wrong_sharing(module)) is not None:
        return wrong
    for name, elements in scratch_of(module).items():
        if resources.scratch(module).get(name, 0) < elements:
            said = resources.scratch(module).get(name, 0)
            return f"kernels need {elements} elements of scratch '{name}', and {said} are planned"
    for name in resources.scratch(module):
        if name not in (WIDENED, CODES, *map(str, (DType.F16, DType.BF16, DType.F32))):
            return f"there is no scratch '{name}'"
    return None

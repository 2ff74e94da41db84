"""Matrices of tasks that stay quantised: where they lie, and how the library is told of them."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.backends.cuda.packing.codes import block_words
from meshc.backends.cuda.program import Weight
from meshc.backends.cuda.tasks.matrix_places import Matrix
from meshc.backends.cuda.tasks.prompt_weights import Place
from meshc.backends.cuda.tasks.storage import Storage
from meshc.ir.codes import CODES, CodeFormat
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

_CODES = {
    DType.U2: "mc::Planes<2, {zero}>",
    DType.U3: "mc::Planes<3, {zero}>",
    DType.U4: "mc::Codes4<{zero}>",
    DType.U5: "mc::Planes<5, {zero}>",
    DType.U6: "mc::Planes<6, {zero}>",
    DType.U8: "mc::Codes8<{zero}>",
    DType.E4M3: "mc::E4M3",
    DType.E2M1: "mc::E2M1",
}
_NUMBERS = {
    DType.F16: "mc::OfRows<mc::f16>",
    DType.BF16: "mc::OfRows<mc::bf16>",
    DType.F32: "mc::OfRows<float>",
    None: "mc::None",
}


def block_bytes(form: CodeFormat) -> int:
    """Bytes of a block of a matrix in ``form``."""
    return 2 * block_words(form)


def block_type(form: CodeFormat) -> str:
    """A block of a matrix in ``form``, as the library has it (mc_codes.cuh)."""
    codes = _CODES[form.codes].format(zero=form.zero)
    scales, least = _NUMBERS.get(form.scales), _NUMBERS.get(form.least)
    if form.block:
        groups = form.block // form.group
        scales = f"mc::OfCodes<{form.scale_zero}, {groups}>"
        least = f"mc::OfCodes<0, {groups}>" if form.least else least
    return f"mc::Coded<{codes}, {form.group}, {form.span}, {scales}, {least}>"


def digits_type(form: CodeFormat) -> str:
    """Vectors that blocks of a matrix in ``form`` are multiplied by as whole numbers, as the
    library has them (mc_digits.cuh)."""
    return f"mc::Digits<{block_type(form)}, BATCH>"


def coded_matrix(
    storage: Storage, weights: Sequence[Sequence[Value]], rows: int, form: CodeFormat
) -> Matrix:
    """Weights in ``form``, of which a task multiplies ``rows`` rows each, together: of each its
    codes, then what there is of it once for a group of them."""
    buffers = [one for part in zip(*weights, strict=True) for one in part]
    codes = buffers[: len(weights)]
    *lead, height, width = _shape(codes[0])
    if len({_shape(one) for one in codes}) > 1:
        fail("cuda-shape", f"weights {', '.join(map(str, codes))} have no common shape")
    gathered = tuple(storage.gathered(storage.ports[value]) for value in buffers)
    sources = tuple(storage.ports[value].name for value in buffers)
    key = (sources, tuple(g.element for g in gathered), rows)
    if key not in storage.matrices:
        layers, inner = (lead[0], lead[1:]) if storage.stacked(codes[0]) else (0, lead)
        groups, blocks = height // rows, width // form.span
        weight = Weight(
            str(storage.dtype),
            "codes",
            sources,
            tuple(storage.extents(storage.ports[value]) for value in buffers),
            (*inner, groups, blocks, block_words(form)),
            layers,
            gathered=gathered,
            rows=rows,
            codes=form.name,
        )
        name = storage.packed(weight, codes[0].name.removesuffix(f".{CODES}"))
        storage.matrices[key] = Matrix(Place(name), tuple(lead), groups, blocks, groups)
    return storage.matrices[key]


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, BufferType)
    return value.type.shape

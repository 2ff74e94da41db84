"""How weights stay quantised in the memory of cores: their codes, and what makes numbers of them.

``group`` elements along the dim that a product sums over have one scale; an element is
``(code - zero) * scale``, and ``+ least`` where groups have a least number as well. The first three
are blocks of ggml; ``int4`` is AWQ and GPTQ, whose zero points differ: ``least`` is then
``-zero * scale``, in f32, which holds it exactly. Codes of ``e4m3`` are floats of eight bits, such
as checkpoints in fp8 have; a scale of a whole tensor, of an output or of a block is that of each
group within it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshc.ir.types import DType


@dataclass(frozen=True)
class CodeFormat:
    """One way in which weights are kept; ``scales`` and ``least`` are the element types of scales
    and of least numbers, the latter None where there are none."""

    name: str
    codes: DType
    group: int
    zero: int = 0
    least: DType | None = None
    scales: DType = DType.F16

    @property
    def whole(self) -> bool:
        """Whether codes are whole numbers."""
        return self.codes is not DType.E4M3

    @property
    def parts(self) -> dict[str, DType]:
        """What there is once for a group, with its element type."""
        return {SCALES: self.scales} | ({LEAST: self.least} if self.least else {})


CODES, SCALES, LEAST = "codes", "scales", "least"
"""The tensors that a weight is kept as."""

_ALL = (
    CodeFormat("q4_0", DType.U4, 32, zero=8),
    CodeFormat("q4_1", DType.U4, 32, least=DType.F16),
    CodeFormat("q8_0", DType.U8, 32, zero=128),
    *(CodeFormat(f"int4_{n}", DType.U4, n, least=DType.F32) for n in (32, 64, 128)),
    *(CodeFormat(f"e4m3_{n}", DType.E4M3, n, scales=DType.F32) for n in (16, 32, 64, 128)),
)
CODE_FORMATS: dict[str, CodeFormat] = {each.name: each for each in _ALL}
"""Every format by its name."""


def format_like(form: CodeFormat) -> CodeFormat | None:
    """The format that has all of ``form`` but its name, None where there is none."""
    return next((one for one in _ALL if replace(one, name=form.name) == form), None)


def kept_name(weight: str, form: CodeFormat, part: str) -> str:
    """The name of a tensor that ``weight`` is kept as, such as ``wq.q4_1.codes``. It has the
    format, so that codes of one are never taken for those of another."""
    return f"{weight}.{form.name}.{part}"

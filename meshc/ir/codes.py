"""How weights stay quantised in the memory of cores: their codes, and what makes numbers of them.

``group`` elements along the dim that a product sums over have one scale; an element is
``(code - zero) * scale``, and ``+ least`` where groups have a least number as well. Names are those
of ggml; ``int4`` is AWQ and GPTQ, whose zero points differ: ``least`` is then ``-zero * scale``, in
f32, which holds it exactly. Codes of ``e4m3`` are floats of eight bits, such as checkpoints in fp8
have; a scale of a whole tensor, of an output or of a block is that of each group within it. Codes
of ``mxfp4`` are floats of four bits (e2m1), and scales powers of two, all of which bf16 has.

Scales and least numbers of a format with a ``block`` are codes themselves: ``(code - scale_zero) *
unit`` and ``code * least_unit``, of which so many elements have one. Those of a least number are
the negative ones of what files have.
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
    block: int = 0
    scale_zero: int = 0

    @property
    def whole(self) -> bool:
        """Whether codes are whole numbers."""
        return self.codes not in (DType.E4M3, DType.E2M1)

    @property
    def on_cores(self) -> bool:
        """Whether cores of a mesh decode it: codes of whole words, and scales that are numbers."""
        return self.codes in (DType.U4, DType.U8) and not self.block

    @property
    def span(self) -> int:
        """How many elements there is everything of once or more."""
        return self.block or self.group

    @property
    def parts(self) -> dict[str, DType]:
        """What there is once for some elements, with its element type."""
        units = ({UNITS: DType.F16}, {LEAST_UNITS: DType.F16}) if self.block else ({}, {})
        found = {SCALES: self.scales} | units[0]
        return found | {LEAST: self.least} | units[1] if self.least else found

    def elements(self, part: str) -> int:
        """For how many elements there is one of a ``part``."""
        return {CODES: 1, UNITS: self.block, LEAST_UNITS: self.block}.get(part, self.group)


CODES, SCALES, LEAST = "codes", "scales", "least"
UNITS, LEAST_UNITS = "units", "least_units"
"""The tensors that a weight is kept as."""

_U8 = DType.U8
_ALL = (
    CodeFormat("q4_0", DType.U4, 32, zero=8),
    CodeFormat("q4_1", DType.U4, 32, least=DType.F16),
    CodeFormat("q5_0", DType.U5, 32, zero=16),
    CodeFormat("q5_1", DType.U5, 32, least=DType.F16),
    CodeFormat("q8_0", DType.U8, 32, zero=128),
    CodeFormat("q2_k", DType.U2, 16, least=_U8, scales=_U8, block=256),
    CodeFormat("q3_k", DType.U3, 16, zero=4, scales=_U8, block=256, scale_zero=32),
    CodeFormat("q4_k", DType.U4, 32, least=_U8, scales=_U8, block=256),
    CodeFormat("q5_k", DType.U5, 32, least=_U8, scales=_U8, block=256),
    CodeFormat("q6_k", DType.U6, 16, zero=32, scales=_U8, block=256, scale_zero=128),
    *(CodeFormat(f"int4_{n}", DType.U4, n, least=DType.F32) for n in (32, 64, 128)),
    *(CodeFormat(f"e4m3_{n}", DType.E4M3, n, scales=DType.F32) for n in (16, 32, 64, 128)),
    CodeFormat("mxfp4", DType.E2M1, 32, scales=DType.BF16),
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

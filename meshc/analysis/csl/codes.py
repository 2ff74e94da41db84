"""The kernel ``dequantise`` in CSL: where codes lie in words of 16 bits, and the operations on
words that make numbers of them.

A group of rows is cut into as many parts as a word has codes. The word of a row of the first part
has the code of that row in its low bits, and those of the rows that lie as far into the other parts
above it. So an operation on whole words yields the codes of a part of every group, side by side as
its numbers are.

Numbers are those of decoded weights to the bit: what f16 cannot hold exactly is computed in f32 and
rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.csl.instruction_costs import BANKS
from meshc.analysis.csl.strided_windows import Dim, Window, dense, window
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import View, Whole
from meshc.support.diagnostics import fail

KERNEL = "dequantise"
CODES = "codes"
"""Name of the scratch for codes of a part, a word for each."""
WORD_BITS = 16
WORD_BYTES = 2
WORDS = DType.U4
"""The element type of windows of words; CSL has no other of fewer than 16 bits."""

Operand = Window | str


@dataclass(frozen=True)
class Step:
    """An operation on memory, the result first."""

    builtin: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Decoding:
    """The operands of a ``dequantise``, of ``parts`` parts: ``words`` of codes, ``scales`` of the
    rows of a part and their ``least`` numbers (None where groups have none), and the ``numbers`` of
    the first part, from which those of the next are ``step`` elements."""

    words: Window
    scales: Window
    least: Window | None
    numbers: Window
    step: int
    parts: int
    zero: int

    @property
    def wide(self) -> bool:
        """Whether numbers are computed in f32: where f16 would round twice, or the result is."""
        return self.numbers.dtype == DType.F32 or self.least is not None

    @property
    def scratch(self) -> dict[str, int]:
        """Elements of scratch by name: codes of a part, and f32 for what is computed in it."""
        found = {CODES: self.words.size}
        return found | (
            {str(DType.F32): self._wide_scales().start.constant + self._scale_count()}
            if self.wide
            else {}
        )

    def before(self) -> list[Step]:
        """What is done once: scales in f32."""
        if not self.wide:
            return []
        rows, _, columns = self.scales.dims
        scales = self.scales.inner((rows, columns))
        return [Step("@fh2s", (self._wide_scales().inner(dense((rows, columns))), scales))]

    def of_part(self, numbers: Window, shift: str) -> list[Step]:
        """What makes ``numbers`` of the part whose codes lie ``shift`` bits up in words."""
        bits = self._scratch(CODES, WORDS, 0)
        steps = [
            Step("@slr16", (bits, self.words, shift)),
            Step("@and16", (bits, bits, str((1 << WORD_BITS // self.parts) - 1))),
        ]
        if self.zero:
            steps.append(Step("@sub16", (bits, bits, str(self.zero))))
        if not self.wide:
            return [
                *steps,
                Step("@xp162fh", (numbers, bits)),
                Step("@fmulh", (numbers, numbers, self.scales)),
            ]
        inside = (
            numbers if numbers.dtype == DType.F32 else self._scratch(str(DType.F32), DType.F32, 1)
        )
        steps += [
            Step("@xp162fs", (inside, bits)),
            Step("@fmuls", (inside, inside, self._wide_scales())),
        ]
        if self.least is not None:
            add = "@fadds" if self.least.dtype == DType.F32 else "@faddhs"
            steps.append(Step(add, (inside, inside, self.least)))
        if inside is not numbers:
            steps.append(Step("@fs2h", (numbers, inside)))
        return steps

    def _scale_count(self) -> int:
        return self.scales.dims[0].extent * self.scales.dims[2].extent

    def _wide_scales(self) -> Window:
        """f32 scratch for scales, in other banks than the numbers that they are multiplied by and
        least numbers that are added."""
        numbers = 0 if self.numbers.dtype == DType.F32 else 1 + self.words.size
        first = -(-numbers // BANKS) * BANKS + 2
        rows, part, columns = self.scales.dims
        found = self._scratch(str(DType.F32), DType.F32, first)
        return found.inner(
            (Dim(rows.extent, columns.extent), Dim(part.extent, 0), Dim(columns.extent, 1))
        )

    def _scratch(self, name: str, dtype: DType, first: int) -> Window:
        buffer = Value(f"scratch_{name}", BufferType(dtype, (first + self.words.size,)))
        return Window(buffer, dtype, Expr.const(first), dense(self.words.dims))


def decoding(op: Compute) -> Decoding:
    """The operands of a ``dequantise`` as operations on words take them. Raises ``csl-view`` for
    codes of which it takes some rows, or groups that do not fill words, and ``csl-dtype`` for
    numbers that are neither f16 nor f32."""
    out, codes, scales, *least = [v for v in op.operands if isinstance(v, View)]
    numbers, group = window(out, op.span), op.params["group"]
    assert isinstance(group, int)
    if numbers.dtype not in (DType.F16, DType.F32):
        fail(
            "csl-dtype",
            f"weights that stay quantised are decoded to f16 or f32, not to {numbers.dtype}",
            op.span,
            help="choose one with --dtype, or let the weights be decoded when they are loaded",
        )
    parts = parts_of(codes.buffer_type.dtype)
    words = window(words_of(op, codes, group), op.span)
    rows, columns = numbers.dims[-2:] if len(numbers.dims) == 2 else (None, None)
    if rows is None or columns is None or not numbers.constant or not words.constant:
        fail("csl-view", f"the decoded numbers {out} are not one matrix", op.span)
    groups, part = rows.extent // group, group // parts
    last = words.dims[-1]
    row = words.dims[-2].stride
    shape = (Dim(groups, part * row), Dim(part, row), last)
    return Decoding(
        words.inner(shape),
        _of_groups(scales, part, op),
        _of_groups(least[0], part, op) if least else None,
        numbers.inner((Dim(groups, group * rows.stride), Dim(part, rows.stride), columns)),
        part * rows.stride,
        parts,
        int(op.params["zero"]),  # type: ignore[arg-type]
    )


def parts_of(codes: DType) -> int:
    """Codes of a word, and so parts of a group."""
    return WORD_BITS // codes.bits


def words_of(op: Compute, codes: View, group: int) -> View:
    """The words that have ``codes``."""
    *lead, rows, columns = codes.buffer_type.shape
    parts = parts_of(codes.buffer_type.dtype)
    whole = codes.indices[len(lead)] if len(codes.indices) > len(lead) else Whole()
    if codes.reshape or codes.order or not isinstance(whole, Whole) or group % parts:
        fail("csl-view", f"the codes {codes} are not all rows of a matrix, in whole words", op.span)
    kind = BufferType(WORDS, (*lead, rows // parts, columns))
    return View(Value(codes.buffer.name, kind), codes.indices)


def _of_groups(view: View, part: int, op: Compute) -> Window:
    """Numbers of groups, repeated for the rows of a part."""
    found = window(view, op.span)
    rows, columns = found.dims[-2:]
    return found.inner((rows, Dim(part, 0), columns))


def packed_codes(op: Compute) -> tuple[Value, int, int]:
    """The buffer of codes that ``op`` reads, the rows of a group and the bits of a code."""
    codes = op.views()[1]
    group = op.params["group"]
    assert isinstance(group, int)
    return codes.buffer, group, codes.buffer_type.dtype.bits

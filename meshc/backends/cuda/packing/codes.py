"""Matrices that stay quantised in the memory of a GPU, as library/mc_codes.cuh reads them.

A group of 16 rows is blocks of as many columns as have a scale in common. A block is the codes, a
scale of each row, and in some formats a least number of each. Lane 4 g + q has of 16 columns the
eight codes of the rows g and g + 8 that it has of a fragment (packing.fragments), as pairs 0 to 3
of neighbours: of four bits one word, pair i being its codes i and i + 4; of eight bits two words,
the codes of pairs 0 and 1 in the order 0, 2, 1, 3, then those of pairs 2 and 3. Of e4m3 a word has
in its low half the first codes of its two pairs, in its high half the second ones, at the place of
16-bit floats of the type of the model (``_PLACES``): those of the later pair as the word is, those
of the former where two shifts of it differ. So are those of the first pair of a word of e2m1 and
the others. The words of a lane for all columns of a block lie together, by fours at the most, lane
behind lane.
A C compiler makes of that what packs bytes that lie side by side; NumPy does the rest.
"""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.packing.fragments import compiled
from meshc.backends.cuda.packing.matrix_rows import GROUP, Rows, matrices_of
from meshc.backends.cuda.program import Weight
from meshc.ir.codes import CODE_FORMATS, CodeFormat
from meshc.ir.stored import BF16, E2M1, E4M3, floats
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

Array = NDArray[Any]
_NUMBERS: dict[DType, np.dtype[Any]] = {
    DType.F16: np.dtype(np.float16),
    DType.F32: np.dtype(np.float32),
}
_E2M1 = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6), np.float32)
_BYTES = {DType.E4M3: E4M3, DType.E2M1: E2M1}
"""Elements of matrices of codes, a byte each, where these are no whole numbers."""
_KINDS = {DType.F32: 0, DType.F16: 1, DType.BF16: 2, DType.U8: 3}
_FLOATS = {
    (DType.E4M3, "f16"): 0,
    (DType.E4M3, "bf16"): 1,
    (DType.E2M1, "f16"): 9,
    (DType.E2M1, "bf16"): 10,
}
_REFUSED, _NOT_HERE = 0, 2
"""As in the C text."""
_PLACES = {
    (DType.E4M3, "f16"): 7,
    (DType.E4M3, "bf16"): 4,
    (DType.E2M1, "f16"): 9,
    (DType.E2M1, "bf16"): 6,
}
"""Bits behind the fraction of a float of few bits at the place of one of 16 bits."""
_TOGETHER = 4
"""Words that a lane loads at once, at the most."""
_SOURCE = Path(__file__).with_suffix(".c")


def block_words(form: CodeFormat) -> int:
    """Words of 16 bits of a block of a matrix in ``form``."""
    behind = sum(kind.bytes * form.span // form.elements(p) for p, kind in form.parts.items())
    return (form.span * form.codes.bits // 8 + behind) * GROUP // 2


@dataclass(frozen=True)
class CodedRows:
    """Rows of ``codes``, whole groups, and of what ``numbers`` has once for a group of them: scales
    and perhaps least numbers. They are multiplied as ``dtype``, f16 or bf16."""

    form: CodeFormat
    codes: Rows
    numbers: Sequence[Rows]
    dtype: str

    @property
    def words(self) -> int:
        """Words of 16 bits that they are packed as."""
        blocks = self.codes.width // self.form.span
        return len(self.codes) // GROUP * blocks * block_words(self.form)

    def parts(self, most: int) -> Iterator[CodedRows]:
        """All of them, so many words at a time."""
        of_group = self.words * GROUP // len(self.codes)
        rows = GROUP * max(1, most // of_group)
        for at in range(0, len(self.codes), rows):
            numbers = [one.part(at, rows) for one in self.numbers]
            yield CodedRows(self.form, self.codes.part(at, rows), numbers, self.dtype)

    def fill(self, target: Array) -> None:
        """Pack them into ``target``, ``[words]``. Raises ``quantised-weights-invalid``."""
        form = self.form
        groups, blocks = len(self.codes) // GROUP, self.codes.width // form.span
        packed = target.view(np.uint8).reshape(groups, blocks, -1)
        parts: list[Array] = []
        at = form.span * form.codes.bits // 8 * GROUP
        if not self._fill_codes(packed):
            parts, at = [*_planes(code_bytes(_gathered(self.codes), form), form, self.dtype)], 0
        for part in parts:
            held = part.reshape(groups, blocks, -1).view(np.uint8)
            packed[..., at : at + held.shape[-1]] = held
            at += held.shape[-1]
        for rows, kind in zip(self.numbers, form.parts.values(), strict=True):
            size = rows.width // blocks * GROUP * kind.bytes
            if not self._fill_numbers(packed, rows, kind, at):
                values = _elements(_gathered(rows).astype(np.float32), kind, form)
                by_block = values.reshape(groups, GROUP, blocks, -1).transpose(0, 2, 3, 1)
                held = np.ascontiguousarray(by_block).reshape(groups, blocks, -1).view(np.uint8)
                packed[..., at : at + size] = held
            at += size

    def _fill_codes(self, packed: NDArray[np.uint8]) -> bool:
        """Write the codes of ``packed``, [groups, blocks, bytes], where they are bytes that lie
        side by side and there is a compiler. Raises ``quantised-weights-invalid``."""
        form, kind = self.form, self.codes.matrices[0].dtype
        zeros = np.zeros(self.codes.width, kind)
        at = self.codes.addresses(zeros)
        function = _compiled("mc_codes", _Codes)
        bits = form.codes.bits if form.whole else _FLOATS[form.codes, self.dtype]
        if at is None or function is None or kind != _BYTES.get(form.codes, np.uint8):
            return False
        rows = np.ascontiguousarray(at)
        together = _together(form).bit_length() - 1
        sizes = (len(packed), packed.shape[1], form.span, packed.shape[2], together)
        if function(_Codes(rows.ctypes.data, *sizes, bits), packed.ctypes.data) == _REFUSED:
            _refuse(form)
        return True

    def _fill_numbers(
        self, packed: NDArray[np.uint8], numbers: Rows, kind: DType, first: int
    ) -> bool:
        """Write what there is once for a group behind the ``first`` bytes of each block of
        ``packed``, where it is floats of 32 bits that lie side by side, as above."""
        zeros = np.zeros(numbers.width, np.float32)
        at, function = numbers.addresses(zeros), _compiled("mc_numbers", _Numbers)
        if at is None or function is None or numbers.matrices[0].dtype != np.float32:
            return False
        rows, blocks = np.ascontiguousarray(at), packed.shape[1]
        sizes = (len(packed), blocks, numbers.width // blocks, packed.shape[2], first)
        done = function(_Numbers(rows.ctypes.data, *sizes, _KINDS[kind]), packed.ctypes.data)
        if done == _REFUSED:
            _refuse(self.form)
        return bool(done != _NOT_HERE)


class _Codes(ct.Structure):
    """As in the C text."""

    _fields_ = (
        ("rows", ct.c_void_p),
        *((name, ct.c_size_t) for name in ("groups", "blocks", "span", "bytes")),
        *((name, ct.c_int) for name in ("together", "bits")),
    )


class _Numbers(ct.Structure):
    """As in the C text."""

    _fields_ = (
        ("rows", ct.c_void_p),
        *((name, ct.c_size_t) for name in ("groups", "blocks", "each", "bytes", "at")),
        ("kind", ct.c_int),
    )


@cache
def _compiled(name: str, takes: type[ct.Structure]) -> Any:
    """The function in C that is called so, None without a compiler."""
    return compiled(_SOURCE, name, (ct.POINTER(takes), ct.c_void_p))


def _together(form: CodeFormat) -> int:
    """How many words of a lane lie side by side."""
    words = 2 if form.codes in (DType.E4M3, DType.U8) else 1
    return min(form.group // GROUP * words, _TOGETHER)


def coded_rows(weight: Weight, sources: Sequence[Array]) -> Iterator[CodedRows]:
    """One layer of ``weight``, or what all layers share, from its ``sources``: the matrices that
    lie one behind the other."""
    form = CODE_FORMATS[weight.codes]
    count = len(sources) // (1 + len(form.parts))
    parts = [
        matrices_of(
            replace(
                weight,
                pack="tasks",
                fragments=True,
                sources=weight.sources[first : first + count],
                gathered=weight.gathered[first : first + count],
            ),
            sources[first : first + count],
        )
        for first in range(0, len(sources), count)
    ]
    for codes, *numbers in zip(*parts, strict=True):
        yield CodedRows(form, codes, numbers, weight.dtype)


def code_bytes(values: Array, form: CodeFormat) -> NDArray[np.uint8]:
    """Codes as bytes, from whole numbers, or from the floats that they are. Raises
    ``quantised-weights-invalid`` for values that no code stands for."""
    if form.whole:
        with np.errstate(invalid="ignore"):
            found = values.astype(np.uint8, copy=False)
        if (found != values).any() or (found >> form.codes.bits).any():
            _refuse(form)
        return found
    if values.dtype == E2M1:
        codes: NDArray[np.uint8] = values.view(np.uint8)
        if (codes > 15).any():
            _refuse(form)
        return codes
    if form.codes is DType.E2M1:
        least = np.searchsorted(_E2M1, np.abs(values))
        if (_E2M1[np.minimum(least, 7)] != np.abs(values)).any():
            _refuse(form)
        return np.asarray(least + 8 * np.signbit(values), np.uint8)
    if values.dtype == E4M3:
        codes = values.view(np.uint8)
        if (codes & 0x7F == 0x7F).any():
            _refuse(form)
        return codes
    with np.errstate(over="ignore", invalid="ignore"):
        halves = (values * np.float32(2.0**-8)).astype(np.float16)
        exact = halves.astype(np.float32) * np.float32(2.0**8) == values
    bits = halves.view(np.uint16)
    found = (bits >> 8 & 0x80 | bits >> 7 & 0x7F).astype(np.uint8)
    if not exact.all() or (bits & 0x407F).any() or (found & 0x7F == 0x7F).any():
        _refuse(form)
    return found


def _refuse(form: CodeFormat) -> None:
    fail(
        "quantised-weights-invalid",
        f"weights that are to stay quantised have values that {form.name} has no code for",
        help="without --keep-quantised they are decoded as they are",
    )


def _elements(values: NDArray[np.float32], kind: DType, form: CodeFormat) -> Array:
    """What there is once for a group, as it lies in memory. Raises ``quantised-weights-invalid``
    for codes that are none."""
    if kind is DType.U8:
        with np.errstate(invalid="ignore"):
            codes = values.astype(np.uint8)
        if (codes != values).any():
            _refuse(form)
        return codes
    if kind is DType.BF16:
        found = (values.view(np.uint32) >> 16).astype(np.uint16)
        if (floats(found.view(BF16)) != values).any():
            _refuse(form)
        return found
    return values.astype(_NUMBERS[kind])


def _planes(codes: NDArray[np.uint8], form: CodeFormat, dtype: str) -> Iterator[Array]:
    """Codes ``[rows, width]`` in the order in which lanes load them, block behind block: words of
    four bits of each or of all bits, and then, of other codes, two bits of each and one bit of
    each, as far as they have these."""
    rows, width = codes.shape
    shape = rows // GROUP, 2, 8, width // form.span, form.span // GROUP, 4, 2, 2
    # group of rows, half, g, block, fragment, q, pair of columns, column
    turned = codes.reshape(shape).transpose(0, 3, 4, 2, 5, 6, 1, 7)
    lead = *turned.shape[:3], 32
    if form.codes is DType.E4M3:
        own = turned.astype(np.uint32)
        pairs = own[..., 0] | own[..., 1] << 16
        yield _words(_joined(pairs[..., 0], pairs[..., 1], dtype).reshape(*lead, 2), form)
        return
    if form.codes is DType.U8:
        in_order = np.ascontiguousarray(turned.swapaxes(-1, -2))
        yield _words(in_order.reshape(*lead, 8).view(np.uint32), form)
        return
    pairs, bits = turned.reshape(*lead, 4, 2), form.codes.bits
    at = 0
    if bits >= 4:
        fours = _plane(pairs & 15, 4, np.uint32)
        if not form.whole:
            fours = _mixed(fours, dtype)
        yield _words(fours[..., None], form)
        at = 4
    if bits & 2:
        yield _plane(pairs >> at & 3, 2, np.uint16)
        at += 2
    if bits & 1:
        yield _plane(pairs >> at & 1, 1, np.uint8)


def _plane(pairs: Array, bits: int, kind: type[np.unsignedinteger[Any]]) -> Array:
    """The ``bits`` of the codes ``[.., 4, 2]`` of lanes, those of the first codes of all pairs in
    the lower half."""
    own = np.arange(4, dtype=np.uint32)[:, None] * bits
    shifts = own + np.array([0, 4 * bits], np.uint32)
    words: Array = (pairs.astype(np.uint32) << shifts).sum((-2, -1), dtype=np.uint32)
    return words.astype(kind)


def _joined(first: Array, second: Array, dtype: str) -> Array:
    """Words of two pairs of codes of e4m3, given as bytes 0 and 2 of words: the ``second`` one in
    its place, and in the bits left what makes of two shifts of the word the ``first`` one."""
    place = _PLACES[DType.E4M3, dtype]
    first, second = (
        (pair & 0x00800080) << 8 | (pair & 0x007F007F) << place for pair in (first, second)
    )
    if dtype == "f16":
        left = first ^ (second << 8 ^ second << 1) & 0xBF80BF80
        return second | left >> 8 & 0x003F003F | left >> 1 & 0x40404040
    left = first ^ (second << 4 ^ second >> 4) & 0x87F087F0
    twice = left >> 4 & 0x08080808  # what both shifts bring somewhere
    twice ^= twice >> 8
    twice ^= twice >> 16
    return second | twice | left << 4 & 0x70007000 | left >> 4 & 0x00070007


def _mixed(codes: Array, dtype: str) -> Array:
    """Words of four pairs of codes of e2m1, the first one in its place, and the others where what
    :func:`_plane` gives has them by shifts."""
    place = _PLACES[DType.E2M1, dtype]
    pairs = [codes >> 4 * i for i in range(4)]
    pairs = [(one & 0x00080008) << 12 | (one & 0x00070007) << place for one in pairs]
    if dtype == "f16":
        found = pairs[0] | pairs[1] >> 3
        two = pairs[2] ^ (found << 1 ^ found << 6) & 0x8E008E00
        three = pairs[3] ^ (found << 2 ^ found << 9) & 0x8E008E00
        signs = (two & 0x80008000) >> 1 | (three & 0x80008000) >> 2
        return found | signs | (two & 0x0E000E00) >> 6 | (three & 0x0E000E00) >> 9
    found = pairs[0] | pairs[1] >> 6
    three = pairs[3] ^ found << 2 ^ found << 5
    found |= three >> 2 & 0x00300030 | three >> 5 & 0x00080008
    two = pairs[2] ^ found << 4 ^ found >> 6
    found |= two << 6 & 0x70007000 | two >> 4 & 0x08000800
    return found | (pairs[3] ^ found << 2) >> 5 & 0x04000400


def _words(words: NDArray[np.uint32], form: CodeFormat) -> NDArray[np.uint32]:
    """Words ``[groups, blocks, fragments, lanes, own]`` so that those of a lane for one group of
    elements lie together, by fours at the most."""
    groups, blocks, _, lanes, _ = words.shape
    of_lane = words.swapaxes(2, 3).reshape(groups, blocks, lanes, -1, _together(form))
    return np.ascontiguousarray(of_lane.swapaxes(2, 3))


def _gathered(rows: Rows) -> Array:
    """All rows as one matrix; codes of floats stay these where all are."""
    own = (E4M3, E2M1)
    kinds = [m.dtype if m.dtype in own else floats(m[:0]).dtype for m in rows.matrices]
    whole = kinds[0] if kinds[0] in own and len({*kinds}) == 1 else None
    found = np.zeros((len(rows), rows.width), whole or np.result_type(*kinds))
    for number, matrix in enumerate(rows.matrices):
        here = rows.of == number
        taken = np.ascontiguousarray(matrix[rows.at[here]])
        found[here] = taken if whole else floats(taken)
    return found

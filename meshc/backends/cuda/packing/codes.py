"""Matrices that stay quantised in the memory of a GPU, as library/mc_codes.cuh reads them.

A group of 16 rows is blocks of as many columns as have a scale in common. A block is the codes, a
scale of each row, and in some formats a least number of each. Lane 4 g + q has of 16 columns the
eight codes of the rows g and g + 8 that it has of a fragment (packing.fragments), as pairs 0 to 3
of neighbours: of four bits one word, pair i being its codes i and i + 4 from the low end; of eight
bits two words, the codes of pairs 0 and 1 in the order 0, 2, 1, 3, then those of pairs 2 and 3. Of
e4m3 a word has in its low half the first codes of its two pairs, in its high half the second ones:
from the high end the signs of the later and of the former pair's, then their other seven bits. The
words of a lane for all columns of a block lie together, by fours at the most, lane behind lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.packing.rows import GROUP, Rows, matrices_of
from meshc.backends.cuda.program import Weight
from meshc.ir.codes import CODE_FORMATS, CodeFormat
from meshc.ir.stored import floats
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

Array = NDArray[Any]
_NUMBERS: dict[DType, np.dtype[Any]] = {
    DType.F16: np.dtype(np.float16),
    DType.F32: np.dtype(np.float32),
}
_TOGETHER = 4
"""Words that a lane loads at once, at the most."""


def block_words(form: CodeFormat) -> int:
    """Words of 16 bits of a block of a matrix in ``form``."""
    behind = sum(kind.bytes for kind in form.parts.values())
    return (form.group * form.codes.bits // 8 + behind) * GROUP // 2


@dataclass(frozen=True)
class CodedRows:
    """Rows of ``codes``, whole groups, and of what ``numbers`` has once for a group of them: scales
    and perhaps least numbers."""

    form: CodeFormat
    codes: Rows
    numbers: Sequence[Rows]

    @property
    def words(self) -> int:
        """Words of 16 bits that they are packed as."""
        blocks = self.codes.width // self.form.group
        return len(self.codes) // GROUP * blocks * block_words(self.form)

    def parts(self, most: int) -> Iterator[CodedRows]:
        """All of them, so many words at a time."""
        of_group = self.words * GROUP // len(self.codes)
        rows = GROUP * max(1, most // of_group)
        for at in range(0, len(self.codes), rows):
            yield CodedRows(
                self.form,
                _some(self.codes, at, rows),
                [_some(one, at, rows) for one in self.numbers],
            )

    def fill(self, target: Array) -> None:
        """Pack them into ``target``, ``[words]``. Raises ``quantised-weights-invalid``."""
        form = self.form
        groups, blocks = len(self.codes) // GROUP, self.codes.width // form.group
        packed = target.view(np.uint8).reshape(groups, blocks, -1)
        codes = _words(code_bytes(_gathered(self.codes), form), form)
        codes = codes.reshape(groups, blocks, -1).view(np.uint8)
        packed[..., : codes.shape[-1]] = codes
        at = codes.shape[-1]
        for rows, kind in zip(self.numbers, form.parts.values(), strict=True):
            values = _gathered(rows).astype(np.float32).astype(_NUMBERS[kind])
            by_block = values.reshape(groups, GROUP, blocks).swapaxes(1, 2)
            size = GROUP * kind.bytes
            packed[..., at : at + size] = np.ascontiguousarray(by_block).view(np.uint8)
            at += size


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
        yield CodedRows(form, codes, numbers)


def code_bytes(values: Array, form: CodeFormat) -> NDArray[np.uint8]:
    """Codes as bytes, from whole numbers, or from the floats that they are. Raises
    ``quantised-weights-invalid`` for values that no code stands for."""
    if form.whole:
        with np.errstate(invalid="ignore"):
            found = values.astype(np.uint8, copy=False)
        if (found != values).any() or (found >> form.codes.bits).any():
            _refuse(form)
        return found
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


def _words(codes: NDArray[np.uint8], form: CodeFormat) -> NDArray[np.uint32]:
    """Codes ``[rows, width]`` in the order in which lanes load them, block behind block."""
    rows, width = codes.shape
    shape = rows // GROUP, 2, 8, width // form.group, form.group // GROUP, 4, 2, 2
    # group of rows, half, g, block, fragment, q, pair of columns, column
    turned = codes.reshape(shape).transpose(0, 3, 4, 2, 5, 6, 1, 7)
    lead = *turned.shape[:3], 32
    if form.codes is DType.U4:
        pairs = turned.reshape(*lead, 4, 2).astype(np.uint32)
        shifts = 4 * np.arange(4, dtype=np.uint32)[:, None] + np.array([0, 16], np.uint32)
        words = (pairs << shifts).sum((-2, -1), dtype=np.uint32)[..., None]
    elif form.codes is DType.E4M3:
        second, first = (turned[..., half, :].astype(np.uint16) for half in (1, 0))
        signs = (second & 0x80) << 8 | (first & 0x80) << 7
        halves = signs | (second & 0x7F) << 7 | first & 0x7F
        words = np.ascontiguousarray(halves).reshape(*lead, 4).view(np.uint32)
    else:
        in_order = np.ascontiguousarray(turned.swapaxes(-1, -2))
        words = in_order.reshape(*lead, 8).view(np.uint32)
    groups, blocks, fragments, lanes, own = words.shape
    together = min(fragments * own, _TOGETHER)
    of_lane = words.swapaxes(2, 3).reshape(groups, blocks, lanes, -1, together)
    return np.ascontiguousarray(of_lane.swapaxes(2, 3))


def _some(rows: Rows, at: int, count: int) -> Rows:
    return Rows(rows.matrices, rows.of[at : at + count], rows.at[at : at + count])


def _gathered(rows: Rows) -> Array:
    """All rows as one matrix."""
    held = [floats(matrix[:0]).dtype for matrix in rows.matrices]
    found = np.zeros((len(rows), rows.width), np.result_type(*held))
    for number, matrix in enumerate(rows.matrices):
        here = rows.of == number
        found[here] = floats(np.ascontiguousarray(matrix[rows.at[here]]))
    return found

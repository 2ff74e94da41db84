"""Matrices of floats of eight bits (e4m3) whose numbers have scales, as 16-bit words.

Rows of a packed matrix are mostly rows of files. Where they are, codes go from there to their place
in fragments in one step; elsewhere all of a tensor is decoded first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.packing.element_words import words
from meshc.backends.cuda.packing.fragments import SIDE, Scales, fragments_at, fragments_of
from meshc.backends.cuda.packing.matrix_rows import Places, Rows
from meshc.ir.stored import E4M3, Scaled, floats

Words = NDArray[np.uint16]


@dataclass(frozen=True)
class ScaledRows:
    """Rows ``width`` columns wide: row i begins at column ``first[i]`` of row ``at[i]`` of the
    codes of ``sources[of[i]]``, or is zeros where ``of[i]`` is -1. From the first column on so many
    as ``group`` says, a multiple of 16, have a scale in common."""

    sources: Sequence[Scaled]
    of: Places
    at: Places
    first: Places
    width: int
    group: int

    def part(self, first: int, count: int) -> ScaledRows:
        """``count`` rows from ``first`` on, or as many as there are."""
        rows = slice(first, first + count)
        return replace(self, of=self.of[rows], at=self.at[rows], first=self.first[rows])

    def fill(self, dtype: str, target: Words) -> None:
        """Pack them into ``target``, the words of whole groups of 16 rows."""
        zeros, one = np.zeros(self.width, np.uint8), np.ones(self.width // SIDE, np.float32)
        codes = self._addresses([s.codes for s in self.sources], zeros, self.first)
        scales = self._addresses([s.scales for s in self.sources], one, self.first // self.group)
        if fragments_at(codes, self.width, target, f"{dtype} of e4m3", Scales(scales, self.group)):
            return
        numbers = np.zeros((len(self), self.width), np.float32)
        for number, source in enumerate(self.sources):
            (here,) = np.nonzero(self.of == number)
            columns = self.first[here, None] + np.arange(self.width)
            rows = self.at[here, None]
            numbers[here] = floats(source.codes[rows, columns])
            numbers[here] *= source.scales[rows, columns // self.group]
        fragments_of(words(numbers, dtype), target)

    def _addresses(
        self, held: Sequence[NDArray[np.generic]], none: NDArray[np.generic], first: Places
    ) -> NDArray[np.uint64]:
        """Where each row begins in one of the matrices, or in what rows of zeros have."""
        begin = np.array([m.ctypes.data for m in (*held, none)], np.int64)
        step = np.array([*(m.strides[0] for m in held), 0], np.int64)
        size = np.where(self.of < 0, 0, held[0].itemsize)
        return (begin[self.of] + self.at * step[self.of] + first * size).view(np.uint64)

    def __len__(self) -> int:
        return len(self.of)


def scaled_rows(rows: Rows, sources: Sequence[Scaled]) -> ScaledRows | None:
    """``rows`` of matrices that are views of the codes of ``sources``; None where they are not, or
    are no stretches of rows of these, or where a scale belongs to less than a block of 16."""
    groups = {_group(source) for source in sources}
    if rows.width % SIDE or len(groups) != 1 or min(groups) % SIDE:
        return None
    of, at, first = (np.full(len(rows), unset) for unset in (-1, 0, 0))
    for number, matrix in enumerate(rows.matrices):
        here = rows.of == number
        found = _within(matrix, rows.at[here], sources)
        if found is None:
            return None
        of[here], at[here], first[here] = found
    if (first % min(groups)).any() and any(source.scales.shape[1] > 1 for source in sources):
        return None
    return ScaledRows(sources, of, at, first, rows.width, min(groups))


def _group(source: Scaled) -> int:
    """As many columns as have a scale in common, whole blocks where these are all."""
    columns = source.codes.shape[1]
    return source.group if source.group < columns else -(-columns // SIDE) * SIDE


def _within(
    matrix: NDArray[np.generic], rows: Places, sources: Sequence[Scaled]
) -> tuple[int, Places, Places] | None:
    """The source whose codes ``matrix`` is a view of, and where its ``rows`` begin there."""
    for number, source in enumerate(sources):
        codes, begin = source.codes, matrix.ctypes.data - source.codes.ctypes.data
        if matrix.dtype == E4M3 and 0 <= begin < codes.nbytes and codes.flags.c_contiguous:
            at, first = np.divmod(begin + rows * matrix.strides[0], codes.shape[1])
            lies = matrix.strides[1] == 1 and (first + matrix.shape[1] <= codes.shape[1]).all()
            return (number, at, first) if lies else None
    return None

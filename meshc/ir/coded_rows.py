"""Rows of caches as floats of eight bits with a scale each: what the numbers are.

A row, the lanes of a token of one head, has one scale, a power of two: the least, not below
``2**LEAST_EXPONENT``, with which none of its lanes is beyond the largest float, 448 of e4m3. Lanes
are the nearest multiples of the scale by a float, of two equally near ones the even one, so numbers
have four bits, or less where they are below a part in some 28,000 of the largest of their row. As
the scale is a power of two and not smaller, all of them are numbers of both 16-bit types. A row
that needs a larger scale than ``2**MOST_EXPONENT``, or has a lane that is no finite number, has an
infinite one, so that what is computed of it is no number either and nobody takes it for one.
"""

from __future__ import annotations

from meshc.ir.types import DType

ROW_CODES = ("e4m3",)
"""The types of floats, by name, that caches may keep."""
LEAST_EXPONENT, MOST_EXPONENT = -15, 7
SCALES_TOGETHER = 16
"""Tokens whose scales lie side by side, a byte each, in front of their rows: what one copy brings
at the least."""


def coded_row_bytes(dtype: DType, lanes: int) -> int:
    """Bytes of a row of ``lanes`` lanes and of its scale."""
    return dtype.bytes * lanes + 1


def row_bytes_with_scale(lanes: int) -> int:
    """Bytes of a row of ``lanes`` floats of eight bits that has its scale behind it: both in whole
    sixteens, which copies are of."""
    return -(-lanes // SCALES_TOGETHER) * SCALES_TOGETHER + SCALES_TOGETHER

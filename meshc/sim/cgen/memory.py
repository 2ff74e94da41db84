"""The memory of PEs, one behind the other in one block."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterable, Iterator
from typing import Any

from meshc.support.zeroed_memory import pages

_MARGIN = 64
_LINE = 64
_LARGE_PAGE = 1 << 21


def memories(ends: Iterable[int]) -> Iterator[Any]:
    """Zeroed arrays of bytes of at least these lengths, with a margin behind each.

    They belong to Python, so that views of them outlive a machine. In large pages, where there are
    such, since many PEs would need more entries for small ones than a processor holds.
    """
    lengths = [_rounded(end + _MARGIN, 8) for end in ends]
    total = sum(_rounded(length, _LINE) for length in lengths)
    block = pages(total, large=total >= _LARGE_PAGE)
    offset = 0
    for length in lengths:
        yield (ct.c_ubyte * length).from_buffer(block, offset)
        offset += _rounded(length, _LINE)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit

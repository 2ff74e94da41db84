"""Keeping the memory of arrays that were freed for those that come next.

The C library of Linux (glibc) maps each array of some hundred KB anew and gives it back when it is
freed. The kernel fills mapped pages with zeros, which takes as long as what is computed with arrays
of a number for each core of a wafer.
"""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of ``mallopt`` (malloc.h)."""
_LARGEST, _KEPT = 32 << 20, 256 << 20
"""Bytes of an array that is not mapped (glibc takes no more), and of what is kept at the most."""


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MB that were freed, where arrays of up to 32 MB then lie. For
    commands that compute and end. Nothing changes where the C library knows no such thing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)

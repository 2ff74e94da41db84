"""Zeroed memory straight from the system."""

from __future__ import annotations

import mmap


def pages(count: int, large: bool) -> mmap.mmap:
    """At least ``count`` bytes of this process alone. In ``large`` pages, where there are such, a
    processor reaches scattered places without looking for most of them; they are occupied whole.

    Raises OSError when there is not enough memory.
    """
    # Pages that could be shared with other processes would stay small.
    memory = mmap.mmap(-1, max(count, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory

"""Memory for stacks and shared memory, which the launches of all libraries use in turn."""

from __future__ import annotations

import ctypes as ct
import mmap
import threading

from meshc.support.zeroed_memory import pages

# With large pages, threads that take turns need fewer entries of the processor's table of pages.
# Larger memory would be occupied whole, though a thread seldom uses much of its stack.
_MOST_IN_LARGE_PAGES = 1 << 28


class _Kept(threading.local):
    """What the launches that one thread of Python starts use."""

    memory: mmap.mmap | None = None
    address = 0


_kept = _Kept()


def launch_memory(count: int) -> tuple[int, int]:
    """The address and size of at least ``count`` bytes, of which the next call may give the same;
    the size is 0 where there is not enough memory. They hold what others left there."""
    if _kept.memory is None or len(_kept.memory) < count:
        _kept.memory = None
        try:
            memory = pages(count, large=count <= _MOST_IN_LARGE_PAGES)
        except OSError:
            return 0, 0
        _kept.memory, _kept.address = memory, ct.addressof(ct.c_char.from_buffer(memory))
    return _kept.address, len(_kept.memory)

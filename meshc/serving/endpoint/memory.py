"""Memory that is free goes back to the system.

The C library of GNU keeps free memory in an arena for each of some threads, and can be asked only
for what is free in the first of them; others know no such calls.
"""

from __future__ import annotations

import ctypes
import gc

_ARENAS = -8  # M_ARENA_MAX of mallopt


def share() -> None:
    """Have threads that start from now on share what memory is free."""
    _called("mallopt", _ARENAS, 1)


def settle() -> None:
    """All objects that are there stay: looking for what nobody needs any more passes them over from
    now on, and takes a moment."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Give the system what nobody needs any more, errors with all that they have seen among it."""
    gc.collect()
    _called("malloc_trim", 0)


def _called(name: str, *numbers: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*numbers)

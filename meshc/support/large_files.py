"""Large files that are made once and mapped into memory from then on.

Each lies in a folder that is named by a key, and is called after what it holds: a damaged one is
not taken for what it was, but made again and replaced. Reading gigabytes must not take longer for
that, so a file is proved by the sums of its pages: SHA-256 of the list of these, each of the 512
words of 64 bits of 4096 bytes. Files appear whole. Those that were used longest ago go when all
together take more than they may.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.support.cache import alone
from meshc.support.room import make_room, use
from meshc.support.scratch import scratch_folder

PAGE_BYTES = 4096
"""A file is whole pages of so many bytes; zeros fill up the last one."""
_SUFFIX = ".packed"
_DIGITS = 32
_AT_ONCE = 1 << 24
Bytes = NDArray[np.uint8]


def mapped(folder: Path, key: str, size: int, write: Callable[[int], None], most: int) -> Bytes:
    """The ``size`` bytes that are kept in ``folder`` for ``key``; where there are none that are
    sound, ``write`` is given an open file of that size to write them to. Then those that were used
    longest ago are removed until all others take no more than ``most`` bytes less this one's.

    Of processes that ask at once one writes. Raises OSError, and what ``write`` raises.
    """
    place = folder / key
    whole = -(-size // PAGE_BYTES) * PAGE_BYTES
    known = _recalled(place, whole)
    if known is None:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(place):
            known = _recalled(place, whole)
            if known is None:
                known = _written(folder, place, whole, write)
                make_room(folder, place, 0, most)
    return known[:size]


def _recalled(place: Path, size: int) -> Bytes | None:
    """The sound file in ``place``, which is used now; None where there is none."""
    with suppress(OSError):
        for path in sorted(place.glob(f"*{_SUFFIX}")):
            with suppress(OSError):
                if not path.is_file() or path.stat().st_size != size:
                    continue
                found = _mapped(path)
                if _digest(found) == path.stem:
                    use(place)
                    return found
    return None


def _written(folder: Path, place: Path, size: int, write: Callable[[int], None]) -> Bytes:
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with scratch_folder(folder) as scratch:
        made = scratch / "new"
        opened = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.truncate(opened, size)
            write(opened)
        finally:
            os.close(opened)
        found = _mapped(made)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{_digest(found)}{_SUFFIX}"
        os.replace(made, path)
    for other in place.glob(f"*{_SUFFIX}"):
        if other != path:
            with suppress(OSError):
                other.unlink()
    return found


def _mapped(path: Path) -> Bytes:
    with path.open("rb") as stream:
        return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _digest(data: Bytes) -> str:
    found = hashlib.sha256()
    for at in range(0, len(data), _AT_ONCE):
        pages: NDArray[Any] = data[at : at + _AT_ONCE].view(np.uint64).reshape(-1, PAGE_BYTES // 8)
        found.update(np.add.reduce(pages, axis=1).astype("<u8").tobytes())
    return found.hexdigest()[:_DIGITS]

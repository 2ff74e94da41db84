"""How much a part of the user's cache may take: what was used longest ago goes first.

A part is a folder of entries, each a folder that is named by its key. The time of an entry is that
of its last use.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def use(entry: Path) -> None:
    """Note that ``entry`` is used now; one of somebody else, or on a disk that nobody writes, stays
    as it is."""
    with suppress(OSError):
        os.utime(entry)


def make_room(part: Path, own: Path, size: int, most: int) -> None:
    """Remove entries of ``part`` other than ``own``, those that were used longest ago first, until
    ``size`` bytes more take ``most`` bytes at most together with what is left.

    What another process has mapped stays there until it ends; what cannot be removed stays.
    """
    used = {}
    for entry in part.glob("[!.]*"):
        with suppress(OSError):
            held = sum(path.stat().st_size for path in entry.rglob("*"))
            used[entry] = (entry.stat().st_mtime_ns, held)
    room = most - size - sum(held for _, held in used.values())
    for entry in sorted(used, key=lambda entry: used[entry]):
        if room < 0 and entry != own:
            shutil.rmtree(entry, ignore_errors=True)
            room += used[entry][1]

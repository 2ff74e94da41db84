"""What was made once and is kept in the user's cache: found by a key, proved by its hash.

A key is the name of a folder; what it holds is a file that is named after the hash of its content.
So a damaged file is not taken for what it was: it is made again and replaced. Files appear whole,
and are never removed, so any number of processes may share a cache. What one of them is making,
others wait for, where the system has locks on files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from meshc.support.files import replace_file

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # a system without these locks: what two processes need at once both make
    flock = None  # type: ignore[assignment]

_MOST_SECONDS, _PAUSE_SECONDS = 120.0, 0.02
_Stamp = tuple[int, int, int, int]
_proved: dict[Path, _Stamp] = {}  # files whose content this process has proved, as they were then


def cache_folder() -> Path:
    """The folder of all that is kept: ``$XDG_CACHE_HOME/meshc`` or ``~/.cache/meshc``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "meshc"


def recall(key: str) -> Path | None:
    """The sound file that is kept for ``key``; None when there is none, or none can be read."""
    try:
        for path in sorted((cache_folder() / key).iterdir()):
            if _is_sound(path):
                return path
    except OSError:
        pass
    return None


def keep(key: str, data: bytes, suffix: str = "") -> Path:
    """Keep ``data`` for ``key``; the file, whose name ends in ``suffix``. Raises OSError."""
    path = cache_folder() / key / f"{_digest(data)}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, mode=0o777)
    return path


def recall_or_make(key: str, make: Callable[[], bytes], suffix: str = "") -> Path:
    """The sound file that is kept for ``key``, or what ``make`` gives, kept for it. Of processes
    and threads that ask at once one makes it. Raises OSError, and what ``make`` raises."""
    known = recall(key)
    if known is not None:
        return known
    with _alone(cache_folder() / key):
        return recall(key) or keep(key, make(), suffix)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, which ends with the process at the latest. Who has waited for it
    for minutes, or finds that the system cannot lock, goes on without."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY) if flock is not None else None
    try:
        if held is not None:
            _wait_for_lock(held)
        yield
    finally:
        if held is not None:
            os.close(held)


def _wait_for_lock(opened: int) -> None:
    end = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < end:
        try:
            flock(opened, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:
            return
        else:
            return


def _is_sound(path: Path) -> bool:
    """Whether a file is what its name says. It is read once in a process, and again if it has
    been written since."""
    found = path.stat()
    stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if _proved.get(path) == stamp:
        return True
    sound = path.stem == _digest(path.read_bytes())
    if sound:
        _proved[path] = stamp
    return sound


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]

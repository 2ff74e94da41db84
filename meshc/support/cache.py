"""What was made once and is kept in the user's cache: found by a key, proved by its hash.

A key is the name of a folder; what it holds is a file that is named after the hash of its content.
So a damaged file is not taken for what it was: it is made again and replaced. Files appear whole,
and are removed only where their part of the cache is bounded (:mod:`meshc.support.room`), so any
number of processes may share a cache. What one of them is making,
others wait for, where the system has locks on files.

Where the cache cannot be written, be it full, closed to the user or something else than a folder, a
process keeps what it makes in a folder of its own, as long as it lives, and says so once.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from meshc.support.diagnostics import Diagnostic
from meshc.support.files import error_words, put_file
from meshc.support.scratch import FOLDER, scratch_folder

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # a system without these locks: what two processes need at once both make
    flock = None  # type: ignore[assignment]

_MOST_SECONDS, _PAUSE_SECONDS = 120.0, 0.02
_DIGITS = 32
_Stamp = tuple[int, int, int, int]
_proved: dict[Path, _Stamp] = {}  # files whose content this process has proved, as they were then


def cache_folder() -> Path:
    """The folder of all that is kept: ``$XDG_CACHE_HOME/meshc`` or ``~/.cache/meshc``. A relative
    path there is passed over, as the XDG specification has it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.path.abspath(base)) / "meshc"


class _Private:
    """The folder in place of the cache, made when it is first needed; it goes with the process."""

    def __init__(self) -> None:
        self._made: Path | None = None
        self._lock = threading.Lock()

    def folders(self) -> list[Path]:
        """It, if it is made."""
        return [] if self._made is None else [self._made]

    def folder(self, problem: OSError) -> Path:
        """It; when it is made stderr is told ``problem``, for which the cache cannot be used.
        Raises OSError."""
        with self._lock:
            if self._made is None:
                stack = contextlib.ExitStack()
                self._made = stack.enter_context(scratch_folder())
                atexit.register(stack.close)
                tell_unusable(problem, "what is compiled is kept for this run alone")
            return self._made


_private = _Private()


def tell_unusable(problem: OSError, instead: str) -> None:
    """Say on stderr why the cache cannot be used, and what is done ``instead``."""
    words = f"the cache '{cache_folder()}' cannot be used: {error_words(problem)}; {instead}"
    print(Diagnostic("remark", "cache", words).render(), file=sys.stderr)


def recall(key: str) -> Path | None:
    """The sound file that is kept for ``key``; None when there is none, or none can be read."""
    for folder in (cache_folder(), *_private.folders()):
        with contextlib.suppress(OSError):
            for path in sorted((folder / key).iterdir()):
                if _is_sound(path):
                    return path
    return None


def keep(key: str, data: bytes, suffix: str = "") -> Path:
    """Keep ``data`` for ``key``; the file, whose name ends in ``suffix``. Raises OSError."""
    try:
        return keep_for_all(key, data, suffix)
    except OSError as problem:
        return _kept(_private.folder(problem), key, f"{_digest(data)}{suffix}", data)


def keep_for_all(key: str, data: bytes, suffix: str = "") -> Path:
    """The same in the user's cache or not at all. Raises OSError."""
    return _kept(cache_folder(), key, f"{_digest(data)}{suffix}", data)


def keep_privately(path: Path, problem: OSError) -> Path:
    """A copy of the kept file ``path``, which cannot be used where it lies because of ``problem``,
    such as a library on a disk from which nothing is run. Raises OSError."""
    return _kept(_private.folder(problem), path.parent.name, path.name, path.read_bytes())


def _kept(folder: Path, key: str, name: str, data: bytes) -> Path:
    path = folder / key / name
    path.parent.mkdir(parents=True, exist_ok=True)
    put_file(path, data, mode=0o777, beside=folder)
    return path


def recall_or_make(key: str, make: Callable[[], bytes], suffix: str = "") -> Path:
    """The sound file that is kept for ``key``, or what ``make`` gives, kept for it. Of processes
    and threads that ask at once one makes it. Raises OSError, and what ``make`` raises."""
    known = recall(key)
    if known is not None:
        return known
    with alone(cache_folder() / key):
        return recall(key) or keep(key, make(), suffix)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, which ends with the process at the latest. Who has waited for it
    for minutes, or finds that there is no such folder or that the system cannot lock, goes on
    without."""
    held = None
    if flock is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            held = os.open(folder, FOLDER)
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
    been written since. What is no file is not opened: a pipe would wait for its writer."""
    try:
        found = path.stat()
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if _proved.get(path) == stamp:
            return True
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            sound = path.stem == hashlib.file_digest(stream, "sha256").hexdigest()[:_DIGITS]
    except OSError:
        return False
    if sound:
        _proved[path] = stamp
    return sound


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]

"""Folders for work in progress, which are gone when the work is done or the process is stopped.

A process that is killed leaves its folders. Where the system has locks on files each is locked
while its process lives, so the next process that works beside one can tell, and removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # a system without these locks: folders of killed processes stay
    flock = None  # type: ignore[assignment]

PREFIX = ".meshc-"
_NAME = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{24}}")
_OF_OTHERS = "of-others"
"""A file of this name says that a folder has what meshc did not write, and is not removed."""
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
"""How a folder is opened, and nothing else, such as a pipe, which would wait for its writer."""
STOPPING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))
"""The signals that ask a process to end."""

_in_use: set[Path] = set()
_cleared: set[Path] = set()


@contextmanager
def scratch_folder(beside: Path | None = None) -> Iterator[Path]:
    """An empty folder of the user's alone, removed with all it holds at the end.

    It lies in the folder ``beside``, so that what is made in it can be renamed to a place there, or
    among the system's temporary files. Its name is noted before it exists: whenever a signal comes,
    :func:`remove_scratch` finds it. What killed processes left there is removed first.
    """
    parent = Path(beside or tempfile.gettempdir())
    _clear(parent)
    folder, lock = _made(parent)
    try:
        yield folder
    finally:
        _remove(folder)
        _in_use.discard(folder)
        if lock is not None:
            os.close(lock)


def hold(folder: Path, whose: str = "") -> None:
    """Note that the scratch folder ``folder`` has what meshc did not write, and ``whose`` it is:
    until :func:`release` nothing removes it, be it the end of this process or the next one."""
    (folder / _OF_OTHERS).write_text(whose, encoding="utf-8", errors="surrogateescape")


def release(folder: Path) -> None:
    """Note that all in the scratch folder ``folder`` may go."""
    (folder / _OF_OTHERS).unlink()


def held(parent: Path) -> Iterator[tuple[Path, str]]:
    """Folders in ``parent`` that processes held which are gone, and whose they are. Each is locked
    while it is looked at, and removed then if it was released."""
    for folder in _left(parent):
        if os.path.lexists(folder / _OF_OTHERS):
            yield folder, (folder / _OF_OTHERS).read_text("utf-8", "surrogateescape")
            _remove(folder)


def remove_scratch() -> None:
    """Remove every folder that is still in use, for a process that ends without its work."""
    for folder in tuple(_in_use):
        _remove(folder)


def _remove(folder: Path) -> None:
    if not os.path.lexists(folder / _OF_OTHERS):
        shutil.rmtree(folder, ignore_errors=True)


def _made(parent: Path) -> tuple[Path, int | None]:
    """A new folder and its lock."""
    while True:
        folder = parent / f"{PREFIX}{os.urandom(12).hex()}"
        _in_use.add(folder)
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            _in_use.discard(folder)
            raise
        with suppress(BlockingIOError, FileNotFoundError):  # somebody who clears was faster
            return folder, _locked(folder)
        _in_use.discard(folder)


def _locked(folder: Path) -> int | None:
    """The folder, open and locked as long as it is; None where the system has no locks. Raises
    BlockingIOError where another process has the lock, and FileNotFoundError."""
    if flock is None:
        return None
    opened = os.open(folder, FOLDER | getattr(os, "O_NOFOLLOW", 0))
    try:
        flock(opened, LOCK_EX | LOCK_NB)
        if os.path.samestat(os.fstat(opened), os.stat(folder)):
            return opened
        raise FileNotFoundError(folder)
    except OSError as refusal:
        os.close(opened)
        if isinstance(refusal, BlockingIOError | FileNotFoundError):
            raise
        return None


def _clear(parent: Path) -> None:
    """Remove folders in ``parent`` whose processes are gone, once in a process."""
    if flock is None or parent in _cleared:
        return
    _cleared.add(parent)
    for folder in _left(parent):
        _remove(folder)


def _left(parent: Path) -> Iterator[Path]:
    """The user's folders in ``parent`` whose processes are gone, each locked in the meantime."""
    found: list[Path] = []
    with suppress(OSError), os.scandir(parent) as entries:
        found = [Path(entry) for entry in entries if _NAME.fullmatch(entry.name)]
    for folder in found:
        with suppress(OSError):
            lock = _locked(folder)
            if lock is not None:
                try:
                    if os.fstat(lock).st_uid == os.getuid():
                        yield folder
                finally:
                    os.close(lock)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that ask to end wait until the end of the block.

    A mask of the thread would not do: the system hands a signal to any thread that takes it, and
    Python then runs the handler in the main thread whatever that one's mask is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers never run here
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in STOPPING}
    handled = {n: h for n, h in before.items() if h is not None and h != signal.SIG_IGN}
    try:
        for number in handled:
            signal.signal(number, lambda found, frame: waiting.append(found))
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)

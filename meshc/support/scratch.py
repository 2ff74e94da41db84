"""Folders for work in progress, which are gone when the work is done or the process is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".meshc-"
STOPPING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))
"""The signals that ask a process to end."""

_in_use: set[Path] = set()


@contextmanager
def scratch_folder(beside: Path | None = None) -> Iterator[Path]:
    """An empty folder of the user's alone, removed with all it holds at the end.

    It lies in the folder ``beside``, so that what is made in it can be renamed to a place there, or
    among the system's temporary files. Its name is noted before it exists: whenever a signal comes,
    :func:`remove_scratch` finds it.
    """
    folder = Path(beside or tempfile.gettempdir()) / f"{PREFIX}{os.urandom(8).hex()}"
    _in_use.add(folder)
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _in_use.discard(folder)


def remove_scratch() -> None:
    """Remove every folder that is still in use, for a process that ends without its work."""
    for folder in tuple(_in_use):
        shutil.rmtree(folder, ignore_errors=True)


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

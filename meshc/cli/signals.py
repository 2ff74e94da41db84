"""What SIGINT, SIGTERM and SIGHUP do: nothing is left behind, and the exit code is 128 + number.

The first signal while a command works raises :class:`Stopped`, so that whatever is under way ends
in order. At any other moment, and when the first signal had no effect, a signal removes the folders
of work in progress and ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from meshc.support.scratch import STOPPING, remove_scratch

_SHELL_OFFSET = 128


class Stopped(KeyboardInterrupt):
    """A signal asks to stop; ``code`` is the exit code that says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = _SHELL_OFFSET + number


class Signals:
    """The handlers of a run of the command line."""

    def __init__(self) -> None:
        self._working = False
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Handle the signals that are not ignored; only the main thread of a process can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Give the signals back to those who handled them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Within, the first signal raises Stopped."""
        self._working = True
        try:
            yield
        except Stopped:
            remove_scratch()
            raise
        finally:
            self._working = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._working:
            self._working = False
            raise Stopped(number)
        remove_scratch()
        os._exit(_SHELL_OFFSET + number)

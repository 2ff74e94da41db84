"""A command in a process of its own, with a time limit: what hangs takes nothing with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, str(Path(__file__).with_name("decode.py")))


@dataclass(frozen=True)
class Ended:
    """The exit code of a process, None when its time was over, and the seconds that it took."""

    code: int | None
    seconds: float


def run(arguments: Sequence[str], limit: float, script: Path | None = None) -> Ended:
    """Run a benchmark, by default that of decode steps, with ``arguments`` for at most ``limit``
    seconds, then end it and all that it started. Its words go where this process's go."""
    start = time.monotonic()
    command = COMMAND if script is None else (sys.executable, str(script))
    process = subprocess.Popen([*command, *arguments], start_new_session=True)
    try:
        code: int | None = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        code = None
    except BaseException:
        _end(process)
        raise
    if code is None:
        _end(process)
    return Ended(code, time.monotonic() - start)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and the group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

"""One input after another in a process of its own, with bounds on time and memory.

The parent sends numbers or inputs as JSON lines; the child answers each with a verdict. A child
that is killed by its bounds answers nothing, which is a verdict as well.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SECONDS = 5
JUDGE_SECONDS = 60
MEMORY_BYTES = 1 << 30
_PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Verdict:
    """``outcome`` is fine, refused, usage, traceback, internal, slow or killed; ``codes`` are the
    diagnostics of a refusal; ``place`` is where a failure happened, ``words`` what it said."""

    outcome: str
    codes: tuple[str, ...] = ()
    place: str = ""
    words: str = ""

    @property
    def sound(self) -> bool:
        """Whether this is an answer that a user may get."""
        return self.outcome in ("fine", "refused", "usage")


class Child:
    """A worker process that gives an input so many ``seconds``; started anew whenever it has
    died."""

    def __init__(self, seconds: int = SECONDS) -> None:
        self.seconds = seconds
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> Verdict:
        """The verdict on one input."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_SECONDS)
        line = process.stdout.readline() if ready else ""
        if line:
            found = json.loads(line)
            return Verdict(found["outcome"], tuple(found["codes"]), found["place"], found["words"])
        code = self.close()
        slow = not ready or code == -signal.SIGXCPU
        return Verdict("slow" if slow else "killed", words=f"exit code {code}")

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            worker = str(Path(__file__).with_name("fuzz_worker.py"))
            self.process = subprocess.Popen(
                [sys.executable, worker, str(self.seconds)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # others would wait in loops
            )  # fmt: skip
        return self.process

    def close(self) -> int:
        """End the process; its exit code."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.kill()
        process.communicate()
        return process.returncode


def bound_memory() -> None:
    """This process may take so much more address space than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class InputTime:
    """The processor time of an input, without what its judge takes: this process is killed beyond
    either. Nothing is bounded before an input is made or begun."""

    def __init__(self) -> None:
        self.end: float | None = None

    def make(self) -> None:
        """The next input is being made, which is the judge's work."""
        _kill_beyond(time.process_time() + JUDGE_SECONDS)

    def begin(self, seconds: int) -> None:
        """The input may take so many from now on."""
        self.end = time.process_time() + seconds
        _kill_beyond(self.end)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """What is done within is the judge's work."""
        if self.end is None:
            yield
            return
        begin = time.process_time()
        _kill_beyond(begin + JUDGE_SECONDS)
        try:
            yield
        finally:
            self.end += time.process_time() - begin
            _kill_beyond(self.end)


INPUT_TIME = InputTime()


def _kill_beyond(seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))


def answer(stream: IO[str], verdict: Verdict) -> None:
    """Write a verdict for the parent."""
    stream.write(json.dumps(verdict.__dict__) + "\n")
    stream.flush()

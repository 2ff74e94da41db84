"""Judging in another process, which is replaced after so many cases: machine code of kernels that
were loaded is never unloaded, and a process that crashes or does not end takes no others along."""

from __future__ import annotations

import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType

from cases import AnyCase
from judging import Outcome, fault, judge

CASES = 150
"""So many cases are judged by one process."""
LIMIT_SECONDS = 1800
"""Of waiting for one case, whose processor time :func:`judging.judge` limits, on a busy machine."""


class Judges:
    """Processes that judge cases, one at a time. They are copies of this one, which loads no
    kernels."""

    def __init__(self, cases: int = CASES, seconds: float = LIMIT_SECONDS) -> None:
        self._cases, self._seconds, self._judged = cases, seconds, 0
        self._context = get_context("fork")
        self._start()

    def _start(self) -> None:
        self._ours, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._judged = 0

    @property
    def process(self) -> int | None:
        """The number of the one that judges now."""
        return self._process.pid

    def judge(self, case: AnyCase) -> Outcome:
        """What comes of ``case``: see :func:`judging.judge`; of a process that ends or does not
        end, a fault."""
        if self._judged == self._cases:
            self._end()
            self._start()
        self._judged += 1
        self._ours.send(case)
        try:
            if self._ours.poll(self._seconds):
                return self._ours.recv()
            found = Outcome("fault", "DoesNotEnd", f"nothing came in {self._seconds} s")
        except EOFError:
            self._process.join()
            found = Outcome("fault", "Crash", f"the process ended with {self._process.exitcode}")
        self._end()
        self._start()
        return found

    def _end(self) -> None:
        self._ours.close()
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Judges:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()


def _serve(cases: Connection) -> None:
    """Judge what comes until nobody asks any more."""
    while True:
        try:
            case = cases.recv()
        except EOFError:
            sys.exit()
        try:
            cases.send(judge(case))
        except Exception as error:
            cases.send(fault(error))

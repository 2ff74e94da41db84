"""A line on the terminal during long runs: how far the simulation is and how fast it goes."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_FIRST_AFTER = 2.0
_EVERY = 0.5
_WIPE = "\r\x1b[2K"


class Progress:
    """Shows the cycle reached on ``out``, stderr by default; silent unless that is a terminal."""

    def __init__(self, pes: int, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._silent = not self._out.isatty()
        self._pes = pes
        self._started = time.monotonic()
        self._next = self._started + _FIRST_AFTER

    def show(self, cycles: int) -> None:
        """Called now and then with the cycles simulated so far."""
        now = time.monotonic()
        if self._silent or now < self._next:
            return
        self._next = now + _EVERY
        rate = cycles * self._pes / (now - self._started) / 1e6
        text = f"{cycles:,} cycles on {self._pes:,} PEs, {rate:.1f} million PE-cycles per second"
        self._out.write(_WIPE + text)
        self._out.flush()

    def close(self) -> None:
        """Wipe the line."""
        if not self._silent:
            self._out.write(_WIPE)
            self._out.flush()

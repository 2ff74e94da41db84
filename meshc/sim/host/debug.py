"""Symbols and traces of a finished run, by absolute fabric coordinates."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

DUMP = "dump.sim"


def save_dump(folder: Path, machine: Any) -> None:
    """Keep memory and traces of all PEs after a run."""
    state = {}
    for (x, y), pe in machine.pes.items():
        symbols = {s.name: (s.addr, s.size) for s in pe.program.symbols}
        state[x, y] = (bytes(pe.mem), symbols, pe.traces)
    (folder / DUMP).write_bytes(pickle.dumps((machine.program.offsets, state)))


class debug_util:
    """Reads the dump of the run in ``directory``."""

    def __init__(self, directory: str, **options: Any) -> None:
        self._offsets, self._state = pickle.loads((Path(directory) / DUMP).read_bytes())

    def _pe(self, x: int, y: int) -> Any:
        at = (x - self._offsets[0], y - self._offsets[1])
        if at not in self._state:
            raise ValueError(f"there is no PE at fabric coordinates ({x}, {y})")
        return self._state[at]

    def read_trace(self, x: int, y: int, key: str) -> list[Any]:
        """The values traced under ``key``, in order."""
        return [value for _, value in self._pe(x, y)[2].get(key, [])]

    def get_symbol(self, x: int, y: int, name: str, dtype: Any = np.uint8) -> Any:
        """The contents of a variable."""
        memory, symbols, _ = self._pe(x, y)
        addr, size = symbols[name]
        return np.frombuffer(memory[addr : addr + size], dtype)

    def get_symbol_rect(self, rectangle: Any, name: str, dtype: Any = np.uint8) -> Any:
        """The contents over a rectangle ((x, y), (w, h)), first index the column."""
        (x, y), (w, h) = rectangle
        return np.array(
            [[self.get_symbol(i, j, name, dtype) for j in range(y, y + h)] for i in range(x, x + w)]
        )

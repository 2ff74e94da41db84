"""Symbols and traces of a finished run, by absolute fabric coordinates."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from meshc.support.diagnostics import fail

DUMP = "dump.npz"


def save_dump(path: Path, machine: Any) -> None:
    """Keep memory and traces of all PEs in a file: arrays, and their index as JSON text."""
    classes: dict[int, int] = {}
    tables: list[dict[str, tuple[int, int]]] = []
    places, sizes = [], []
    for (x, y), pe in machine.pes.items():
        if id(pe.program) not in classes:
            classes[id(pe.program)] = len(tables)
            tables.append({s.name: (s.addr, s.size) for s in pe.program.symbols})
        places.append((x, y, classes[id(pe.program)]))
        sizes.append(len(pe.mem))
    traces = [[x, y, pe.traces] for (x, y), pe in machine.pes.items() if pe.traces]
    index = {"offsets": machine.program.offsets, "symbols": tables, "traces": traces}
    memory = b"".join(bytes(pe.mem) for pe in machine.pes.values())
    with open(path, "wb") as out:  # by its name alone, NumPy would add an ending to it
        np.savez_compressed(
            out,
            index=np.frombuffer(json.dumps(index).encode(), np.uint8),
            places=np.array(places, np.int32).reshape(-1, 3),
            ends=np.cumsum(sizes, dtype=np.int64),
            memory=np.frombuffer(memory, np.uint8),
        )


class debug_util:
    """Reads the dump of the run in ``directory``."""

    def __init__(self, directory: str, **options: Any) -> None:
        path = Path(directory) / DUMP
        try:
            with np.load(path) as arrays:
                index = json.loads(arrays["index"].tobytes())
                places, ends = arrays["places"].tolist(), arrays["ends"].tolist()
                self._memory = arrays["memory"]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
            fail(
                "csl-no-dump",
                f"there is no readable dump of a run in '{directory}' ({type(problem).__name__})",
                help="the dump is written when the runtime stops",
            )
        self._offsets = index["offsets"]
        self._symbols = index["symbols"]
        self._traces = {(x, y): values for x, y, values in index["traces"]}
        starts = [0, *ends[:-1]]
        self._pes = {
            (x, y): (start, number) for (x, y, number), start in zip(places, starts, strict=True)
        }

    def _at(self, x: int, y: int) -> tuple[int, int]:
        at = (x - self._offsets[0], y - self._offsets[1])
        if at not in self._pes:
            raise ValueError(f"there is no PE at fabric coordinates ({x}, {y})")
        return at

    def read_trace(self, x: int, y: int, key: str) -> list[Any]:
        """The values traced under ``key``, in order."""
        traces = self._traces.get(self._at(x, y), {})
        return [value for _, value in traces.get(key, [])]

    def get_symbol(self, x: int, y: int, name: str, dtype: Any = np.uint8) -> Any:
        """The contents of a variable."""
        start, number = self._pes[self._at(x, y)]
        addr, size = self._symbols[number][name]
        return np.frombuffer(self._memory[start + addr : start + addr + size].tobytes(), dtype)

    def get_symbol_rect(self, rectangle: Any, name: str, dtype: Any = np.uint8) -> Any:
        """The contents over a rectangle ((x, y), (w, h)), first index the column."""
        (x, y), (w, h) = rectangle
        return np.array(
            [[self.get_symbol(i, j, name, dtype) for j in range(y, y + h)] for i in range(x, x + w)]
        )

"""The host of SDKs before 1.0: tensors that enter and leave at the edges of the rectangle.

A port map names PEs outside: ``PE[-1, y]`` is what lies west of PE (0, y). Elements pass a port in
the order of their index; indices that no element has are not waited for. The program runs until all
outputs have arrived.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from meshc.sim.host.host_operations import OPTIONS, finish_run
from meshc.sim.host.portmaps import PortMap, read_map
from meshc.sim.host.utils import input_array_to_u32, memcpy_view
from meshc.sim.machine.machine import Machine
from meshc.sim.program import PeSymbol
from meshc.sim.route_configs import EAST, NORTH, SOUTH, WEST
from meshc.sim.stored_programs import load_program
from meshc.support.diagnostics import fail

Key = tuple[int, int, int]


class CSELFRunner:
    """Runs the program whose files ``elf_paths`` names."""

    def __init__(self, elf_paths: Any, cmaddr: Any = None, **options: Any) -> None:
        paths = [elf_paths] if isinstance(elf_paths, str | Path) else list(elf_paths)
        if not paths:
            fail("csl-host", "no file of a compiled program is given")
        self._folder = Path(paths[0]).parent.parent
        self._program = load_program(self._folder)
        self._inputs: list[tuple[list[Key], list[Any], int | None]] = []
        self._outputs: list[tuple[str, PortMap, list[Key], Any]] = []
        self._symbols: dict[str, Any] = {}
        self._machine: Machine | None = None
        self.out_tensor_dict: dict[str, Any] = {}

    def add_input_tensor(
        self, color: int, portmap: str, tensor: Any, sentinel: int | None = None
    ) -> None:
        """Send a tensor, and behind it a control wavelet for the task ``sentinel``."""
        found = read_map(portmap)
        words = input_array_to_u32(np.asarray(tensor))
        keys = self._ports(found, int(color), True)
        rows = [words[elements] for elements in _by_port(found)]
        self._inputs.append((keys, rows, sentinel))

    def add_output_tensor(self, color: int, portmap: str, dtype: Any) -> None:
        """Receive a tensor; it is in ``out_tensor_dict`` after the run."""
        found = read_map(portmap)
        self._outputs.append((found.name, found, self._ports(found, int(color), False), dtype))

    def _ports(self, found: PortMap, color: int, is_input: bool) -> list[Key]:
        """Open the ports of a map, row by row."""
        keys = []
        for y in range(found.py, found.py + found.h):
            for x in range(found.px, found.px + found.w):
                key, direction = self._inside(x, y, color)
                keys.append(key)
                self._program.ports.append((key, direction, is_input))
        return keys

    def _inside(self, x: int, y: int, color: int) -> tuple[Key, int]:
        """The PE at the edge next to a place outside, and the direction of that place."""
        w, h = self._program.width, self._program.height
        for there, at, direction in (
            (x == -1, (0, y), WEST),
            (x == w, (w - 1, y), EAST),
            (y == -1, (x, 0), NORTH),
            (y == h, (x, h - 1), SOUTH),
        ):
            if there and at in self._program.tiles:
                return (*at, color), direction
        fail("csl-host", f"PE[{x}, {y}] is not next to the edge of the {w} by {h} PEs")

    def set_symbol_rect(self, name: str, values: Any) -> None:
        """Initial values of a symbol: an array [w, h, n] (one of w and h may be 1)."""
        self._symbols[name] = np.asarray(values)

    def connect_and_run(self, *_: Any, **options: Any) -> None:
        """Run the program to its end. Raises MeshcError ``csl-hang`` when outputs are missing."""
        machine = self._machine = Machine(self._program, OPTIONS[0])
        for name, values in self._symbols.items():
            _preload(machine, name, values)
        for keys, rows, sentinel in self._inputs:
            for port, row in zip(keys, rows, strict=True):
                for key in machine.fabric.entering(port):
                    machine.enter(key, row)
                    if sentinel is not None:
                        machine.enter(key, np.array([sentinel << 16], np.uint32), control=True)
        for name, found, keys, dtype in self._outputs:
            words = np.zeros(found.places.size, np.uint32)
            for key, elements in zip(keys, _by_port(found), strict=True):
                words[elements] = self._received(name, key, len(elements))
            self.out_tensor_dict[name] = memcpy_view(words, dtype).reshape(found.shape)
        machine.run_to_rest()
        finish_run(self._folder, machine)

    def _received(self, name: str, key: Key, count: int) -> Any:
        assert self._machine is not None
        if self._machine.run_until_received([key], count) is not None:
            raise self._machine.hang(
                f"the host waits for {count} wavelets of '{name}' from PE {key[:2]}, "
                f"{self._machine.collected(key)} arrived"
            )
        return self._machine.take(key, count)

    # --- after the run, by fabric coordinates ---

    def _pe(self, x: int, y: int) -> Any:
        dx, dy = self._program.offsets
        if self._machine is None or (x - dx, y - dy) not in self._machine.pes:
            fail("csl-host", f"there is no PE at fabric coordinates ({x}, {y}), or no run yet")
        return self._machine.pes[x - dx, y - dy]

    def get_symbol(self, x: int, y: int, name: str, dtype: Any = np.uint8) -> Any:
        """The contents of a variable of a PE."""
        pe = self._pe(x, y)
        found = _symbol(pe, name)
        return np.frombuffer(bytes(pe.mem[found.addr : found.addr + found.size]), dtype)

    def get_symbol_rect(self, rectangle: Any, name: str, dtype: Any = np.uint8) -> Any:
        """The contents over a rectangle ((x, y), (w, h)), first index the column."""
        (x, y), (w, h) = rectangle
        return np.array(
            [[self.get_symbol(i, j, name, dtype) for j in range(y, y + h)] for i in range(x, x + w)]
        )

    def read_trace(self, x: int, y: int, key: str) -> list[Any]:
        """The values a PE traced under ``key``, in order."""
        return [value for _, value in self._pe(x, y).traces.get(key, [])]

    def coordinates(self) -> list[tuple[int, int]]:
        """The fabric coordinates of all PEs."""
        dx, dy = self._program.offsets
        return [(x + dx, y + dy) for x, y in self._program.tiles]


def _by_port(found: PortMap) -> list[Any]:
    """For each port the numbers of the tensor's elements, in the order in which they pass."""
    places = found.places.reshape(-1)
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order] // found.words, np.arange(found.w * found.h), "right")
    return np.split(order, ends[:-1])


def _preload(machine: Machine, name: str, values: Any) -> None:
    for x, column in enumerate(values):
        for y, words in enumerate(column):
            pe = machine.pes[x, y]
            data = np.ascontiguousarray(words).tobytes()
            found = _symbol(pe, name)
            if len(data) > found.size:
                fail("csl-host", f"{len(data)} bytes do not fit '{name}' of PE ({x}, {y})")
            pe.mem[found.addr : found.addr + len(data)] = data


def _symbol(pe: Any, name: str) -> PeSymbol:
    found: PeSymbol | None = next((s for s in pe.program.symbols if s.name == name), None)
    if found is None:
        fail("csl-host", f"PE ({pe.x}, {pe.y}) has no symbol '{name}'")
    return found

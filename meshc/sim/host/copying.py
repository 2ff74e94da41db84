"""Copy-mode transfers between host arrays and symbols of PEs."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshc.sim.machine.machine import Machine
from meshc.sim.machine.pe import Pe
from meshc.support.diagnostics import fail

ROW_MAJOR, COL_MAJOR = 0, 1
BITS32, BITS16 = 0, 1


def order_indices(w: int, h: int, elems: int, order: int) -> Any:
    """Host word index of every element, as an array [h, w, elems]."""
    grid = np.arange(w * h * elems)
    if order == ROW_MAJOR:
        return grid.reshape(h, w, elems)
    return grid.reshape(elems, w, h).transpose(2, 1, 0)


def words_of(array: Any, size: int) -> Any:
    """A host array as raw 32-bit words; ``size`` words are needed."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.itemsize == 8:
        flat = flat.astype(np.float32 if flat.dtype.kind == "f" else np.uint32)
    words = flat.view(np.uint32) if flat.dtype.itemsize == 4 else flat.astype(np.uint32)
    if len(words) < size:
        fail("csl-host", f"the host array has {len(words)} words, the transfer needs {size}")
    return words[:size]


def region(
    machine: Machine, x: int, y: int, w: int, h: int, steps: tuple[int, int] = (1, 1)
) -> list[Pe]:
    """``w`` by ``h`` PEs of a region of interest, row by row, ``steps`` apart."""
    found = []
    for j in range(y, y + h * steps[1], steps[1]):
        for i in range(x, x + w * steps[0], steps[0]):
            pe = machine.pes.get((i, j))
            if pe is None:
                fail("csl-host", f"the transfer covers PE ({i}, {j}), which has no code")
            found.append(pe)
    return found


def symbol_address(pe: Pe, name: str) -> int:
    """Where an exported symbol's data is now: pointers are followed."""
    export = pe.program.exports.get(name)
    if export is None:
        fail("csl-host", f"PE ({pe.x}, {pe.y}) does not export '{name}'")
    if export.kind == "fn":
        fail("csl-host", f"'{name}' is a function")
    if export.kind == "data":
        return export.addr
    return int.from_bytes(pe.mem[export.addr : export.addr + 2], "little")


def write_symbol(pe: Pe, name: str, words: Any, bits: int) -> None:
    """Store words (the low halves of them with 16 bits) at a symbol."""
    addr = symbol_address(pe, name)
    data = words.astype(np.uint16).tobytes() if bits == BITS16 else words.tobytes()
    if addr + len(data) > len(pe.mem):
        fail(
            "csl-host",
            f"{len(data)} bytes do not fit '{name}' of PE ({pe.x}, {pe.y})",
        )
    pe.mem[addr : addr + len(data)] = data


def read_words(pe: Pe, name: str, elems: int, bits: int) -> Any:
    """Words of a symbol; reading past all variables gives zeros."""
    addr = symbol_address(pe, name)
    size = elems * (2 if bits == BITS16 else 4)
    raw = bytes(pe.mem[addr : addr + size]).ljust(size, b"\0")
    if bits == BITS16:
        return np.frombuffer(raw, np.uint16).astype(np.uint32)
    return np.frombuffer(raw, np.uint32)

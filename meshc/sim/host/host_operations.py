"""The runtime: a queue of host operations on one machine, run in order."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meshc.sim.host import copying
from meshc.sim.host.debug import DUMP, save_dump
from meshc.sim.host.fabric_facts import fabric_facts
from meshc.sim.host.run_progress import Progress
from meshc.sim.machine.run_options import Options
from meshc.sim.machines import make_machine
from meshc.sim.stored_programs import load_program
from meshc.support.diagnostics import Diagnostic, fail

_COMMAND_CYCLES = 100


# What ``cs_python`` was told; host scripts make their own runtimes.
OPTIONS: list[Options] = [Options()]


class Runtime:
    """Runs host operations on a program. Symbols are named by ids, as the host expects. Without
    ``options`` they are those that ``cs_python`` was told when the program is loaded."""

    def __init__(self, folder: str, options: Options | None = None) -> None:
        self.folder = Path(folder)
        self.options = options
        self.program = load_program(self.folder)
        self.machine: Any = None
        self.trace_folder = True
        self.core_path = ""
        self.progress = Progress(0)
        self.names: list[str] = list(self.program.exports)
        self.launched = 0
        self.queue: deque[Callable[[], None]] = deque()

    def load(self) -> None:
        """Load the program."""
        self.machine = make_machine(self.program, self.options or OPTIONS[0])
        self.progress = Progress(len(self.machine.pes))
        self.machine.watch = self.progress.show
        for (x, y), symbols in self.program.preload.items():
            pe = self.machine.pes[x, y]
            for name, data in symbols.items():
                addr = copying.symbol_address(pe, name)
                pe.mem[addr : addr + len(data)] = data

    @property
    def ready(self) -> Any:
        """The loaded machine."""
        if self.machine is None:
            self.load()
        assert self.machine is not None
        return self.machine

    def get_id(self, name: str) -> int | None:
        """The id of an exported symbol; None for an unknown one. Ids start above all colors."""
        return 64 + self.names.index(name) if name in self.names else None

    def symbol_name(self, number: Any) -> str:
        """The name behind an id."""
        if number is None or not 64 <= int(number) < 64 + len(self.names):
            fail("csl-host", f"{number} is not the id of an exported symbol")
        return self.names[int(number) - 64]

    # --- the command stream ---

    def submit(self, action: Callable[[], None], nonblock: bool) -> None:
        """Run an operation now, or queue it when the host does not want to wait."""
        self.queue.append(action)
        if not nonblock:
            self.drain()

    def drain(self) -> None:
        """Run all queued operations."""
        while self.queue:
            self.queue.popleft()()

    def _settle(self) -> None:
        """Wait until the function launched last has unblocked the command stream everywhere."""
        machine, wanted = self.ready, self.launched
        if wanted and not machine.run_until_unblocked(wanted):
            missing = [pe for pe in machine.pes.values() if pe.unblocked < wanted]
            first = ", ".join(f"({pe.x}, {pe.y})" for pe in missing[:4])
            raise machine.hang(
                f"{len(missing)} PEs never called unblock_cmd_stream, among them {first}"
            )

    def launch(self, name: str, args: tuple[Any, ...]) -> None:
        """Start an exported function on every PE."""
        self._settle()
        machine = self.ready
        words = [word_of(a) for a in args]
        self.launched += 1
        found = False
        for pe in machine.pes.values():
            export = pe.program.exports.get(name)
            if export is None or export.kind != "fn":
                continue
            found = True
            kinds = machine.parameters(pe.program, export.fn)
            if len(kinds) != len(words):
                fail("csl-host", f"'{name}' takes {len(kinds)} arguments, found {len(words)}")
            values = machine.arguments(pe.program, export.fn, words)
            machine.launch(pe, export.fn, values)
        if not found:
            fail("csl-host", f"no PE exports a function '{name}'")
        missing = [pe for pe in machine.pes.values() if name not in pe.program.exports]
        if missing:
            pe = missing[0]
            fail("csl-host", f"PE ({pe.x}, {pe.y}) does not export the function '{name}'")

    # --- transfers ---

    def h2d(
        self, name: str, array: Any, roi: tuple[int, int, int, int], elems: int, order: int,
        bits: int, steps: tuple[int, int] = (1, 1),
    ) -> None:  # fmt: skip
        """Copy to a symbol of each PE of a region."""
        self._settle()
        x, y, w, h = roi
        words = copying.words_of(array, w * h * elems)
        where = copying.order_indices(w, h, elems, order).reshape(w * h, elems)
        for pe, index in zip(copying.region(self.ready, x, y, w, h, steps), where, strict=True):
            copying.write_symbol(pe, name, words[index], bits)
        self.ready.run_for(_COMMAND_CYCLES + w * h * elems)

    def d2h(
        self, array: Any, name: str, roi: tuple[int, int, int, int], elems: int, order: int,
        bits: int,
    ) -> None:  # fmt: skip
        """Copy from a symbol of each PE of a region."""
        self._settle()
        x, y, w, h = roi
        self.ready.run_for(_COMMAND_CYCLES + w * h * elems)
        where = copying.order_indices(w, h, elems, order).reshape(w * h, elems)
        words = np.zeros(w * h * elems, np.uint32)
        for pe, index in zip(copying.region(self.ready, x, y, w, h), where, strict=True):
            words[index] = copying.read_words(pe, name, elems, bits)
        store_words(array, words)

    def stream_in(
        self, color: int, array: Any, roi: tuple[int, int, int, int], elems: int, order: int,
        steps: tuple[int, int] = (1, 1),
    ) -> None:  # fmt: skip
        """Send wavelets to each PE of a region."""
        self._settle()
        x, y, w, h = roi
        words = copying.words_of(array, w * h * elems)
        where = copying.order_indices(w, h, elems, order).reshape(w * h, elems)
        keys = [(pe.x, pe.y, color) for pe in copying.region(self.ready, x, y, w, h, steps)]
        for key, index in zip(keys, where, strict=True):
            self.ready.inject_stream(key, words[index].copy())
        self._wait_until_sent(keys)

    def _wait_until_sent(self, keys: list[tuple[int, int, int]]) -> None:
        stuck = self.ready.run_until_sent(keys)
        if stuck is not None:
            (x, y, color), credit = stuck
            raise self.ready.hang(
                f"the host streams color {color} to PE ({x}, {y}): {credit.outstanding} wavelets "
                f"are unread, the queues hold {credit.room}"
            )

    def stream_out(
        self, array: Any, color: int, roi: tuple[int, int, int, int], elems: int, order: int
    ) -> None:
        """Receive wavelets from each PE of a region."""
        self._settle()
        x, y, w, h = roi
        machine = self.ready
        keys = [(pe.x, pe.y, color) for pe in copying.region(machine, x, y, w, h)]
        for key in keys:
            if not machine.streams_to_host(key):
                fail("csl-host", f"PE {key[:2]} does not stream to the host on color {color}")
        missing = machine.run_until_received(keys, elems)
        if missing is not None:
            raise machine.hang(
                f"the host waits for {elems} wavelets of color {color} from PE {missing[:2]}, "
                f"which sent {machine.collected(missing)}"
            )
        where = copying.order_indices(w, h, elems, order).reshape(w * h, elems)
        words = np.zeros(w * h * elems, np.uint32)
        for key, index in zip(keys, where, strict=True):
            words[index] = machine.take(key, elems)
        store_words(array, words)

    def stream_name(self, port: str | int) -> str:
        """The name of a stream, which its number among all may stand for."""
        names = list(self.program.streams)
        if isinstance(port, str) and port in names:
            return port
        if not isinstance(port, str) and 0 <= port < len(names):
            return names[port]
        fail("csl-host", f"there is no stream {port!r}")

    def send(self, port: str | int, array: Any, wait: bool = True) -> None:
        """Send words into an input stream, and wait until the queues hold what is left of them."""
        name = self.stream_name(port)
        words = copying.words_of(array, np.asarray(array).size).copy()
        self.ready.enter(self.program.streams[name], words)
        if wait:
            self._wait_until_sent([self.program.streams[name]])

    def receive(self, port: str | int, array: Any, count: int) -> None:
        """Receive words from an output stream."""
        name = self.stream_name(port)
        key, machine = self.program.streams[name], self.ready
        if machine.run_until_received([key], count) is not None:
            raise machine.hang(
                f"the host waits for {count} wavelets of '{name}', {machine.collected(key)} arrived"
            )
        store_words(array, machine.take(key, count))

    def stop(self) -> None:
        """Finish queued operations and let the program come to rest."""
        self.drain()
        if self.machine is None:
            return
        self._settle()
        self.machine.run_to_rest()
        self.progress.close()
        finish_run(self.folder, self.machine, self.trace_folder)
        if self.core_path:
            save_dump(Path(self.core_path), self.machine)


def finish_run(folder: Path, machine: Any, trace_folder: bool = True) -> None:
    """What is left of a run: dump, remarks, prints, and the files that were asked for.

    Scripts move the folder ``simfab_traces``, which the vendor's simulator fills unless told not
    to; here it stays empty.
    """
    save_dump(folder / DUMP, machine)
    for (code, _), words in machine.remarks.items():
        print(Diagnostic("remark", code, words).render(), file=sys.stderr)
    options = machine.options
    if options.files:
        traces = Path("simfab_traces")
        if trace_folder and not traces.exists():
            traces.mkdir()
        with open("sim.log", "a", encoding="utf-8") as log:  # scripts move it, also when empty
            log.writelines(line + "\n" for line in machine.print_log)
    if machine.trace is not None and options.trace_file:
        machine.trace.save(options.trace_file, list(machine.pes))
    if options.fabric_file:
        with open(options.fabric_file, "a", encoding="utf-8") as out:
            out.write(json.dumps(fabric_facts(machine)) + "\n")
    if options.cycles_file:
        with open(options.cycles_file, "a", encoding="utf-8") as out:
            out.write(f"{machine.cycles} {machine.program.arch}\n")


def word_of(value: Any) -> int:
    """A launch argument as raw bits."""
    if isinstance(value, bool | int):
        return int(value) & 0xFFFFFFFF
    if isinstance(value, float):
        return int(np.float32(value).view(np.uint32))
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    return int(array.reshape(-1)[:1].view(f"u{array.dtype.itemsize}")[0])


def store_words(array: Any, words: Any) -> None:
    """Store raw words in the host's array."""
    flat = array.reshape(-1)
    if not np.shares_memory(flat, array):
        fail("csl-host", "the host array must be contiguous")
    if flat.dtype.itemsize == 4:
        flat.view(np.uint32)[: len(words)] = words
    elif flat.dtype.itemsize == 2:
        flat.view(np.uint16)[: len(words)] = words.astype(np.uint16)
    else:
        fail("csl-host", f"a host array of {flat.dtype} cannot receive 32-bit words")

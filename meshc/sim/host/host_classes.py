"""The classes host scripts use: SdkRuntime, data types and orders."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from meshc.sim.host import copying
from meshc.sim.host.debug import save_dump
from meshc.sim.host.host_operations import Runtime
from meshc.sim.host.platforms import SimfabConfig
from meshc.sim.host.transfer_arguments import Transfer, strided, transfer_of
from meshc.support.diagnostics import fail


class MemcpyDataType(IntEnum):
    """Width of the elements of a transfer."""

    MEMCPY_32BIT = 0
    MEMCPY_16BIT = 1


class MemcpyOrder(IntEnum):
    """Order of a host array: [h, w, l] by rows, or with the row index fastest."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class SdkCompileArtifacts:
    """The output directory of the compiler."""

    def __init__(self, artifacts_path: Any) -> None:
        self.artifacts_path = str(artifacts_path)

    def __str__(self) -> str:
        return self.artifacts_path


class Task:
    """A handle of an operation; all are finished when asked."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def done(self) -> bool:
        """Whether the operation is finished."""
        return not self._runtime.queue

    def wait(self) -> None:
        """Finish all operations queued so far."""
        self._runtime.drain()


class SdkRuntime:
    """Runs a compiled program. Unknown keyword arguments of other backends are ignored."""

    def __init__(self, artifacts: Any, platform: Any = None, **options: Any) -> None:
        self._runtime = Runtime(str(artifacts))
        config = getattr(platform, "config", None) or SimfabConfig()
        suppressed = options.get("suppress_simfab_trace", False) or config.suppress_trace
        self._runtime.trace_folder = not suppressed
        if config.dump_core:
            self._runtime.core_path = str(config.core_path or "out.core")
        self._base = self._runtime.program.offsets

    def load(self) -> None:
        """Load the program."""
        self._runtime.load()

    def run(self) -> None:
        """Start the machine."""
        _ = self._runtime.ready

    def stop(self) -> None:
        """Finish everything."""
        self._runtime.stop()

    def __enter__(self) -> SdkRuntime:
        self.load()
        self.run()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get_id(self, name: str) -> int | None:
        """The id of an exported symbol, None when there is none."""
        return self._runtime.get_id(name)

    def coord_logical_to_physical(self, coord: tuple[int, int]) -> tuple[int, int]:
        """Program coordinates to fabric coordinates."""
        return coord[0] + self._base[0], coord[1] + self._base[1]

    def memcpy_h2d(self, dest: int, src: Any, *args: Any, **options: Any) -> Task:
        """Copy or stream to the PEs of a rectangle; see :func:`transfer_of` for the arguments."""
        return self._send(dest, np.array(src), transfer_of("memcpy_h2d", args, options))

    def _send(self, dest: int, array: Any, how: Transfer) -> Task:
        runtime, region, elems = self._runtime, how.region, how.elem_per_pe
        if how.streaming:
            runtime.submit(
                lambda: runtime.stream_in(int(dest), array, region, elems, how.order, how.steps),
                bool(how.nonblock),
            )
        else:
            name = runtime.symbol_name(dest)
            runtime.submit(
                lambda: runtime.h2d(
                    name, array, region, elems, how.order, how.data_type, how.steps
                ),
                bool(how.nonblock),
            )
        return Task(runtime)

    def memcpy_h2d_stride(self, dest: int, src: Any, *args: Any, **options: Any) -> Task:
        """Copy or stream to PEs of a rectangle that are ``row_stride`` and ``col_stride`` apart."""
        return self._send(dest, np.array(src), strided(args, options))

    def memcpy_d2h(self, dest: Any, src: int, *args: Any, **options: Any) -> Task:
        """Copy or stream from the PEs of a rectangle; see :func:`transfer_of`."""
        how = transfer_of("memcpy_d2h", args, options)
        runtime, region, elems = self._runtime, how.region, how.elem_per_pe
        if how.streaming:
            runtime.submit(
                lambda: runtime.stream_out(dest, int(src), region, elems, how.order),
                bool(how.nonblock),
            )
        else:
            name = runtime.symbol_name(src)
            runtime.submit(
                lambda: runtime.d2h(dest, name, region, elems, how.order, how.data_type),
                bool(how.nonblock),
            )
        return Task(runtime)

    def memcpy_h2d_rowbcast(self, dest: int, src: Any, *args: Any, **options: Any) -> Task:
        """Copy A[h][l]: each row's data goes to all PEs of the row."""
        how = transfer_of("memcpy_h2d_rowbcast", args, options)
        words = copying.words_of(src, how.h * how.elem_per_pe)
        rows = words[copying.order_indices(1, how.h, how.elem_per_pe, how.order)]
        return self._broadcast(dest, np.repeat(rows, how.w, axis=1), how)

    def memcpy_h2d_colbcast(self, dest: int, src: Any, *args: Any, **options: Any) -> Task:
        """Copy A[w][l]: each column's data goes to all PEs of the column."""
        how = transfer_of("memcpy_h2d_colbcast", args, options)
        words = copying.words_of(src, how.w * how.elem_per_pe)
        columns = words[copying.order_indices(how.w, 1, how.elem_per_pe, how.order)]
        return self._broadcast(dest, np.repeat(columns, how.h, axis=0), how)

    def _broadcast(self, dest: int, grid: Any, how: Transfer) -> Task:
        by_rows = replace(how, order=int(MemcpyOrder.ROW_MAJOR), streaming=0)
        return self._send(dest, grid.reshape(-1), by_rows)

    def memcpy_launch(self, *_: Any, **__: Any) -> Task:
        """The launch of SDKs before 0.9. Raises MeshcError ``csl-host``."""
        fail(
            "csl-host",
            "memcpy_launch names a function by a number that compiled programs no longer have",
            help="use launch(NAME, ARGUMENTS...) with the name given to @export_name",
        )

    def launch(self, name: str, *args: Any, nonblock: bool = False) -> Task:
        """Start an exported function on all PEs."""
        runtime = self._runtime
        runtime.submit(lambda: runtime.launch(name, args), nonblock)
        return Task(runtime)

    def call(self, name: str, args: Any = (), nonblock: bool = False) -> Task:
        """The older form of launch."""
        return self.launch(name, *args, nonblock=nonblock)

    def send(
        self, stream: str | int, data: Any, count: int | None = None, nonblock: bool = False
    ) -> Task:
        """Send the first ``count`` elements of an array, or all, into an input stream of a layout,
        which is given by its name or number."""
        runtime, words = self._runtime, np.array(data).reshape(-1)
        if count is not None and not 0 <= count <= len(words):
            fail("csl-host", f"{count} elements are to be sent of an array of {len(words)}")
        words = words[:count]
        runtime.submit(lambda: runtime.send(stream, words, not nonblock), nonblock)
        return Task(runtime)

    def receive(self, stream: str | int, data: Any, count: int, nonblock: bool = False) -> Task:
        """Receive ``count`` elements from an output stream of a layout."""
        runtime = self._runtime
        runtime.submit(lambda: runtime.receive(stream, data, count), nonblock)
        return Task(runtime)

    def receive_tofile(self, *_: Any, **__: Any) -> Task:
        """Refused: how many words it takes is not documented. Raises MeshcError ``csl-host``."""
        fail(
            "csl-host",
            "the simulator has no receive_tofile: the call says not how many words to wait for",
            help="receive into an array and write that to a file",
        )

    def get_port_id(self, name: str) -> int | None:
        """The number of a stream, None when there is none."""
        names = list(self._runtime.program.streams)
        return names.index(name) if name in names else None

    def report_port_infos(self) -> None:
        """Print name, color and fabric coordinates of every stream."""
        for name, (x, y, color) in self._runtime.program.streams.items():
            print(f"{name}: color {color} at {self.coord_logical_to_physical((x, y))}")

    def dump_core(self, path: Any) -> None:
        """Write the memory of all PEs to a file, as ``debug_util`` reads it."""
        self._runtime.drain()
        save_dump(Path(path), self._runtime.ready)

    def dump_elf_core(self, *_: Any) -> None:
        """Refused. Raises MeshcError ``csl-host``."""
        fail(
            "csl-host",
            "dump_elf_core is not supported by the simulator: it has no ELF files whose layout a "
            "core file would follow",
            help="use dump_core, or read_symbol",
        )

    def is_task_done(self, task: Task) -> bool:
        """Whether an operation is finished."""
        return task.done()

    def task_wait(self, task: Task) -> None:
        """Wait for an operation."""
        task.wait()

    def read_symbol(self, x: int, y: int, name: str, dtype: Any = np.uint8) -> Any:
        """The whole of a symbol of one PE (program coordinates), after the run."""
        machine = self._runtime.ready
        pe = machine.pes[x, y]
        export = pe.program.exports.get(name)
        found = next((s for s in pe.program.symbols if s.name == name), None)
        if found is None or export is None:
            raise KeyError(name)
        return np.frombuffer(bytes(pe.mem[found.addr : found.addr + found.size]), dtype)

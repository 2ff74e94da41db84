"""Compiles and runs small CSL programs in-process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from meshc.sim.csl_compiler import compile_program
from meshc.sim.host.host_operations import OPTIONS, Runtime
from meshc.sim.machine.run_options import Options
from meshc.sim.sema.csl_types import F16
from meshc.sim.stored_programs import save_program

SINGLE = """
param memcpy_unused: i16 = 0;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  EXPORTS
}
"""

PE_HEAD = """
param memcpy_params: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
"""


class Run:
    """A loaded program."""

    def __init__(self, folder: Path, files: dict[str, str], arch: str, **options: Any) -> None:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        program = compile_program(
            str(folder / "layout.csl"), arch, options.get("params", {}), {}, (0, 0), (4, 1), (),
            options.get("half", F16),
        )  # fmt: skip
        save_program(program, folder)
        self.runtime = Runtime(str(folder))
        OPTIONS[0] = options.get("machine", Options(strict_queues=bool(options.get("strict"))))
        try:
            self.runtime.load()
        finally:
            OPTIONS[0] = Options()

    @property
    def machine(self) -> Any:
        return self.runtime.ready

    def launch(self, name: str, *args: Any) -> None:
        self.runtime.launch(name, args)
        self.runtime._settle()

    def write(self, name: str, values: Any, x: int = 0, y: int = 0) -> None:
        array = np.ascontiguousarray(values)
        bits = 1 if array.dtype.itemsize == 2 else 0
        words = array.view(np.uint16).astype(np.uint32) if bits else array
        self.runtime.h2d(name, words, (x, y, 1, 1), array.size, 0, bits)

    def read(self, name: str, count: int, dtype: Any, x: int = 0, y: int = 0) -> Any:
        kind = np.dtype(dtype)
        bits = 1 if kind.itemsize == 2 else 0
        out = np.zeros(count, np.uint32)
        self.runtime.d2h(out, name, (x, y, 1, 1), count, 0, bits)
        return (out.astype(np.uint16) if bits else out).view(kind)


def exports(**symbols: str) -> str:
    """``@export_name`` lines: name to type."""
    lines = [
        f'@export_name("{name}", {kind}{"" if kind.startswith("fn") else ", true"});'
        for name, kind in symbols.items()
    ]
    return "\n  ".join(lines)


def single(folder: Path, pe: str, arch: str = "wse2", **symbols: str) -> Run:
    """A program on one PE."""
    layout = SINGLE.replace("EXPORTS", exports(**symbols))
    return Run(folder, {"layout.csl": layout, "pe.csl": PE_HEAD + pe}, arch)


def function(folder: Path, body: str, result: str, count: int = 1, head: str = "") -> Any:
    """Runs ``body``, which stores to ``out``, and gives the contents of ``out``."""
    pe = f"""
{head}
var out = @zeros([{count}]{result});
var out_ptr: [*]{result} = &out;
fn run() void {{
{body}
  sys.unblock_cmd_stream();
}}
comptime {{ @export_symbol(out_ptr, "out"); @export_symbol(run); }}
"""
    program = single(folder, pe, out=f"[*]{result}", run="fn()void")
    program.launch("run")
    dtypes = {"u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "f16": "f2", "f32": "f4"}
    return program.read("out", count, dtypes[result])

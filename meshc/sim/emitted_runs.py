"""Emitted CSL programs compiled and run in this process, by their own host programs."""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshc.sim.cs_python import STAND_IN
from meshc.sim.csl_compiler import compile_program
from meshc.sim.cslc import half, size
from meshc.sim.host.host_operations import OPTIONS
from meshc.sim.machine.run_options import Options
from meshc.sim.stored_programs import save_program
from meshc.support.diagnostics import fail

_DEPTH = 50_000
"""The depth of calls: emitted layouts and programs may be nested deeply."""


def compile_folder(folder: Path, out: Path) -> None:
    """Compile the layout in ``folder`` as its command script says, into ``out``.

    Raises ``no-program`` where there is no such script, and what the compiler raises.
    """
    scripts = sorted(folder.glob("commands_*.sh"))
    lines = scripts[0].read_text(encoding="utf-8").splitlines() if scripts else []
    words = next((shlex.split(line) for line in lines if line.startswith("cslc ")), [])
    flags = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    if not {"--arch", "--fabric-dims", "--fabric-offsets"} <= flags.keys():
        fail("no-program", f"'{folder}' has no script that compiles a layout")
    dims, offsets = (size(flags[name]) for name in ("--fabric-dims", "--fabric-offsets"))
    with _deep():
        program = compile_program(
            str(folder / "layout.csl"),
            flags["--arch"],
            {},
            {},
            dims,
            offsets,
            [],
            half(flags.get("--fp16-format", "f16")),
        )
    (out / "bin").mkdir(parents=True, exist_ok=True)
    save_program(program, out)


def host_names(script: Path, options: Options) -> dict[str, Any]:
    """The names of the host program ``script``, whose ``SdkRuntime`` is the simulator's, with
    ``options``; its main function is not called."""
    OPTIONS[0] = options
    before = list(sys.path)
    sys.path.insert(0, str(STAND_IN))
    try:
        return runpy.run_path(str(script), run_name="host")
    finally:
        sys.path[:] = before
        for name in [n for n in sys.modules if n.partition(".")[0] == "cerebras"]:
            del sys.modules[name]


@contextmanager
def _deep() -> Iterator[None]:
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(max(depth, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(depth)

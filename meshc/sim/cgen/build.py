"""The machine and the programs in C, compiled with the system's compiler."""

from __future__ import annotations

import ctypes as ct
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from meshc.sim import config_space as space
from meshc.support.native import Toolchain, opened

RUNTIME = Path(__file__).parent / "runtime"
C = Toolchain(
    language="C",
    variable="CC",
    commands=("cc", "gcc", "clang"),
    flags=(
        "-O2",
        "-pthread",
        "-fPIC",
        "-fvisibility=hidden",
        "-ffp-contract=off",
        "-std=gnu11",
        "-w",
    ),
    libraries=("-lm",),
)
# Code of programs finds the functions of the machine, and those of C, when it is loaded: a linker
# that does not look for them takes a fifth of the time. Nothing unwinds its stack.
CODE = replace(
    C,
    flags=(*C.flags, "-fno-asynchronous-unwind-tables"),
    libraries=("-nostdlib", "-lgcc") if sys.platform == "linux" else C.libraries,
)
# For code that few PEs run: compiled in a third of the time. Vector operations, in which runs spend
# most of theirs, are the machine's, which is optimised.
QUICK = replace(CODE, flags=("-O0", *CODE.flags[1:]))


def _texts(pattern: str) -> dict[str, str]:
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(RUNTIME.glob(pattern))}


def _space() -> str:
    """The addresses of registers as a header, so that they are stated once."""
    numbers: dict[str, int] = {}
    for name, value in vars(space).items():
        if isinstance(value, int):
            numbers[f"SPACE_{name}" if name == "COLORS" else name] = value
        elif isinstance(value, range):
            numbers[name], numbers[f"{name}_END"] = value.start, value.stop
        elif isinstance(value, tuple):
            numbers |= {f"{name.removesuffix('S')}_{i}": base for i, base in enumerate(value)}
    return "enum {\n" + "".join(f"    {n} = {v:#x},\n" for n, v in numbers.items()) + "};\n"


@cache
def runtime_library() -> ct.CDLL:
    """The machine. Its symbols are seen by the libraries of programs. Raises BuildError."""
    headers = {**_texts("*.h"), "space.h": _space()}
    return opened(C.build(_texts("*.c"), headers, "machine"), ct.RTLD_GLOBAL)


@cache
def _header() -> dict[str, str]:
    return {"csl.h": (RUNTIME / "csl.h").read_text(encoding="utf-8")}


def program_library(text: str, toolchain: Toolchain = CODE) -> ct.CDLL:
    """The compiled functions of PE classes that share code. Raises BuildError."""
    runtime_library()
    return opened(toolchain.build({"code.c": text}, _header(), "code", parsed="csl.h"))

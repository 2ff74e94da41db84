"""Compiles C text with the system's compiler and keeps the result by content."""

from __future__ import annotations

import ctypes as ct
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from meshc.sim import config_space as space
from meshc.sim.cgen.errors import BuildError

RUNTIME = Path(__file__).parent / "runtime"
_FLAGS = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-std=gnu11", "-w")


@cache
def compiler() -> str | None:
    """The path of a C compiler: ``$CC``, else cc, gcc or clang; None when there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


@cache
def _identity(path: str) -> str:
    """What distinguishes compilers: libraries of one are not used after a change to another."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.split("\n", 1)[0] + " ".join(_FLAGS)


def cache_folder() -> Path:
    """The folder of compiled libraries: ``$XDG_CACHE_HOME/meshc`` or ``~/.cache/meshc``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "meshc"


def build(sources: dict[str, str], headers: dict[str, str], label: str) -> Path:
    """The shared library made of ``sources`` (name to text), compiled unless it is known.

    Raises BuildError.
    """
    path = compiler()
    if path is None:
        raise BuildError("no C compiler was found")
    digest = hashlib.sha256(_identity(path).encode())
    for name, text in sorted({**headers, **sources}.items()):
        digest.update(f"{name}\0{text}\0".encode())
    folder = cache_folder()
    library = folder / f"{label}-{digest.hexdigest()[:32]}.so"
    if not library.is_file():
        _compile(path, sources, headers, library)
    return library


def _compile(path: str, sources: dict[str, str], headers: dict[str, str], library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as scratch:
            for name, text in {**headers, **sources}.items():
                (Path(scratch) / name).write_text(text, encoding="utf-8")
            made = Path(scratch) / "made.so"
            command = [path, *_FLAGS, "-o", str(made), *sorted(sources), "-lm"]
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BuildError("\n".join(done.stderr.strip().splitlines()[:8]))
            os.replace(made, library)
    except OSError as problem:
        raise BuildError(str(problem)) from problem


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
    return ct.CDLL(str(build(_texts("*.c"), headers, "machine")), mode=ct.RTLD_GLOBAL)


@cache
def _header() -> dict[str, str]:
    return {"csl.h": (RUNTIME / "csl.h").read_text(encoding="utf-8")}


def program_library(text: str) -> ct.CDLL:
    """The compiled functions of PE classes that share code. Raises BuildError."""
    runtime_library()
    return ct.CDLL(str(build({"code.c": text}, _header(), "code")))

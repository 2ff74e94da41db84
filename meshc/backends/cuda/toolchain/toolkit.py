"""Compiles emitted kernels to cubins without a GPU, keeps them by content, and looks into them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from meshc.backends.cuda.library import headers
from meshc.backends.cuda.toolchain.compiler import FLAGS, HELP, Built, Compiler
from meshc.backends.cuda.toolchain.cubin import (
    CubinError,
    KernelResources,
    ReportError,
    kernel_resources,
)
from meshc.backends.cuda.toolchain.locations import find_program
from meshc.backends.cuda.toolchain.nvcc import find_nvcc
from meshc.backends.cuda.toolchain.nvrtc import find_nvrtc
from meshc.support.cache import keep, recall
from meshc.support.diagnostics import fail
from meshc.support.native import BuildError
from meshc.support.scratch import scratch_folder
from meshc.support.turns import Turns

CompilerName = Literal["nvcc", "nvrtc"]
_FINDERS: dict[CompilerName, Callable[[], Compiler | None]] = {
    "nvcc": find_nvcc,
    "nvrtc": find_nvrtc,
}
_VARIABLE = "MESHC_CUDA_COMPILER"
_MISSING = {
    None: "CUDA compiler",
    "nvcc": "nvcc (and the host compiler that it needs)",
    "nvrtc": "NVRTC (and the headers of CUDA)",
}
_BUILDS = Turns()
_SECTION_LINE = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_CODE_LINE = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)")


@dataclass(frozen=True)
class Cubin:
    """Machine code of some kernels for one architecture, and what each of them needs.

    ``kernels`` is sorted by name; ``warnings`` are lines of the compiler.
    """

    data: bytes = field(repr=False)
    arch: str
    compiler: str
    kernels: Mapping[str, KernelResources]
    warnings: tuple[str, ...]


def find_compiler(name: CompilerName | None = None) -> Compiler:
    """The compiler of that name or of ``$MESHC_CUDA_COMPILER``; without a name nvcc where it is
    installed, and NVRTC otherwise.

    Raises MeshcError ``cuda-toolkit`` when there is none.
    """
    name = name or _preferred()
    for known, find in _FINDERS.items():
        if name in (None, known) and (found := find()) is not None:
            return found
    fail(
        "cuda-toolkit",
        f"no {_MISSING[name]} was found",
        notes=(
            "looked at $NVCC, $PATH, $CUDA_HOME, $CUDA_PATH, installed packages, /usr/local/cuda",
        ),
        help=HELP,
    )


def _preferred() -> CompilerName | None:
    given = os.environ.get(_VARIABLE)
    if given:
        for name in _FINDERS:
            if given == name:
                return name
        fail("cuda-toolkit", f"${_VARIABLE} names no compiler: {given}", help="'nvcc' or 'nvrtc'")
    return None


def compile_cubin(text: str, arch: str = "sm_90a", compiler: CompilerName | None = None) -> Cubin:
    """The cubin of one ``.cu`` text that includes the library's ``mc.cuh``, compiled unless known.

    Raises BuildError with the compiler's first lines when it refuses the text, and MeshcError
    ``cuda-toolkit`` when there is no compiler that knows ``arch``.
    """
    used = find_compiler(compiler)
    parts = headers()
    digest = hashlib.sha256("\0".join((used.identity, arch, *FLAGS)).encode())
    for name, part in sorted({**parts, "kernels.cu": text}.items()):
        digest.update(f"\0{name}\0{part}".encode())
    key = f"cubin-{digest.hexdigest()[:32]}"
    if (known := _recall(key)) is not None:
        return _cubin(known, arch, used.name)
    try:
        with _BUILDS.beside_others():
            built = used.build(text, parts, arch)
        try:
            made = _cubin(built, arch, used.name)
        except ReportError:
            # NVRTC 13.0 loses the assembler's report of one of several texts that threads compile
            # at once.
            with _BUILDS.alone():
                built = used.build(text, parts, arch)
            made = _cubin(built, arch, used.name)
    except CubinError as problem:
        raise BuildError(f"{used.name}: {problem}") from problem
    _keep(key, built)
    return made


def disassemble(cubin: Cubin) -> str:
    """The machine code as text. Raises BuildError, and MeshcError ``cuda-toolkit`` when there is
    no nvdisasm."""
    program = find_program("nvdisasm")
    if program is None:
        fail(
            "cuda-toolkit",
            "no nvdisasm was found",
            help="`pip install nvidia-cuda-nvdisasm` brings it; only tests need it",
        )
    try:
        with scratch_folder() as scratch:
            path = scratch / "kernels.cubin"
            path.write_bytes(cubin.data)
            done = subprocess.run(
                [program, "-c", str(path)],
                capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
    except OSError as problem:
        raise BuildError(str(problem)) from problem
    if done.returncode:
        raise BuildError("\n".join(done.stderr.strip().splitlines()[:8]))
    return done.stdout


def opcodes(assembly: str) -> dict[str, Counter[str]]:
    """How often each kernel of a disassembly holds each opcode, such as ``UBLKCP.S.G``."""
    found: dict[str, Counter[str]] = {}
    count: Counter[str] = Counter()
    for line in assembly.splitlines():
        if section := _SECTION_LINE.match(line):
            count = found.setdefault(section[1], Counter())
        elif code := _CODE_LINE.match(line):
            count[code[1]] += 1
    return found


def _cubin(built: Built, arch: str, compiler: str) -> Cubin:
    warnings = tuple(line for line in built.report.splitlines() if "warning" in line.lower())
    kernels = kernel_resources(built.data, built.report)
    return Cubin(built.data, arch, compiler, kernels, warnings)


def _recall(key: str) -> Built | None:
    """What was kept for ``key``, if it is sound."""
    path = recall(key)
    if path is None:
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return Built(base64.b64decode(found["cubin"]), found["report"])


def _keep(key: str, built: Built) -> None:
    """Keep a cubin and its report for later. A cache that cannot be written costs time and nothing
    else."""
    data = {"cubin": base64.b64encode(built.data).decode("ascii"), "report": built.report}
    with contextlib.suppress(OSError):
        keep(key, json.dumps(data).encode(), ".json")

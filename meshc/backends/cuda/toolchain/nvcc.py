"""Compiles with nvcc, the compiler of an installed CUDA toolkit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshc.backends.cuda.toolchain.compiler import FLAGS, HELP, Built, fail_too_old, refuse
from meshc.backends.cuda.toolchain.locations import find_program
from meshc.support.diagnostics import fail
from meshc.support.native import BuildError
from meshc.support.scratch import scratch_folder

_SOURCE, _CUBIN = "kernels.cu", "kernels.cubin"
_RELEASE = re.compile(r"release (\d+\.\d+)")


@dataclass(frozen=True)
class Nvcc:
    """The program ``path``."""

    path: str

    @property
    def name(self) -> str:
        """``nvcc 13.0``"""
        release = _RELEASE.search(self.identity)
        return f"nvcc {release[1]}" if release else "nvcc"

    @property
    def identity(self) -> str:
        """All that ``nvcc --version`` says: the build stands in its last line."""
        return _version(self.path)

    def build(self, text: str, headers: Mapping[str, str], arch: str) -> Built:
        """Compile ``text``. Raises BuildError, and MeshcError for a toolkit that is too old."""
        try:
            with scratch_folder() as scratch:
                for name, part in {**headers, _SOURCE: text}.items():
                    (scratch / name).write_text(part, encoding="utf-8")
                report = self._compile(scratch, arch)
                return Built((scratch / _CUBIN).read_bytes(), report)
        except OSError as problem:
            raise BuildError(str(problem)) from problem

    def _compile(self, scratch: Path, arch: str) -> str:
        command = [self.path, "-cubin", f"-arch={arch}", *FLAGS, "-Xptxas", "-v"]
        done = subprocess.run(
            [*command, "-o", _CUBIN, _SOURCE],
            cwd=scratch, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        log = done.stdout + done.stderr
        if done.returncode and "Unsupported gpu architecture" in log:
            fail_too_old(self.name, arch)
        if done.returncode:
            refuse(log)
        return log


def find_nvcc() -> Nvcc | None:
    """nvcc by ``$NVCC``, on ``$PATH`` or in a toolkit's folder; None when there is none, or when
    the host compiler is missing that nvcc preprocesses with. Raises MeshcError for a wrong
    ``$NVCC``."""
    wanted = os.environ.get("NVCC")
    if wanted and shutil.which(wanted) is None:
        fail("cuda-toolkit", f"$NVCC names no program: {wanted}", help=HELP)
    path = shutil.which(wanted) if wanted else find_program("nvcc")
    host = shutil.which(os.environ.get("NVCC_CCBIN") or "gcc")
    return Nvcc(path) if path and host else None


@cache
def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError as problem:
        raise BuildError(str(problem)) from problem
    return done.stdout

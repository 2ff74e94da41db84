"""What a CUDA compiler is to meshc: words that identify it, and text to cubin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

from meshc.support.diagnostics import fail
from meshc.support.native import BuildError

# Kernels write every fused multiply-add as such, so that a CPU and a GPU round alike.
FLAGS = ("-std=c++17", "-fmad=false")
_FIRST_LINES, _LINE_LENGTH = 8, 160
HELP = "`pip install meshc[cuda]` brings NVIDIA's run-time compiler; no GPU or driver is needed"


@dataclass(frozen=True)
class Built:
    """A cubin, and what the compiler and its assembler wrote about it."""

    data: bytes
    report: str


class Compiler(Protocol):
    """A program or library that turns CUDA C++ into cubins."""

    @property
    def name(self) -> str:
        """What the compiler is, in words: ``nvcc 13.0``."""

    @property
    def identity(self) -> str:
        """What tells it from every other compiler: cubins of one are not used for another."""

    def build(self, text: str, headers: Mapping[str, str], arch: str) -> Built:
        """Compile ``text``. Raises BuildError."""


def refuse(log: str) -> NoReturn:
    """Raise BuildError with the first lines of what a compiler wrote."""
    lines = [
        line[:_LINE_LENGTH]
        for line in log.splitlines()
        if line.strip() and "ptxas info" not in line
    ]
    raise BuildError("\n".join(lines[:_FIRST_LINES]) or "the CUDA compiler gave no reason")


def fail_too_old(name: str, arch: str) -> NoReturn:
    """Raise MeshcError: this compiler does not know ``arch``."""
    fail(
        "cuda-toolkit",
        f"{name} does not know {arch}: kernels of thread-block clusters need CUDA 12.0 or newer",
        help=HELP,
    )

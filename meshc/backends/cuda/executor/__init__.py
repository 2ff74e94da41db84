"""Runs emitted kernels on a CPU: the library's primitives with a meaning of its own."""

from meshc.backends.cuda.executor.cpu_kernels import (
    CXX,
    FIRST,
    QUICK,
    SCHEDULES,
    WATCHED,
    Counts,
    ExecutorError,
    Grid,
    Library,
    Mode,
    headers,
    modes,
)
from meshc.backends.cuda.executor.guarded_memory import Argument
from meshc.backends.cuda.executor.symmetric import SymmetricMemory, symmetric_memory

__all__ = [
    "CXX",
    "FIRST",
    "QUICK",
    "SCHEDULES",
    "WATCHED",
    "Argument",
    "Counts",
    "ExecutorError",
    "Grid",
    "Library",
    "Mode",
    "SymmetricMemory",
    "headers",
    "modes",
    "symmetric_memory",
]

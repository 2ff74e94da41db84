"""Runs emitted kernels on a CPU: one fiber per thread, whole clusters alive at once.

``mc_executor.h`` gives the primitives of the library (``library/mc.cuh``) another meaning,
written on its own, so the text of a kernel is judged as it is. What hardware leaves open is chosen
by a schedule and a copy mode; results must not depend on either.
"""

from __future__ import annotations

import ctypes as ct
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from meshc.backends.cuda import library
from meshc.backends.cuda.executor.guarded_memory import Argument, memory_of, placed
from meshc.backends.cuda.executor.launch_memory import launch_memory
from meshc.backends.cuda.executor.symmetric import SymmetricMemory
from meshc.backends.cuda.program import Kernel
from meshc.support.native import Common, Toolchain, opened

HERE = Path(__file__).parent
SCHEDULES = ("forward", "reverse", "shuffled", "random", "starve_warp", "starve_block")
# Reading the system's libraries is most of linking. So kernels find their functions when they are
# loaded, in what ``_system`` loaded before them.
_FOUND_LATER = sys.platform == "linux"
CXX = Toolchain(
    language="C++",
    variable="CXX",
    commands=("c++", "g++", "clang++"),
    flags=(
        "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-DMC_EXECUTOR",
        "-ffp-contract=off", "-fno-strict-aliasing", "-w",
        *(("-march=x86-64-v3",) if platform.machine() == "x86_64" else ()),
        *(("-nodefaultlibs",) if _FOUND_LATER else ()),
    ),
    libraries=("-lgcc",) if _FOUND_LATER else (),
)  # fmt: skip
_SYSTEM = replace(
    CXX,
    flags=tuple(flag for flag in CXX.flags if flag != "-nodefaultlibs"),
    libraries=("-Wl,--no-as-needed", "-lm"),
)
# For kernels that run for a moment: compiled in less than half of the time. Nothing here throws.
QUICK = replace(
    CXX,
    flags=(
        *("-Og" if flag == "-O2" else flag for flag in CXX.flags),
        "-fno-exceptions", "-fno-asynchronous-unwind-tables",
    ),
)  # fmt: skip
# Finds races in shared memory as well (mc_races.h), many times slower. The compiler marks each
# access of a kernel; the sanitizer's own library is not linked. An index outside of an array of a
# thread ends the process. GCC only.
WATCHED = replace(
    QUICK,
    flags=(
        # With -Og accesses are missed that return a value into memory.
        *("-O1" if flag == "-Og" else flag for flag in QUICK.flags),
        "-DMC_RACES", "-fsanitize=thread", "-fsanitize=bounds-strict",
        "-fsanitize-undefined-trap-on-error", *(() if _FOUND_LATER else ("-nodefaultlibs",)),
    ),
    libraries=("-lgcc",) if _FOUND_LATER else ("-lstdc++", "-lm", "-lgcc_s", "-lc"),
)  # fmt: skip
# The executor's own functions are compiled once, so well, also for kernels that are not.
_OWN = {QUICK: CXX, WATCHED: replace(CXX, flags=(*CXX.flags, "-DMC_RACES"))}
_FUNCTIONS = "mc_executor.cc"
# The header of the library with which kernels begin, and the one with which that begins.
_LIBRARY, _EXECUTOR = "mc.cuh", "mc_executor.h"
_MESSAGE_BYTES = 512


class ExecutorError(Exception):
    """A kernel did what no kernel may: a deadlock, an access outside of shared memory, ..."""


@dataclass(frozen=True)
class Mode:
    """What a run varies: the order of threads, and when copies happen."""

    schedule: str = "forward"
    late_copies: bool = False
    seed: int = 1


FIRST = Mode()


def modes(seeds: Sequence[int] = (1,)) -> Iterator[Mode]:
    """Every schedule with early and late copies, for each seed."""
    for seed in seeds:
        for late in (False, True):
            for schedule in SCHEDULES:
                yield Mode(schedule, late, seed)


@dataclass(frozen=True)
class Grid:
    """The shape of a launch; ``whole_grid`` keeps all blocks alive, as grid barriers need, of
    which there are at least ``least_blocks``."""

    blocks: int
    threads: int
    cluster: int
    shared_bytes: int
    whole_grid: bool = False
    least_blocks: int = 1

    @classmethod
    def of(cls, kernel: Kernel) -> Grid:
        """The grid of a program's kernel."""
        sizes = kernel.blocks, kernel.threads, kernel.cluster, kernel.shared_bytes
        return cls(*sizes, kernel.whole_grid, kernel.least_blocks)


@dataclass(frozen=True)
class Counts:
    """What a run moved: bytes of counted copies, bytes between blocks of a cluster, cycles and
    number of quarter-warp 16-byte loads from shared memory (with ``lint``), switches of fibers,
    blocks that let the next grid start before they ended, bytes brought towards L2."""

    copied_bytes: int
    dsmem_bytes: int
    shared_loads: int
    shared_load_cycles: int
    switches: int
    early_blocks: int
    prefetched_bytes: int


class _Launch(ct.Structure):
    _fields_ = [
        (name, ct.c_uint32)
        for name in (
            "blocks", "threads", "cluster", "shared_bytes",
            "schedule", "late_copies", "whole_grid", "lint", "seed",
        )
    ]  # fmt: skip


class _Array(ct.Structure):
    _fields_ = [(name, ct.c_uint64) for name in ("at", "bytes", "written")]


class _Given(ct.Structure):
    _fields_ = [(name, ct.c_uint64) for name in ("at", "begin", "end", "bytes", "argument")]


class _Symmetric(ct.Structure):
    _fields_ = [(name, ct.c_uint64) for name in ("multicast", "bytes", "held", "parts")]


class _Gpus(ct.Structure):
    _fields_ = [(name, ct.c_uint64) for name in ("memories", "memory_count", "count", "link_bytes")]


class _Counts(ct.Structure):
    _fields_ = [(name, ct.c_uint64) for name in Counts.__dataclass_fields__]


@cache
def headers() -> dict[str, str]:
    """The headers of the library (``.cuh``) and of the executor (``.h``), by file name."""
    return library.headers() | _texts("*.h")


@cache
def _functions() -> Common:
    """The executor's functions, which are linked to every kernel."""
    texts = _texts("*.h") | _texts("*.cc")
    return Common(_FUNCTIONS, texts.pop(_FUNCTIONS), texts)


def _texts(pattern: str) -> dict[str, str]:
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(HERE.glob(pattern))}


@cache
def _system() -> ct.CDLL | None:
    """The system's libraries that kernels need, for all to see; None where each has its own."""
    if not _FOUND_LATER:
        return None
    made = _SYSTEM.build({"system.cc": ""}, {}, "cuda-executor-system")
    return opened(made, ct.RTLD_GLOBAL)


class Library:
    """The kernels of one file, with other ``parts`` of the headers if given. Raises BuildError."""

    def __init__(
        self, text: str, parts: Mapping[str, str] | None = None, toolchain: Toolchain = CXX
    ) -> None:
        unit = {"kernels.cc": text}
        own = headers() if parts is None else parts
        # Another library is used once, but begins with the same header of the executor.
        parsed = _LIBRARY if own == headers() else _EXECUTOR
        common = replace(_functions(), toolchain=_OWN.get(toolchain))
        built = toolchain.build(unit, own, "cuda-executor", common, parsed)
        _system()
        self._library = opened(built)
        self._library.mc_memory_bytes.restype = ct.c_size_t
        self._library.mc_give_memory.argtypes = [ct.c_void_p, ct.c_size_t]
        self.watched = hasattr(self._library, "mc_watch_arrays")

    def run(
        self,
        kernel: str,
        grid: Grid,
        arguments: Sequence[Argument],
        mode: Mode = FIRST,
        lint: bool = False,
        written: Collection[int] | None = None,
    ) -> Counts:
        """Run ``kernel``: arrays are passed by address, NumPy scalars by value. Arrays that do not
        lie in guarded memory are copied there and back.

        With ``written``, the arguments that the grid in front writes, a WATCHED library also holds
        that these are used, and others written, only behind the wait for that grid.

        Raises ExecutorError, and TypeError for an array that is not contiguous.
        """
        with placed(arguments) as given:
            if written is not None:
                arrays = _arrays(given, written)
                self._library.mc_watch_arrays(arrays, len(arrays))
            try:
                return self._launch(kernel, grid, given, mode, lint)
            finally:
                if written is not None:
                    self._library.mc_watch_arrays(None, 0)

    def run_on_gpus(
        self,
        kernel: str,
        grid: Grid,
        arguments: Sequence[Sequence[Argument]],
        memories: Sequence[SymmetricMemory],
        mode: Mode = FIRST,
    ) -> int:
        """Run ``kernel`` as one ``grid`` on each of several GPUs at once; ``arguments`` by GPU.

        ``memories`` are the allocations that these reach of each other. The result is the number
        of bytes that threads loaded from other GPUs and stored to them, what goes by a multicast
        address counted once.

        Raises ExecutorError, and TypeError for an array that is not contiguous.
        """
        parts = [(ct.c_uint64 * len(m.parts))(*(p.ctypes.data for p in m.parts)) for m in memories]
        given = (_Symmetric * len(memories))(
            *(
                _Symmetric(m.multicast, m.parts[0].nbytes, m.held, ct.addressof(at))
                for m, at in zip(memories, parts, strict=True)
            )
        )
        gpus = _Gpus(ct.addressof(given), len(memories), len(arguments), 0)
        self._library.mc_give_gpus(ct.byref(gpus))
        try:
            with placed([one for each in arguments for one in each]) as all_given:
                self._launch(kernel, grid, all_given, mode, False, len(arguments))
        finally:
            self._library.mc_give_gpus(None)
        return int(gpus.link_bytes)

    def _launch(
        self,
        kernel: str,
        grid: Grid,
        arguments: Sequence[Argument],
        mode: Mode,
        lint: bool,
        gpus: int = 1,
    ) -> Counts:
        launch = _Launch(
            grid.blocks, grid.threads, grid.cluster, grid.shared_bytes,
            SCHEDULES.index(mode.schedule), mode.late_copies, grid.whole_grid, lint, mode.seed,
        )  # fmt: skip
        held = [_cell(argument) for argument in arguments]
        addresses = (ct.c_void_p * len(held))(*(ct.addressof(cell) for cell in held))
        counts, message = _Counts(), ct.create_string_buffer(_MESSAGE_BYTES)
        given = _given(arguments, gpus)
        needed = self._library.mc_memory_bytes(ct.byref(launch))
        self._library.mc_give_memory(*launch_memory(needed))
        self._library.mc_give_arrays(given, len(given))
        entry = getattr(self._library, f"run_{kernel}")
        failed = entry(ct.byref(launch), addresses, ct.byref(counts), message, _MESSAGE_BYTES)
        self._library.mc_give_arrays(None, 0)
        if failed:
            raise ExecutorError(f"{kernel}: {message.value.decode(errors='replace')}")
        for n, argument in enumerate(arguments):
            memory = memory_of(argument) if isinstance(argument, np.ndarray) else None
            if memory is not None and (where := memory.written):
                place = n % (len(arguments) // gpus)
                raise ExecutorError(f"{kernel}: something was written {where} argument {place}")
        return Counts(*(getattr(counts, name) for name in Counts.__dataclass_fields__))


def _given(arguments: Sequence[Argument], gpus: int) -> ct.Array[_Given]:
    """Where the arrays of a launch lie, in the order of their memory, and which arguments of a GPU
    they are: of those in one memory the first argument comes last."""
    found = []
    for n, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            memory, place = memory_of(argument), n % (len(arguments) // gpus)
            at, size = argument.ctypes.data, argument.nbytes
            around = (at, at + size) if memory is None else (memory.begin, memory.end)
            found.append(_Given(at, *around, size, place))
    found.sort(key=lambda one: (one.begin, -one.argument))
    return (_Given * len(found))(*found)


def _arrays(arguments: Sequence[Argument], written: Collection[int]) -> ct.Array[_Array]:
    """Where the arrays of a launch lie, and whether the grid in front writes them."""
    found = [
        _Array(argument.ctypes.data, argument.nbytes, n in written)
        for n, argument in enumerate(arguments)
        if isinstance(argument, np.ndarray)
    ]
    return (_Array * len(found))(*found)


def _cell(argument: Argument) -> ct.Array[ct.c_char]:
    """Memory that holds an argument as the kernel receives it."""
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise TypeError("an array that is not contiguous cannot be given to a kernel")
        argument = np.uint64(argument.ctypes.data)
    data = argument.tobytes()
    return ct.create_string_buffer(data, len(data))

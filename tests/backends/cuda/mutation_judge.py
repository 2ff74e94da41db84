"""Judges one mutation after the other, in a process of its own: lines of JSON in and out.

A mutation is killed when the compiler refuses it or when, for a shape that exercises its place, any
schedule with early or late copies ends in an ExecutorError, or gives other bits or counts than
the kernel that is not mutated. A mutation may also hang or crash the process; whoever started it
takes both for a kill.
"""

import ctypes
import dataclasses
import json
import mmap
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import test_cuda_attention_tile as tile
from mutations import Mutation, mutations
from test_cuda_head import inputs

from meshc.analysis.cuda import blocks
from meshc.backends.cuda.executor import (
    QUICK,
    WATCHED,
    Counts,
    ExecutorError,
    Grid,
    Library,
    Mode,
    headers,
    modes,
)
from meshc.backends.cuda.kernels.embed import kernel as embed
from meshc.backends.cuda.kernels.head import kernel as head
from meshc.backends.cuda.kernels.head.kernel import Head
from meshc.backends.cuda.packing import in_fragments
from meshc.devices import device
from meshc.support.native import BuildError, Toolchain

H200 = device("h200")


MOST_SECONDS = 10
LIBRARY = ("mc_attention.cuh",)
DRIVERS = ("attention_tile.cu",)  # calls the library; not emitted
# One of each kind, which find most; behind a run that looks for races, all others.
FIRST = [Mode("forward", True), Mode("random"), Mode("starve_warp", True, 8), Mode("reverse")]
REST = [m for m in modes((3,)) if m not in FIRST]


@dataclass(frozen=True)
class Rig:
    """A kernel of one shape with inputs. ``arguments`` makes new ones; ``outputs`` are those that
    change, ``written`` those that the grid in front writes, of an emitted kernel."""

    file: str
    kernel: str
    text: str
    grid: Grid
    arguments: Callable[[], list[np.ndarray | np.generic]]
    outputs: Sequence[int]
    written: Sequence[int] | None = None


def _head(one: Head, cores: int) -> Rig:
    chosen, given = head.plan(one, H200.with_numbers(cores=cores)), inputs(one)
    matrix = np.ascontiguousarray(in_fragments(given["matrix"]))
    many = [given["input"], np.array([2], np.int32), given["gain"]]
    read = many if one.normed else [given["input"][0]]

    def arguments() -> list[np.ndarray | np.generic]:
        return [*read, matrix, np.full((1, one.rows), np.nan, np.float32)]

    return Rig(
        "head.cu",
        "head",
        head.text(chosen, "head"),
        Grid(chosen.blocks, blocks.THREADS, 1, chosen.arena.bytes),
        arguments,
        (len(read) + 1,),
        (0,),
    )


def _embed() -> Rig:
    rows_of = np.random.default_rng(0).integers(0, 30000, (48, 2056)).astype(np.uint16)
    table = np.ascontiguousarray(in_fragments(rows_of))
    tokens = np.array([7, 0, 47, 48, -1], np.int32)

    def arguments() -> list[np.ndarray | np.generic]:
        residual, sums = np.full((2, 5, 2056), np.nan, np.float32)
        return [tokens, table, residual, sums]

    text = embed.text("embed", 2056, 48, "f16")
    return Rig("embed.cu", "embed", text, Grid(5, 256, 1, 0), arguments, (2, 3), (0,))


def _tiles(shape: tile.Shape, case: tile.Case) -> Rig:
    given = tile.make_inputs(shape, case)[1]

    def arguments() -> list[np.ndarray | np.generic]:
        results = [np.full((shape.queries, shape.value_lanes), np.nan, np.float32)]
        results += [np.full(shape.queries, np.nan, np.float32) for _ in range(2)]
        return [*tile.arguments(shape, case, given), *results]

    grid = Grid(1, tile.THREADS, 1, shape.shared_bytes)
    return Rig("attention_tile.cu", tile.KERNEL, shape.text, grid, arguments, (9, 10, 11))


RIGS = {
    "logits": lambda: _head(Head(184, 1001, "bf16", True, 1e-5, 0.5), 3),
    "logits, wide rows": lambda: _head(Head(5000, 200, "f16", False), 2),
    "embed": _embed,
    "tiles": lambda: _tiles(tile.Shape("bf16", 12, 96, 96, 64), tile.Case(70, 4, 3, 9)),
    "tiles of 16": lambda: _tiles(tile.Shape("bf16", 9, 64, 64, 16), tile.Case(40, 2)),
    "tiles of 48": lambda: _tiles(tile.Shape("f16", 16, 64, 64, 48), tile.Case(60, 1)),
    "tiles of 256": lambda: _tiles(tile.Shape("f16", 5, 32, 32, 256), tile.Case(300, 1)),
    "tiles, three groups": lambda: _tiles(
        tile.Shape("f16", 40, 64, 64, 32), tile.Case(40, 16, 3, 30)
    ),
    "tiles of latents": lambda: _tiles(tile.Shape("f16", 20, 288, 256, 16), tile.Case(20, 5, 4)),
}
OF_LIBRARY = {"mc_attention.cuh": [name for name in RIGS if name.startswith("tiles")]}


@cache
def rig(name: str) -> Rig:
    """The rig of this name."""
    return RIGS[name]()


def emitted_files() -> set[str]:
    """The files of kernels that are emitted."""
    return {rig(name).file for name in RIGS} - set(DRIVERS)


@cache
def every() -> list[Mutation]:
    """All mutations of the library and of the kernels."""
    texts = [(name, headers()[name]) for name in LIBRARY]
    texts += [(rig(n).file, rig(n).text) for n in RIGS if rig(n).file not in DRIVERS]
    found: dict[str, Mutation] = {}
    for file, text in texts:
        for mutation in mutations(file, text):
            found.setdefault(mutation.name, mutation)
    return list(found.values())


def _guarded(argument: np.ndarray | np.generic) -> np.ndarray | np.generic:
    """An array whose end is followed by memory that no thread may read or write."""
    if not isinstance(argument, np.ndarray):
        return argument
    page = mmap.PAGESIZE
    room = -(-argument.nbytes // page) * page
    memory = mmap.mmap(-1, room + page)
    # Copies and wide loads need addresses of 16 bytes, integers are read one at a time.
    unit = 4 if argument.dtype == np.int32 else 16
    start = room - -(-argument.nbytes // unit) * unit
    found = np.frombuffer(memory, argument.dtype, argument.size, start).reshape(argument.shape)
    found[...] = argument
    end = found.ctypes.data - start + room
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0):
        raise OSError("mprotect")
    return found


def _run(one: Rig, library: Library, mode: Mode) -> tuple[list[bytes], Counts]:
    arguments = [_guarded(argument) for argument in one.arguments()]
    # An endless loop of one thread ends the process; time of the process, not of the day.
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    written = one.written if library.watched else None
    counts = library.run(one.kernel, one.grid, arguments, mode, lint=True, written=written)
    signal.setitimer(signal.ITIMER_PROF, 0)
    outputs = [np.asarray(arguments[n]).tobytes() for n in one.outputs]
    return outputs, dataclasses.replace(counts, switches=0)


@cache
def _right(name: str) -> tuple[list[bytes], Counts]:
    return _run(rig(name), Library(rig(name).text, toolchain=QUICK), Mode())


def _kind(problem: ExecutorError) -> str:
    words = {"deadlock": "deadlock", "race": "race", "copy_fence": "race", "init": "race"}
    return next((kind for word, kind in words.items() if word in str(problem)), "fault")


def _mutated(mutation: Mutation, one: Rig) -> tuple[str, dict[str, str]] | None:
    """Kernel and runtime with the edit; None when it is in neither."""
    parts = dict(headers())
    if mutation.file in LIBRARY:
        parts[mutation.file] = mutation.apply(parts[mutation.file]) or ""
        return one.text, parts
    text = mutation.apply(one.text) if mutation.file == one.file else None
    return (text, parts) if text else None


def _try(mutation: Mutation, name: str, toolchain: Toolchain, runs: list[Mode]) -> dict[str, str]:
    """How this rig kills the mutation; empty when it does not."""
    one = rig(name)
    edited = _mutated(mutation, one)
    if not edited:
        return {}
    outputs, counts = _right(name)
    mode = None
    try:
        library = Library(*edited, toolchain)
        for mode in runs:
            seen, counted = _run(one, library, mode)
            if seen != outputs or counted != counts:
                by = "numbers" if seen != outputs else "counts"
                return {"by": by, "rig": name, "how": f"{mode} {counted}"}
    except BuildError as problem:
        return {"by": "compiler", "rig": name, "how": str(problem)}
    except ExecutorError as problem:
        return {"by": _kind(problem), "rig": name, "how": f"{mode}: {problem}"}
    return {}


def judge(mutation: Mutation, names: Sequence[str] | None = None) -> dict[str, str]:
    """By what the mutation is killed, in which rig and how; empty when it survives. Rigs other than
    those of ``names`` are left out, if given."""
    of_file = [name for name in RIGS if rig(name).file == mutation.file]
    for toolchain, runs in ((QUICK, FIRST), (WATCHED, [Mode()]), (QUICK, REST)):
        for name in names or OF_LIBRARY.get(mutation.file, of_file):
            found = _try(mutation, name, toolchain, runs)
            if found:
                return found
    return {}


def main() -> None:
    """Judge what comes on standard input until it ends."""
    for line in sys.stdin:
        words = json.loads(line)
        names = words.pop("names", None)
        print(json.dumps(judge(Mutation(**words), names)), flush=True)


if __name__ == "__main__":
    main()

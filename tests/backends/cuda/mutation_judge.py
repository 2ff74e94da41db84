"""Judges one mutation after the other, in a process of its own: lines of JSON in, lines of JSON out.

A mutation is killed when the compiler refuses it or when, for a shape that exercises its place, any
schedule with early or late copies ends in an ExecutorError, or gives other bits or other counts than
the kernel that is not mutated. A mutation may also hang or crash the process; whoever started it
takes both for a kill.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from decode_reference import make_case
from mutations import Mutation, mutations
from test_cuda_rows import inputs

from meshc.backends.cuda.executor import (
    CXX,
    Counts,
    ExecutorError,
    Grid,
    Library,
    Mode,
    headers,
    modes,
)
from meshc.backends.cuda.kernels import attention, rows
from meshc.backends.cuda.kernels.attention import Attention, pack_output, pack_projections
from meshc.backends.cuda.kernels.rows import RowsProduct
from meshc.backends.cuda.kernels.tiles import THREADS
from meshc.support.native import BuildError, Toolchain, cache_folder

LIBRARY = ("mc_collectives.cuh", "mc_rows.cuh")


@cache
def fast() -> Toolchain:
    """The executor's compiler, optimising less, with the standard headers compiled once."""
    flags = tuple("-O1" if flag == "-O2" else flag for flag in CXX.flags)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    standard = folder / f"standard-{os.getpid()}.h"
    included = re.findall(r"^#include <(?!ucontext).*$", headers()["mc_executor.h"], re.MULTILINE)
    standard.write_text("\n".join(included))
    made = standard.with_suffix(".h.gch")
    kept = [flag for flag in flags if flag != "-shared"]
    command = [str(CXX.path()), *kept, "-x", "c++-header", str(standard), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return dataclasses.replace(CXX, flags=(*flags, "-include", str(standard)))


# First one of each kind, which find most; then others.
FIRST = [Mode("forward", True), Mode("random"), Mode("starve_warp", True, 8), Mode("reverse")]
REST = [m for m in modes((1, 3, 8, 12)) if m not in FIRST]


@dataclass(frozen=True)
class Rig:
    """A kernel of one shape with inputs. ``arguments`` makes new ones, ``outputs`` the changed."""

    file: str
    kernel: str
    text: str
    grid: Grid
    arguments: Callable[[], list[np.ndarray | np.generic]]
    outputs: Sequence[int]


def _attention(one: Attention, cluster: int, cached: list[int], tile: int, stages: int) -> Rig:
    chosen = attention.plan(one, cluster, tile, stages)
    case = make_case(one, cached)
    bias = [pack_projections(one, *case.bias)] if case.bias else []
    weights = pack_projections(one, case.wq, case.wk, case.wv)
    out = pack_output(one, case.wo)

    def arguments() -> list[np.ndarray | np.generic]:
        sums = np.zeros((one.batch, one.hidden), np.float32)
        return [
            case.residual, sums, case.norm, weights, *bias, out, case.keys.copy(),
            case.values.copy(), case.pages, np.int32(case.pages.shape[1]), case.cached,
            case.cosines, case.sines,
        ]  # fmt: skip

    first = 5 + len(bias)
    return Rig(
        "attention_block.cu",
        "attention",
        attention.text(chosen, "attention"),
        Grid(chosen.blocks, THREADS, cluster, chosen.arena.bytes),
        arguments,
        (1, first, first + 1),
    )


def _rows(one: RowsProduct, cores: int) -> Rig:
    chosen, given = rows.plan(one), inputs(one)
    names = ["input", *(["gain"] if one.input == "normed" else []), "matrix"]
    names += ["bias"] if one.bias else []
    residual = one.output == "residual"

    def arguments() -> list[np.ndarray | np.generic]:
        columns = one.rows // 2 if one.output == "gated" else one.rows
        output = np.full((one.batch, columns), np.nan, np.float32)
        return [*(given[n] for n in names), *([given["sums"].copy()] if residual else []), output]

    last = len(names) + residual
    return Rig(
        "rows_product.cu",
        "product",
        rows.text(chosen, "product"),
        Grid(chosen.blocks(cores), THREADS, 1, chosen.arena.bytes),
        arguments,
        (last - 1, last) if residual else (last,),
    )


def _embed() -> Rig:
    table = np.random.default_rng(0).integers(0, 30000, (50, 2056)).astype(np.uint16)
    tokens = np.array([7, 0, 49, 50, -1], np.int32)

    def arguments() -> list[np.ndarray | np.generic]:
        residual, sums = np.full((2, 5, 2056), np.nan, np.float32)
        return [tokens, table[:50], residual, sums]

    text = rows.embed_text("embed", 2056, 50, "f16")
    return Rig("embed.cu", "embed", text, Grid(5, 256, 1, 0), arguments, (2, 3))


def _shape(batch, hidden, heads, kv_heads, head, dtype="f16", page=16, bias=False, window=0):
    return Attention(
        batch, hidden, heads, kv_heads, head, dtype, page, 1e-5, head**-0.5, bias, window
    )


# Small rings wrap; there are clusters of 1 to 4, requests without tokens, windows, head sizes that
# are no power of two, rows that are no multiple of the workers.
RIGS = {
    "grouped, ring of two": lambda: _attention(
        _shape(2, 256, 4, 2, 64, "bf16", 1, True), 4, [200, 0], 4096, 2
    ),
    "window, cluster of three": lambda: _attention(
        _shape(3, 384, 3, 3, 96, page=64, window=50), 3, [130, 7, 64], 8192, 3
    ),
    "nothing cached": lambda: _attention(_shape(1, 320, 4, 4, 64, "bf16"), 2, [0], 2048, 2),
    "one block": lambda: _attention(_shape(1, 256, 8, 1, 64), 1, [37], 4096, 3),
    "gated": lambda: _rows(RowsProduct(2, 320, 300, "f16", "normed", "gated", 1e-5), 1),
    "logits": lambda: _rows(RowsProduct(3, 192, 1001, "bf16", "normed", "stored", 1e-5), 3),
    "residual, wide rows": lambda: _rows(
        RowsProduct(2, 5000, 40, "f16", "plain", "residual"), 2
    ),
    "bias, held": lambda: _rows(RowsProduct(1, 2312, 65, "f16", "normed", bias=True), 1),
    "embed": _embed,
}


@cache
def rig(name: str) -> Rig:
    """The rig of this name."""
    return RIGS[name]()


def every() -> list[Mutation]:
    """All mutations of the library and of the kernels, each once."""
    texts = [(name, headers()[name]) for name in LIBRARY]
    texts += [(rig(name).file, rig(name).text) for name in RIGS]
    found: dict[str, Mutation] = {}
    for file, text in texts:
        for mutation in mutations(file, text):
            found.setdefault(mutation.name, mutation)
    return list(found.values())


def _run(one: Rig, library: Library, mode: Mode) -> tuple[list[bytes], Counts]:
    arguments = one.arguments()
    counts = library.run(one.kernel, one.grid, arguments, mode, lint=True)
    outputs = [np.asarray(arguments[n]).tobytes() for n in one.outputs]
    return outputs, dataclasses.replace(counts, switches=0)


@cache
def _right(name: str) -> tuple[list[bytes], Counts]:
    return _run(rig(name), Library(rig(name).text, toolchain=fast()), Mode())


def _kind(problem: ExecutorError) -> str:
    text = str(problem)
    return "deadlock" if "deadlock" in text else "fault"


def _try(mutation: Mutation, name: str) -> tuple[str, str] | None:
    """How this rig kills the mutation; None when it does not."""
    one = rig(name)
    parts, text = dict(headers()), one.text
    if mutation.file in LIBRARY:
        parts[mutation.file] = mutation.apply(parts[mutation.file]) or ""
    elif mutation.file == one.file:
        text = mutation.apply(text) or text
    if text == one.text and parts == headers():
        return None
    try:
        library = Library(text, parts, fast())
    except BuildError as problem:
        return "compiler", str(problem).splitlines()[0]
    outputs, counts = _right(name)
    for mode in [*FIRST, *REST]:
        try:
            seen, counted = _run(one, library, mode)
        except ExecutorError as problem:
            return _kind(problem), f"{mode}: {problem}"
        if seen != outputs:
            return "numbers", str(mode)
        if counted != counts:
            return "counts", f"{counted}"
    return None


def judge(mutation: Mutation) -> dict[str, str]:
    """By what the mutation is killed; empty when it survives."""
    for name in RIGS:
        found = _try(mutation, name)
        if found:
            return {"by": found[0], "rig": name, "how": found[1]}
    return {}


def main() -> None:
    """Judge what comes on standard input until it ends."""
    for line in sys.stdin:
        print(json.dumps(judge(Mutation(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

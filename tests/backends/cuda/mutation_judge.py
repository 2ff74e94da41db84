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
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import test_cuda_attention_tile as tile
import test_cuda_latent as latent
from decode_reference import make_case
from mutations import Mutation, mutations
from test_cuda_attention import in_parts
from test_cuda_rows import inputs

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
from meshc.backends.cuda.kernels.attention_block import kernel as attention
from meshc.backends.cuda.kernels.attention_block.kernel import Attention
from meshc.backends.cuda.kernels.embed import kernel as embed
from meshc.backends.cuda.kernels.rows_product import kernel as rows
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.packing import in_fragments, output, projections
from meshc.devices import device
from meshc.support.native import BuildError, Toolchain

H200 = device("h200")


MOST_SECONDS = 10
LIBRARY = (
    "mc_attention.cuh", "mc_collectives.cuh", "mc_fragments.cuh", "mc_group_attention.cuh",
    "mc_tokens.cuh",
)  # fmt: skip
DRIVERS = ("attention_tile.cu", "primitives.cu")  # call the library; not emitted
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


def _attention(
    one: Attention,
    cluster: int,
    cached: list[int],
    tile: int,
    stages: int,
    by: str = "split_token",
    heads: int = 0,
    ahead: bool = False,
) -> Rig:
    # The plan of a much larger shape: rings that wrap often.
    with patch.multiple(blocks, ATTENTION_TILES=(tile,), MOST_STAGES=stages):
        chosen = attention.plan(one, H200, cluster, by, max(cached) + 1, heads=heads)
    case = make_case(one, cached)
    parts = cluster if by == "split_head" else 1
    weights = np.ascontiguousarray(in_fragments(projections(case.wq, case.wk, case.wv, parts)))
    out = np.ascontiguousarray(in_fragments(output(case.wo, chosen.clusters, parts)))
    bias = [np.ascontiguousarray(projections(*case.bias, parts=parts))] if case.bias else []
    out_bias = [case.out_bias] if one.out_bias else []

    def arguments() -> list[np.ndarray | np.generic]:
        sums = np.zeros((one.batch, one.hidden), np.float32)
        return [
            case.residual, sums, case.norm, weights, *bias, out, *out_bias,
            in_parts(case.keys, parts).copy(), in_parts(case.values, parts).copy(), case.pages,
            np.int32(case.pages.shape[1]), case.cached, case.cosines, case.sines,
            *([NEXT] if ahead else []),
        ]  # fmt: skip

    first = 5 + len(bias) + len(out_bias)
    return Rig(
        "attention_block.cu" if by == "split_token" else "attention_split_head.cu",
        "attention",
        attention.text(chosen, "attention", FOLLOWING if ahead else None),
        Grid(chosen.blocks, blocks.THREADS, cluster, chosen.arena.bytes),
        arguments,
        (1, first, first + 1),
        (0, 1, first, first + 1, first + 2, first + 4),  # caches, pages and lengths too
    )


def _latent(
    one: latent.Latent, cluster: int, cached: list[int], tile: int = 8192, stages: int = 2
) -> Rig:
    # What the tests of latent attention launch, with the plan of a much larger shape.
    with patch.multiple(blocks, LATENT_TILE_BYTES=(tile,), MOST_STAGES=stages):
        chosen, case = latent.plan(one, H200, cluster), latent.make_case(one, cached)
    library = Mock()
    with patch.object(latent, "library", lambda *_: library):
        latent.run(chosen, case)
    _, grid, given = library.run.call_args[0][:3]
    pool = next(n for n, argument in enumerate(given) if argument.shape == case.latents.shape)

    def arguments() -> list[np.ndarray | np.generic]:
        return [argument.copy() for argument in given]

    text = latent.text(chosen, latent.NAME)
    written = (0, 1, pool, pool + 1, pool + 3)  # caches, pages and lengths too
    return Rig("latent_block.cu", latent.NAME, text, grid, arguments, (1, pool), written)


def _rows(one: RowsProduct, cores: int, cluster: int = 1, ahead: bool = False) -> Rig:
    chosen, given = rows.plan(one, H200.with_numbers(cores=cores), cluster), inputs(one)
    given["matrix"] = np.ascontiguousarray(in_fragments(given["matrix"]))
    names = ["input", *(["gain"] if one.input == "normed" else []), "matrix"]
    names += ["bias"] if one.bias else []
    residual = one.output == "residual"

    def arguments() -> list[np.ndarray | np.generic]:
        columns = one.rows // 2 if one.output == "gated" else one.rows
        output = np.full((one.batch, columns), np.nan, np.float32)
        sums = [given["sums"].copy()] if residual else []
        return [*(given[n] for n in names), *sums, output, *([NEXT] if ahead else [])]

    last = len(names) + residual
    return Rig(
        "rows_product.cu",
        "product",
        rows.text(chosen, "product", FOLLOWING if ahead else None),
        Grid(chosen.blocks, blocks.THREADS, cluster, chosen.arena.bytes),
        arguments,
        (last - 1, last) if residual else (last,),
        (0, last - 1) if residual else (0,),
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


def _collective(name: str, size: int, count: int = 100) -> Rig:
    text = (Path(__file__).parent / "primitives.cu").read_text(encoding="utf-8")
    text = re.sub(rf"^COLLECTIVES\((?!{size}\)).*$", "", text, flags=re.MULTILINE)
    all_blocks = 2 * size
    # A gather has two rows of fours for each block.
    floats = 8 * count if name == "gather" else count
    given = -1 - np.random.default_rng(0).random((all_blocks, floats), np.float32)

    def arguments() -> list[np.ndarray | np.generic]:
        wide = size if name == "gather" else 1
        return [given, np.full((all_blocks, wide * floats), np.nan, np.float32), np.int32(count)]

    grid = Grid(all_blocks, 64, size, 16 + 4 * floats * (1 + size))
    return Rig("primitives.cu", f"{name}_{size}", text, grid, arguments, (1,))


def _tiles(shape: tile.Shape, case: tile.Case) -> Rig:
    given = tile.make_inputs(shape, case)[1]

    def arguments() -> list[np.ndarray | np.generic]:
        results = [np.full((shape.queries, shape.value_lanes), np.nan, np.float32)]
        results += [np.full(shape.queries, np.nan, np.float32) for _ in range(2)]
        return [*tile.arguments(shape, case, given), *results]

    grid = Grid(1, tile.THREADS, 1, shape.shared_bytes)
    return Rig("attention_tile.cu", tile.KERNEL, shape.text, grid, arguments, (9, 10, 11))


def _shape(
    batch, hidden, heads, kv_heads, head, dtype="f16", page=16, bias=False, window=0, out_bias=False
):
    return Attention(
        batch, hidden, heads, kv_heads, head, dtype, page, 1e-5, head**-0.5, bias, window, out_bias
    )


# What the next grid reads first, of a matrix of just so many bytes.
FOLLOWING = rows.plan(RowsProduct(1, 1000, 200, "f16"), H200.with_numbers(cores=5)).first_reads()
NEXT = np.zeros(FOLLOWING.groups * FOLLOWING.group_bytes // 2, np.uint16)

# Small rings wrap; there are clusters of 1 to 4, requests without tokens, windows, head sizes that
# are no power of two, rows that are no multiple of the workers.
RIGS = {
    "grouped, ring of two": lambda: _attention(
        _shape(2, 256, 4, 2, 64, "bf16", 1, True), 4, [200, 0], 4096, 2
    ),
    "window, cluster of three": lambda: _attention(
        _shape(3, 384, 3, 3, 96, page=64, window=50), 3, [130, 7, 50], 6144, 3
    ),
    "nothing cached": lambda: _attention(_shape(1, 320, 4, 4, 64, "bf16"), 2, [0], 4096, 2),
    "one block": lambda: _attention(_shape(1, 2120, 8, 1, 64), 1, [37], 9216, 3),
    "five long heads of a key head": lambda: _attention(
        _shape(1, 64, 5, 1, 256), 1, [70], 16384, 2
    ),
    "four heads of a key head": lambda: _attention(_shape(1, 64, 4, 1, 64), 2, [500], 4096, 2),
    "nine requests": lambda: _attention(
        _shape(9, 400, 2, 2, 64, "bf16"), 2, list(range(0, 72, 8)), 18432, 2
    ),
    "twelve query heads, by tiles": lambda: _attention(
        _shape(5, 200, 12, 1, 64, window=20, out_bias=True), 2, [40, 0, 19, 3, 33], 4096, 2
    ),
    "a block left over": lambda: _attention(_shape(1, 904, 1, 1, 64), 1, [5], 4096, 2),
    "two clusters for a key head": lambda: _attention(
        _shape(2, 208, 8, 2, 64, "bf16", bias=True), 3, [70, 20], 4096, 2, heads=2
    ),
    "lanes, ring of two": lambda: _attention(
        _shape(2, 256, 4, 2, 64, "bf16", 1, True), 4, [300, 0], 4096, 2, "split_head"
    ),
    "lanes of 48": lambda: _attention(_shape(1, 256, 2, 1, 96), 2, [140], 6144, 2, "split_head"),
    "lanes, nine requests": lambda: _attention(
        _shape(9, 264, 2, 2, 64, "bf16"), 2, list(range(0, 72, 8)), 16384, 2, "split_head"
    ),
    "lanes, window, cluster of three": lambda: _attention(
        _shape(3, 384, 3, 3, 96, page=64, window=100, out_bias=True),
        3,
        [190, 7, 100],
        6144,
        3,
        "split_head",
    ),
    "weights fit the ring": lambda: _attention(_shape(1, 64, 1, 1, 64), 3, [5], 16384, 6),
    "lanes, weights fit the ring": lambda: _attention(
        _shape(1, 64, 1, 1, 64), 4, [5], 16384, 6, "split_head"
    ),
    "latents, weights fit the ring": lambda: _latent(
        latent.shape(1, hidden=64, heads=1), 4, [70], 16384, 6
    ),
    "latents, one block": lambda: _latent(latent.shape(4, latent=96), 1, [70], 36864),
    "latents, odd cluster": lambda: _latent(
        latent.shape(1, 3, page=64, hidden=384, heads=3, latent=96, rope=24, query=48, value=96),
        3,
        [130, 7, 64],
        stages=3,
    ),
    "latents, no whole groups": lambda: _latent(
        latent.shape(1, hidden=264, heads=2, latent=72, query=40), 4, [50]
    ),
    "latents, several rounds": lambda: _latent(latent.shape(4, 5, value=40), 2, [40, 3, 17, 64, 0]),
    "latents by tiles": lambda: _latent(latent.shape(4, 4, latent=96, rope=32), 8, [3, 140, 0, 64]),
    "latents, scores below zero": lambda: _latent(latent.shape(4, 4, value=40), 2, [1, 1, 2, 1]),
    "latents, nine requests": lambda: _latent(
        latent.shape(1, 9, value=64, heads=1), 2, list(range(0, 36, 4))
    ),
    "latents, wide rotary part": lambda: _latent(latent.shape(1, rope=136, heads=1), 1, [5]),
    "latents, sixteen heads": lambda: _latent(latent.shape(16, heads=16), 1, [20]),
    "latents by tiles, one request": lambda: _latent(latent.shape(4, latent=96, rope=32), 2, [70]),
    "attention, then weights of the next": lambda: _attention(
        _shape(1, 64, 2, 2, 64), 1, [5], 8192, 2, ahead=True
    ),
    "lanes, then weights of the next": lambda: _attention(
        _shape(1, 64, 1, 1, 64), 4, [5], 8192, 2, "split_head", ahead=True
    ),
    "product, then weights of the next": lambda: _rows(
        RowsProduct(1, 72, 140, "f16"), 3, ahead=True
    ),
    "sum of three": lambda: _collective("sum", 3),
    "maximum of three": lambda: _collective("max", 3),
    "gather of four": lambda: _collective("gather", 4, 9),
    "gather with empty shares": lambda: _collective("gather", 4, 1),
    "gated": lambda: _rows(RowsProduct(2, 2120, 130, "f16", "normed", "gated", 1e-5), 1),
    "logits": lambda: _rows(RowsProduct(11, 184, 1001, "bf16", "normed", "stored", 1e-5), 3),
    "residual, wide rows": lambda: _rows(
        RowsProduct(5, 5000, 200, "f16", "plain", "residual"), 2, 2
    ),
    "bias, held": lambda: _rows(RowsProduct(1, 4096, 65, "f16", "normed", bias=True), 1),
    "four share a narrow width": lambda: _rows(
        RowsProduct(1, 72, 280, "f16", "plain", "residual"), 4, 4
    ),
    "sixteen": lambda: _rows(RowsProduct(16, 272, 40, "bf16", "normed", bias=True), 1),
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


OF_LIBRARY = {
    "mc_attention.cuh": (
        "tiles", "tiles of 16", "tiles of 48", "tiles of 256", "tiles, three groups",
        "tiles of latents",
    ),
    "mc_collectives.cuh": (
        "sum of three", "maximum of three", "gather of four", "gather with empty shares",
        "four share a narrow width", "grouped, ring of two", "logits",
    ),
    "mc_fragments.cuh": (
        "gated", "residual, wide rows", "bias, held", "logits", "sixteen",
        "twelve query heads, by tiles", "a block left over", "product, then weights of the next",
    ),
    "mc_group_attention.cuh": (
        "two clusters for a key head", "four heads of a key head",
        "five long heads of a key head", "grouped, ring of two",
        "window, cluster of three", "nine requests",
    ),
    "mc_tokens.cuh": (
        "grouped, ring of two", "lanes, ring of two", "latents, odd cluster", "lanes of 48",
        "nine requests", "window, cluster of three",
    ),
}  # fmt: skip


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

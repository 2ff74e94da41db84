"""Edits of products of warpgroups, of their columns and of rings of clusters: other numbers, other
bytes, a report or a crash."""

import multiprocessing
import re
from functools import cache

import numpy as np
import pytest
from kernel_reference import from_kind, rows_of, to_kind
from mutations import RULES, mutations
from reduced import only
from test_cuda_chunks import UNIT, run_product

from meshc.backends.cuda.executor import (
    CXX,
    QUICK,
    WATCHED,
    ExecutorError,
    Grid,
    Library,
    Mode,
    headers,
)
from meshc.backends.cuda.kernels.chunk_product import kernel as chunk
from meshc.backends.cuda.kernels.chunk_product.kernel import ChunkProduct
from meshc.devices import device
from meshc.support.native import BuildError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
# Three tiles of 128 tokens, of the last of which 64 may be enough, and clusters of two, of which
# the second block has two of eight row groups; the ring wraps. The other one is of a block alone.
SHARED = ChunkProduct(384, 1200, 150, "f16", "gated", bias=True)
ALONE = ChunkProduct(128, 1008, 24, "bf16", "added", factor=0.22)
BY_WARPS = ChunkProduct(40, 96, 24, "f16")  # reads the same columns
SHAPES = SHARED, ALONE, BY_WARPS
PLANS = {shape: chunk.plan(shape, device("h200")) for shape in SHAPES}
NORM = chunk.norm_text("norm", 24, 40, "f16", 1e-5)
KERNEL, COLUMNS, RINGS = "product", "mc_columns.cuh", "mc_collectives.cuh"
MODES = (Mode(), Mode("random", True, 3), Mode("starve_warp", True, 5), Mode("starve_block"))
MOST_SECONDS = 60
CALLS = (
    "fence_products|commit_products|wait_for_products|multiply_64x16|copy_to_all|arrive_read"
    r"|put_column|ring\.fill_all|ring\.fill|load_fragment"
)
PATTERNS = (
    ("call dropped", rf"(?:mc::)?\b(?:{CALLS})\(.*\);", ";"),
    ("other rank", r"\brank\b(?! =)", "0"),
    ("other step", r"\b(?<!int )s \*", "0 *"),
    ("other group", r"\bgroup \*|\bg \*", "0 *"),
    ("other size", r"(?<=\? )64\b|(?<=used == )64\b", "128"),
    ("other size", r"(?<=STEPS \* )used\b|(?<=part = )used\b", "COLUMNS"),
    ("other token", r"(?<=\+ )first_token\b", "0"),
    ("other half", r" \^ token / 4| \^ 8", ""),
    ("other half", r"\bhalf \* 8 \+ ", ""),
    ("other place", r"(?<=[\w)]) % (?:16|8|2|4)\b", ""),
    ("other place", r"(?<=, )k \+ 2", "k"),
    ("other words", r"words\.(?:z|w)", "words.x"),
    ("other fields", r"(?:256|3|1)(?=( >> 4)?\) << \d+| << \d+)|\(u64\)(?:1|3)", r"(u64)0"),
    ("other arrivals", r"N \* consumers", "consumers"),
    ("other peers", r"lane\(\) < N", "lane() < 1"),
    ("other peers", r"(?<=, )lane\(\)(?=\))", "0"),
    ("other row", r" / 2 % 2 \* 8| % 4 \* 2", " * 0"),
    ("other row", r"(?<=\+ )i % 2", "0"),
)  # fmt: skip
# What a run in the executor does not show, by reason.
UNSEEN: dict[str, tuple[str, ...]] = {
    "Hardware wants the lanes of a warp together at the barrier of a cluster; here each arrives.": (
        "product: <mc::warp_sync(); => ;>",
    ),
    "Equivalent: the field is of other layouts.": (
        "mc_columns.cuh: return (u64)(address >> 4) | <(u64)1 => (u64)0> << 16 | (u64)(256 >> 4) "
        "<< 32 | (u64)3 << 62;",
    ),
    "Equivalent but slower: places are filled in turn, and the first one waits for the last.": (
        "mc_collectives.cuh: if (lane() < N) arrive_read(this->empty + <item % STAGES => "
        "(item + 1) % STAGES>, lane());",
    ),
}


def _own(line):
    for fault, pattern, new in PATTERNS:
        for found in re.finditer(pattern, line):
            yield fault, *found.span(), found.expand(new)


@cache
def texts():
    """What is edited: the kernel, the layout of columns, and the ring of a cluster."""
    rings = headers()[RINGS]
    return {
        KERNEL: chunk.text(PLANS[SHARED], KERNEL),
        COLUMNS: headers()[COLUMNS],
        RINGS: rings[rings.index("// Rings of the N blocks of a cluster") :],
    }


@cache
def edits():
    """Edited texts by the name of the edit, with the file."""
    found = {}
    for file, text in texts().items():
        for edit in mutations(file, text, (*RULES, _own)):
            found[edit.name] = file, edit
    return found


def library(toolchain, edit=None, shape=SHARED):
    """Product and norm, with an edit of any of the texts."""
    text, parts = chunk.text(PLANS[shape], KERNEL), dict(headers())
    file, change = edit or ("", None)
    if file == KERNEL:
        text = change.apply(text) or text
    elif file:
        whole, own = parts[file], texts()[file]
        parts[file] = whole.replace(own, change.apply(own))
    return Library(text + NORM, parts, toolchain)


def normed(made, mode):
    """Whether the norm gives the columns that it should."""
    rng, count = np.random.default_rng(1), 21
    rows = rng.standard_normal((24, 40)).astype(np.float32)
    gain = to_kind(rng.standard_normal(40), "f16")
    output = np.zeros((3, 24, 16), np.uint16)
    made.run("norm", Grid(3, 256, 1, 0), [rows, gain, np.array([count], np.int32), output], mode)
    wanted = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * from_kind(gain, "f16")
    found = from_kind(rows_of(output, 24, 48), "f16")
    wanted = np.pad(wanted[:count], ((0, 3), (0, 8)))
    return np.abs(found - wanted).max() <= UNIT["f16"] * np.abs(wanted).max()


def right(made, mode, shape, count, written=None):
    """Whether products and norms are those of float64, and the bytes those of the formula."""
    found, want, copied = run_product(shape, count, mode, made, written=written)
    close = np.abs(found - want).max() <= UNIT[shape.dtype] * np.abs(want).max()
    return close and copied == PLANS[shape].copied_bytes(count) and normed(made, mode)


def unnoticed(edit):
    """Ends with 0 where an edit shows nothing; run as a process of its own."""
    try:
        for shape in SHAPES:
            made = library(QUICK, edit, shape)
            watched = library(WATCHED, edit, shape)
            for count in {shape.tokens - 5, min(64, shape.tokens), min(128, shape.tokens)}:
                if not all(right(made, mode, shape, count) for mode in MODES):
                    raise SystemExit(1)
                for mode in MODES[:2]:
                    right(watched, mode, shape, count, (0,))
    except (ExecutorError, BuildError, AssertionError):
        raise SystemExit(2) from None
    raise SystemExit(0)


def judged(edit):
    """How a process ended: 0 unnoticed, 1 numbers or bytes, 2 a report, else a crash or no end."""
    process = multiprocessing.get_context("fork").Process(target=unnoticed, args=(edit,))
    process.start()
    process.join(MOST_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode


def test_the_kernels_themselves_show_nothing():
    assert judged(None) == 0


IN_CI = tuple(
    name
    for name, (_, edit) in edits().items()
    if edit.fault == "call dropped" and re.search("fence_products|wait_for_products", edit.line)
)


@pytest.mark.parametrize("name", only(edits(), *IN_CI))
def test_an_edit_is_noticed_or_listed(name):
    listed = {edit for group in UNSEEN.values() for edit in group}
    assert (judged(edits()[name]) == 0) == (name in listed)

"""Products of warpgroups and copies for all blocks of a cluster in the executor: their numbers, and
what is told of a kernel that leaves out an order that they need."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_reference import columns, from_kind, to_kind

from meshc.backends.cuda.executor import (
    CXX,
    QUICK,
    WATCHED,
    ExecutorError,
    Grid,
    Library,
    Mode,
    modes,
)
from meshc.backends.cuda.packing import in_fragments

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
TEXT = (Path(__file__).parent / "warpgroups.cu").read_text(encoding="utf-8")
IN_TURN, AT_RANDOM = Mode(), Mode("random", True, 3)


@cache
def library(toolchain):
    return Library(TEXT, toolchain=toolchain)


def multiplied(kernel, tokens, kind="f16", mode=IN_TURN, toolchain=QUICK):
    """What a kernel of ``warpgroups.cu`` gives of 64 rows and tokens, and what it should."""
    rng = np.random.default_rng(tokens)
    rows = to_kind(rng.standard_normal((64, 32)), kind)
    values = to_kind(rng.standard_normal((tokens, 32)), kind)
    left = np.ascontiguousarray(in_fragments(rows).reshape(4, 2, 32, 8).swapaxes(0, 1))
    sums = np.zeros((128, tokens // 2), np.float32)
    grid = Grid(1, 128, 1, 256 + tokens * 32)
    library(toolchain).run(kernel, grid, [left, columns(values, tokens), sums], mode)
    # A thread has rows lane / 4 and eight behind of its warp, and two tokens of each eight.
    held = sums.reshape(4, 8, 4, tokens // 8, 2, 2)  # warp, row, pair, eight, half, token
    found = held.transpose(0, 4, 1, 3, 2, 5).reshape(64, tokens)
    return found, from_kind(rows, kind) @ from_kind(values, kind).T


KERNELS = {
    "by_64": (64, "f16"), "by_128": (128, "f16"), "by_256": (256, "f16"), "written": (64, "f16"),
    "of_bf16": (64, "bf16"),
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_warpgroup_multiplies_as_its_four_warps_would(kernel):
    for mode in modes():
        found, wanted = multiplied(kernel, *KERNELS[kernel], mode)
        assert np.abs(found - wanted).max() <= 2.0**-20 * np.abs(wanted).max()
    found, wanted = multiplied(kernel, *KERNELS[kernel], AT_RANDOM, WATCHED)
    assert np.abs(found - wanted).max() <= 2.0**-20 * np.abs(wanted).max()


FAULTS = {
    "no_fence": "without fence_products",
    "no_commit": "in no group",
    "no_wait": "(ends with products under way|other sums)",
    "not_by_all": "warps of a warpgroup issue 0 and 2 products",
    "other_columns": "lanes of a warp multiply other columns",
    "unaligned": "no multiple of 256",
    "not_exchanged": "not exchanged",
    "sums_not_fenced": "sums of products that were written behind fence_products",
    "sums_too_early": "sums that were written before their products have ended",
    "left_too_early": "a fragment that was written before its product has ended",
}
RACES = {
    "not_awaited": "a race: .* multiplies .* (a copy uses|nothing was written)",
    "let_go_early": "a race: .* (copies to|multiplies) ",
    "no_copy_fence": "a product of shared memory without copy_fence",
}


@pytest.mark.every_case
@pytest.mark.parametrize("kernel", [*FAULTS, *RACES])
@pytest.mark.parametrize("mode", [IN_TURN, AT_RANDOM], ids=str)
def test_what_products_need_is_told_where_it_is_left_out(kernel, mode):
    toolchain = WATCHED if kernel in RACES else QUICK
    with pytest.raises(ExecutorError, match=(FAULTS | RACES)[kernel]):
        multiplied(kernel, 64, "f16", mode, toolchain)


def test_a_block_without_four_warps_multiplies_nothing():
    arrays = [np.zeros((2, 4, 32, 8), np.uint16), np.zeros((2, 1024), np.uint16)]
    with pytest.raises(ExecutorError, match=r"no four warps|deadlock"):
        library(QUICK).run(
            "by_64", Grid(1, 96, 1, 4096), [*arrays, np.zeros((128, 32), np.float32)]
        )


def shared(kernel, mode, toolchain=QUICK, tiles=7):
    """What two blocks add up of tiles of which each brings a half to both, and what they should."""
    x = np.random.default_rng(tiles).standard_normal((tiles, 2, 64)).astype(np.float32)
    sums = np.zeros((2, 64), np.float32)
    grid = Grid(2, 96, 2, 128 + 2 * 512)
    counts = library(toolchain).run(kernel, grid, [x, np.int32(tiles), sums], mode)
    assert counts.copied_bytes == x.nbytes
    return sums, np.broadcast_to(x.sum((0, 1), dtype=np.float64), (2, 64))


def test_blocks_of_a_cluster_bring_tiles_for_each_other():
    for mode in modes():
        found, wanted = shared("shared", mode)
        assert np.abs(found - wanted).max() <= 1e-5
    found, wanted = shared("shared", AT_RANDOM, WATCHED)
    assert np.abs(found - wanted).max() <= 1e-5


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("no_meeting", "not initialised|may not have initialised|was not"),
        ("not_let_go", "a race|deadlock|ended"),
        ("without_peers", "a race: .* copies to"),
    ],
)
def test_a_peer_that_is_passed_over_is_told(kernel, words):
    with pytest.raises(ExecutorError, match=words):
        for mode in modes():
            shared(kernel, mode, WATCHED)

"""Races in shared memory: found in faulty kernels in any schedule, absent from emitted ones."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import mutation_judge
import numpy as np
import pytest
from reduced import only

from meshc.backends.cuda.executor import CXX, WATCHED, ExecutorError, Grid, Library, Mode

HERE = Path(__file__).parent
MODES = [Mode(), Mode("random", True, 3)]

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library(name, only=None):
    text = (HERE / f"{name}.cu").read_text(encoding="utf-8")
    if only:
        text = re.sub(rf"^COLLECTIVES\((?!{only}\)).*$", "", text, flags=re.MULTILINE)
    return Library(text, toolchain=WATCHED)


def run(file, kernel, grid, x, mode, count=(), only=None):
    y = np.full(grid.blocks * 256, np.nan, np.float32)
    library(file, only).run(kernel, grid, [x, y, *count], mode)
    return y


X = np.random.default_rng(0).standard_normal(512).astype(np.float32)
ONE_WARP = Grid(1, 32, 1, 512)
PAIR = Grid(2, 64, 2, 1024)

FAULTS = {
    ("races", "no_warp_sync"): (ONE_WARP, "a race: .* reads"),
    ("races", "no_copy_fence"): (PAIR, "without copy_fence"),
    ("races", "no_init_fence"): (PAIR, "without init_fence"),
    ("races", "awaits_push_near"): (PAIR, "a race: .* reads .* which a copy uses"),
    ("races", "waits_near"): (PAIR, "a race: .* reads .* which thread"),
    ("races", "met_relaxed"): (PAIR, "a race: .* reads .* (which thread|nothing was written)"),
    ("races", "overwritten_by_peer"): (PAIR, "a race: .* writes .* which thread"),
    ("races", "not_awaited"): (PAIR, "an mbarrier that (another thread may not have|was not) init"),
    ("races", "not_fenced"): (PAIR, "a race: an mbarrier that another thread may not have init"),
    ("races", "overwritten_early"): (Grid(1, 64, 1, 512), "a race: .* copies to|deadlock"),
    ("races", "initialised_twice"): (ONE_WARP, "initialised twice"),
    ("races", "not_written"): (ONE_WARP, "reads byte 16 .* nothing was written"),
    ("races", "past_the_end"): (ONE_WARP, "past the end of shared memory"),
    ("faults", "no_block_sync"): (Grid(1, 128, 1, 512), "a race"),
    ("faults", "reduce_in_place"): (Grid(4, 64, 4, 1024), "a race|without init_fence"),
    ("faults", "leaves_early"): (Grid(2, 32, 2, 128), "a race"),
}


@pytest.mark.parametrize(("file", "kernel"), FAULTS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_race_is_found_in_any_schedule(file, kernel, mode):
    grid, words = FAULTS[file, kernel]
    with pytest.raises(ExecutorError, match=words):
        run(file, kernel, grid, X, mode)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_order_is_seen_where_there_is_some(mode):
    handed = run("races", "handed_on", ONE_WARP, X, mode)[:32]
    assert (handed == X[np.arange(32) ^ 1] + X[:32].max()).all()
    swapped = np.concatenate([X[64:128], X[:64]])
    for kernel in ("writers_fence", "pusher_fences", "published", "met"):
        assert (run("races", kernel, PAIR, X, mode)[:128] == swapped).all()
    overwritten = run("races", "overwritten", Grid(1, 64, 1, 512), X, mode)
    assert (overwritten[:64] == X[:64] + X[64:128]).all()


HANDED_OVER = {
    "both_fence": "",
    "one_fences_for_writers": "",
    "another_fences": "",
    "nobody_fences": "of the block that writes",
    "writers_fence_alone": "of the block that copies",
    "copiers_fence_alone": "of the block that writes",
    "fenced_too_early": "of the block that writes",
    "copiers_fence_too_early": "of the block that copies",
    "fence_of_shared_memory": "of the block that copies",
}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_copies_of_what_the_grid_wrote_need_fences_of_both_blocks(mode):
    grid = Grid(2, 64, 1, 512, True)
    for kernel, words in HANDED_OVER.items():
        y, between = np.zeros((2, 128), np.float32)
        arguments = [X[:128], y, between, np.zeros(1, np.int32)]
        if words:
            with pytest.raises(ExecutorError, match=f"without global_copy_fence {words}"):
                library("proxies").run(kernel, grid, arguments, mode)
            continue
        library("proxies").run(kernel, grid, arguments, mode)
        assert (y == np.concatenate([X[64:128], X[:64]])).all()


@pytest.mark.parametrize("kernel", ["sum_3", "max_3", "gather_3"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_collectives_have_no_races(kernel, mode):
    run("primitives", kernel, Grid(6, 64, 3, 2048), X, mode, [np.int32(10)], only=3)


def test_a_ring_has_no_races():
    x = np.random.default_rng(1).standard_normal(96 * 9).astype(np.float32)
    y = run("primitives", "ring_sum", Grid(1, 128, 1, 1024), x, MODES[1], [np.int32(9)], only=3)
    assert np.allclose(y[:96], x.reshape(9, 96).sum(0), atol=1e-5)


IN_CI = ("tiles of 16", "logits")  # each in one mode


@pytest.mark.parametrize(
    ("name", "mode"),
    only(product(mutation_judge.RIGS, MODES), *zip(IN_CI, MODES, strict=True)),
    ids=str,
)
def test_emitted_kernels_have_no_races(name, mode):
    rig = mutation_judge.rig(name)
    watched = Library(rig.text, toolchain=WATCHED)
    watched.run(rig.kernel, rig.grid, rig.arguments(), mode, written=rig.written)

"""The attention block in the executor against float64, in every schedule and copy mode."""

from functools import cache

import numpy as np
import pytest
from decode_reference import expected, from_kind, make_case

from meshc.backends.cuda.executor import CXX, Grid, Library, Mode, modes
from meshc.backends.cuda.kernels.attention import (
    Attention,
    pack_output,
    pack_projections,
    plan,
    text,
)
from meshc.backends.cuda.kernels.tiles import THREADS, DoesNotFit

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
NAME = "attention"
FIRST = Mode()


@cache
def library(shape, cluster):
    return Library(text(plan(shape, cluster), NAME))


def run(shape, cluster, case, mode=FIRST, lint=False):
    """Outputs, the two pools after the step, and counts."""
    chosen = plan(shape, cluster)
    sums = np.zeros((shape.batch, shape.hidden), np.float32)
    pools = case.keys.copy(), case.values.copy()
    bias = [pack_projections(shape, *case.bias)] if case.bias else []
    arguments = [
        case.residual, sums, case.norm, pack_projections(shape, case.wq, case.wk, case.wv), *bias,
        pack_output(shape, case.wo), *pools, case.pages, np.int32(case.pages.shape[1]),
        case.cached, case.cosines, case.sines,
    ]  # fmt: skip
    grid = Grid(chosen.blocks, THREADS, cluster, chosen.arena.bytes)
    counts = library(shape, cluster).run(NAME, grid, arguments, mode, lint)
    return sums, pools, counts


def check(case, sums, pools, tolerance):
    """Outputs within ``tolerance``; the new rows stored, all others as they were."""
    shape = case.shape
    want, new = expected(case)
    assert np.abs(sums - want).max() <= tolerance
    for pool, before, rows in zip(pools, (case.keys, case.values), new, strict=True):
        after = pool.copy()
        for b, length in enumerate(case.cached):
            place = case.pages[b, length // shape.page], slice(None), length % shape.page
            stored = from_kind(pool[place], shape.dtype)
            assert np.abs(stored - rows[b]).max() <= 0.01 * np.abs(rows[b]).max()
            after[place] = before[place]
        assert (after == before).all()


def shape(batch, hidden, heads, kv_heads, head, dtype="f16", page=16, bias=False, window=0):
    return Attention(
        batch, hidden, heads, kv_heads, head, dtype, page, 1e-5, head**-0.5, bias, window
    )


SMALL = {
    "one block": (shape(1, 256, 4, 2, 64), 1, [37]),
    "grouped, two requests": (shape(2, 256, 4, 2, 64, "bf16", 1, bias=True), 4, [200, 0]),
    "window, odd cluster": (shape(3, 384, 3, 3, 96, page=64, window=50), 3, [130, 7, 64]),
    "eight blocks, wide group": (shape(1, 512, 8, 1, 128, page=64), 8, [300]),
    "sixteen blocks, large head": (shape(1, 256, 2, 1, 256, page=64), 16, [130]),
    "sixteen requests": (shape(16, 256, 4, 2, 64), 1, list(range(0, 160, 10))),
    "nothing cached": (shape(1, 256, 4, 4, 64, "bf16"), 2, [0]),
    "hidden is not heads times head": (shape(1, 320, 2, 2, 64), 4, [100]),
}
# Sums of some hundred f32 products whose result is of the order of one.
TOLERANCE = 2e-6


@pytest.mark.parametrize("name", SMALL)
def test_it_equals_float64_and_all_modes_agree_to_the_bit(name):
    one, cluster, cached = SMALL[name]
    case = make_case(one, cached)
    first = run(one, cluster, case)
    check(case, *first[:2], TOLERANCE)
    assert first[2].dsmem_bytes == plan(one, cluster).dsmem_bytes
    for mode in list(modes((3,)))[1:]:
        sums, pools, _ = run(one, cluster, case, mode)
        assert sums.tobytes() == first[0].tobytes(), mode
        assert all((a == b).all() for a, b in zip(pools, first[1], strict=True)), mode


@pytest.mark.parametrize("name", SMALL)
def test_loads_from_shared_memory_have_no_bank_conflicts(name):
    one, cluster, cached = SMALL[name]
    _, _, counts = run(one, cluster, make_case(one, cached), lint=True)
    assert counts.shared_load_cycles == counts.shared_loads > 0


FULL = {
    "llama-2-7b": (shape(1, 4096, 32, 32, 128, page=64), 4, [1024]),
    "llama-3-8b": (shape(1, 4096, 32, 8, 128, "bf16"), 16, [1024]),
}


@pytest.mark.parametrize("name", FULL)
def test_full_size(name):
    one, cluster, cached = FULL[name]
    case = make_case(one, cached)
    sums, pools, counts = run(one, cluster, case, Mode("shuffled", True))
    check(case, sums, pools, 1e-5)
    weights = 2 * (case.wq.size + case.wk.size + case.wv.size + case.wo.size)
    assert counts.copied_bytes - weights == 4 * cached[0] * one.kv_heads * one.head + pushed(one)


def pushed(one):
    """Bytes of the gather's pushes, which are copies as well."""
    cluster = next(c for s, c, _ in FULL.values() if s == one)
    return 4 * one.kv_heads * (cluster - 1) * one.rows


@pytest.mark.parametrize(
    ("one", "cluster", "words"),
    [
        (shape(1, 256, 4, 2, 80), 1, "a head of 80"),
        (shape(1, 256, 5, 2, 64), 1, "5 query heads do not divide"),
        (shape(1, 256, 16, 1, 64), 1, "16 query heads share one key head"),
        (shape(1, 256, 4, 2, 64, page=8), 1, "pages of 8"),
        (shape(1, 264, 4, 2, 64), 4, "264 outputs do not divide"),
        (shape(16, 4096, 32, 32, 128), 4, "bytes of vectors and sums leave no room"),
    ],
)
def test_shapes_that_do_not_fit(one, cluster, words):
    with pytest.raises(DoesNotFit, match=words):
        plan(one, cluster)

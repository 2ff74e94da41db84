"""The attention block in the executor against float64, in every schedule and copy mode."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from decode_reference import expected, from_kind, make_case, swizzled_pool
from reduced import crossed, in_turns, only

from meshc.analysis.cuda.blocks import THREADS
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
from meshc.backends.cuda.kernels.attention_block.kernel import (
    Attention,
    plan,
    text,
)
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.packing import in_fragments, output, projections
from meshc.devices import device

H200 = device("h200")


pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
NAME = "attention"
FIRST = Mode()


@cache
def library(chosen, toolchain):
    return Library(chosen, toolchain=toolchain)


def run(chosen, case, mode=FIRST, lint=False, toolchain=QUICK, edited=""):
    """Outputs, the two pools after the step, and counts, of the kernel or of an ``edited`` text."""
    shape = chosen.shape
    parts = chosen.cluster if chosen.dataflow == "split_head" else 1
    sums = np.zeros((shape.batch, shape.hidden), np.float32)
    pools = [case.keys, case.values]
    if chosen.swizzled:
        pools = [swizzled_pool(pool, case.pages) for pool in pools]
    pools = [in_parts(pool, parts) for pool in pools]
    weights = (
        in_fragments(projections(case.wq, case.wk, case.wv, parts)),
        in_fragments(output(case.wo, chosen.clusters, parts)),
    )
    bias = [np.ascontiguousarray(projections(*case.bias, parts=parts))] if case.bias else []
    out_bias = [case.out_bias] if shape.out_bias else []
    qkv, out = map(np.ascontiguousarray, weights)
    arguments = [
        case.residual, sums, case.norm, qkv, *bias, *case.head_norms, out, *out_bias, *pools,
        case.pages, np.int32(case.pages.shape[1]), case.cached, case.cosines, case.sines,
    ]  # fmt: skip
    grid = Grid(chosen.blocks, THREADS, chosen.cluster, chosen.arena.bytes)
    counts = library(edited or text(chosen, NAME), toolchain).run(NAME, grid, arguments, mode, lint)
    pools = [whole(pool, parts) for pool in pools]
    if chosen.swizzled:
        pools = [swizzled_pool(pool, case.pages) for pool in pools]
    return sums, pools, counts


def in_parts(pool, parts):
    """A pool [pages, kv_heads, page, head] with the lanes of each block together."""
    pages, heads, page, lanes = pool.shape
    split = pool.reshape(pages, heads, page, parts, lanes // parts)
    return np.ascontiguousarray(split.swapaxes(2, 3))


def whole(pool, parts):
    pages, heads, _, page, lanes = pool.shape
    return pool.swapaxes(2, 3).reshape(pages, heads, page, parts * lanes)


def seen(case):
    """Tokens that the queries of each request see."""
    window = case.shape.window
    return [min(c + 1, window) if window else c + 1 for c in case.cached]


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


SHARED = {
    "three clusters for a key head": 1,
    "two, by tiles, a bias": 10,
    "two, sixteen requests": 2,
    "normed heads of 96, three clusters for a key head": 1,
}


def shape(
    batch,
    hidden,
    heads,
    kv_heads,
    head,
    dtype="f16",
    page=16,
    bias=False,
    window=0,
    out_bias=False,
    head_epsilons=None,
    factor=1.0,
):
    return Attention(
        batch, hidden, heads, kv_heads, head, dtype, page, 1e-5, head**-0.5, bias, window, out_bias,
        head_epsilons, factor=factor,
    )  # fmt: skip


SMALL = {
    "one block": (shape(1, 256, 4, 2, 64), 1, [37], "split_token"),
    "grouped, two requests": (
        shape(2, 256, 4, 2, 64, "bf16", 1, bias=True), 4, [200, 0], "split_token"
    ),
    "window, odd cluster": (
        shape(3, 384, 3, 3, 96, page=64, window=50, out_bias=True, factor=0.22),
        3, [130, 7, 64], "split_token",
    ),
    "eight blocks, wide group": (shape(1, 512, 8, 1, 128, page=64), 8, [300], "split_token"),
    "sixteen blocks, large head": (shape(1, 256, 2, 1, 256, page=64), 16, [130], "split_token"),
    "sixteen requests": (shape(16, 256, 4, 2, 64), 1, list(range(0, 160, 10)), "split_token"),
    "rows over three blocks": (shape(2, 264, 2, 2, 64), 5, [30, 1], "split_token"),
    "blocks without rows": (shape(1, 136, 1, 1, 64), 16, [33], "split_token"),
    "three clusters for a key head": (
        shape(2, 256, 6, 2, 64, "bf16", 1, bias=True, out_bias=True), 2, [200, 0], "split_token"
    ),
    "two, by tiles, a bias": (shape(1, 256, 20, 1, 64, bias=True), 4, [100], "split_token"),
    "two, sixteen requests": (
        shape(16, 256, 8, 2, 128, window=20), 2, list(range(0, 160, 10)), "split_token"
    ),
    "nothing cached": (shape(1, 256, 4, 4, 64, "bf16"), 2, [0], "split_token"),
    "hidden is not heads times head": (shape(1, 320, 2, 2, 64), 4, [100], "split_token"),
    "tiles, two requests": (
        shape(2, 512, 24, 2, 64, "bf16", 1, bias=True), 4, [200, 0], "split_token"
    ),
    "tiles, window": (shape(2, 384, 16, 1, 96, page=64, window=50), 3, [130, 7], "split_token"),
    "tiles, many heads": (shape(1, 256, 32, 1, 128, page=16), 2, [150], "split_token"),
    # Epsilons of the order of the squares, so that each counts.
    "normed heads, two requests": (
        shape(2, 256, 4, 2, 64, "bf16", 1, bias=True, head_epsilons=(0.5, 2.0)),
        4, [200, 0], "split_token",
    ),
    "normed heads of 96, three clusters for a key head": (
        shape(1, 264, 3, 1, 96, head_epsilons=(1e-6, 1e-6)), 3, [70], "split_token"
    ),
    "normed heads, by tiles": (
        shape(1, 256, 12, 1, 64, head_epsilons=(2.0, 0.5)), 2, [100], "split_token"
    ),
    "lanes, two blocks": (shape(1, 256, 4, 2, 64), 2, [37], "split_head"),
    "lanes, two requests": (
        shape(2, 256, 4, 2, 64, "bf16", 1, bias=True, out_bias=True, factor=0.22),
        4, [200, 0], "split_head",
    ),
    "lanes, window, odd cluster": (
        shape(3, 384, 3, 3, 96, page=64, window=50), 3, [130, 7, 64], "split_head"
    ),
    "lanes, eight blocks": (shape(1, 512, 8, 1, 128, page=64), 8, [700], "split_head"),
    "lanes, wide head": (shape(1, 256, 2, 1, 256), 4, [0], "split_head"),
}  # fmt: skip
IN_CI = (
    "grouped, two requests",
    "window, odd cluster",
    "three clusters for a key head",
    "two, sixteen requests",
    "tiles, two requests",
    "tiles, window",
    "normed heads, by tiles",
    "lanes, two requests",
    "lanes, window, odd cluster",
)


def small(name):
    """The plan and the inputs of a case."""
    one, cluster, cached, dataflow = SMALL[name]
    heads = SHARED.get(name, 0)
    return plan(one, H200, cluster, dataflow, max(cached) + 1, heads=heads), make_case(one, cached)


# Sums of some hundred f32 products whose result is of the order of one; inputs of products with
# weights keep 22 and 16 bits.
TOLERANCE = {"f16": 2e-6, "bf16": 1e-5}
# Inputs of more than four requests are rounded to the type, as are queries and weights of scores
# where tensor cores take them.
ROUNDED = {"f16": 2e-3, "bf16": 8e-3}


MODES = list(modes((3,)))
TURNS = 3


@pytest.mark.parametrize(("name", "turn"), in_turns(SMALL, IN_CI, TURNS))
def test_it_equals_float64_and_all_modes_agree_to_the_bit(name, turn):
    chosen, case = small(name)
    first = run(chosen, case)
    rounded = chosen.by_tiles or chosen.shape.batch > 4
    check(case, *first[:2], (ROUNDED if rounded else TOLERANCE)[chosen.shape.dtype])
    assert first[2].dsmem_bytes == chosen.dsmem_bytes(seen(case))
    for mode in MODES[1 + turn :: TURNS]:
        sums, pools, _ = run(chosen, case, mode)
        assert sums.tobytes() == first[0].tobytes(), mode
        assert all((a == b).all() for a, b in zip(pools, first[1], strict=True)), mode


# Edits of a window and of a factor, and a case that shows each.
EDITS = [
    ("window, odd cluster", "cached + 1 - WINDOW", "cached + 2 - WINDOW"),
    ("tiles, window", "cached + 1 - WINDOW", "cached - WINDOW"),
    ("lanes, window, odd cluster", "cached + 1 - WINDOW", "cached - WINDOW"),
    ("window, odd cluster", "four.x *= FACTOR, ", ""),
    ("window, odd cluster", "FACTOR * mc::widen(out_bias[column])", "mc::widen(out_bias[column])"),
    ("lanes, two requests", "four.w *= FACTOR;", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "was", "becomes"), EDITS)
def test_an_edit_of_a_window_or_factor_is_noticed(name, was, becomes):
    chosen, case = small(name)
    whole = text(chosen, NAME)
    assert was in whole
    with pytest.raises((AssertionError, ExecutorError)):
        found = run(chosen, case, edited=whole.replace(was, becomes))
        check(case, *found[:2], ROUNDED[chosen.shape.dtype])
        assert found[2] == run(chosen, case)[2]


@pytest.mark.slow
def test_compilers_that_optimise_more_or_less_agree_to_the_bit():
    chosen, case = small("tiles, two requests")
    quick, full = (run(chosen, case, toolchain=toolchain) for toolchain in (QUICK, CXX))
    assert quick[0].tobytes() == full[0].tobytes() and quick[2] == full[2]


@pytest.mark.parametrize("name", only(SMALL, *IN_CI))
def test_loads_from_shared_memory_have_no_bank_conflicts(name):
    _, _, counts = run(*small(name), lint=True)
    assert counts.shared_load_cycles == counts.shared_loads > 0


LARGER = ("tiles, window", "normed heads, two requests")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *crossed(
            ["normed heads, by tiles", "lanes, two requests"], [Mode(), Mode("random", True, 3)]
        ),
        *only(product(LARGER, [Mode(), Mode("random", True, 3)])),
    ],
    ids=str,
)
def test_there_are_no_races(name, mode):
    chosen, case = small(name)
    run(chosen, case, mode, toolchain=WATCHED)


FULL = {
    "llama-2-7b": (shape(1, 4096, 32, 32, 128, page=64), 4, "split_token"),
    "llama-2-7b by lanes": (shape(1, 4096, 32, 32, 128, page=64), 2, "split_head"),
    "llama-3-8b": (shape(1, 4096, 32, 8, 128, "bf16"), 16, "split_token"),
}


@pytest.mark.parametrize(
    ("cached", "name"),
    [
        pytest.param(1024, "llama-3-8b", marks=pytest.mark.slow),
        pytest.param(1024, "llama-2-7b", marks=pytest.mark.slow),
        pytest.param(1024, "llama-2-7b by lanes", marks=pytest.mark.slow),
        pytest.param(4096, "llama-3-8b", marks=pytest.mark.slow),
        pytest.param(4096, "llama-2-7b", marks=pytest.mark.slow),
        pytest.param(4096, "llama-2-7b by lanes", marks=pytest.mark.slow),
    ],
)
def test_full_size(name, cached):
    one, cluster, dataflow = FULL[name]
    case, chosen = make_case(one, [cached]), plan(one, H200, cluster, dataflow, cached + 1)
    sums, pools, counts = run(chosen, case, Mode("shuffled", True), toolchain=CXX)
    check(case, sums, pools, 1e-5)
    weights = 2 * (case.wq.size + case.wk.size + case.wv.size + case.wo.size)
    # The pushes of a gather are copies as well.
    pushed = 4 * one.kv_heads * (cluster - 1) * one.sizes.rows if dataflow == "split_token" else 0
    assert counts.copied_bytes - weights - pushed == 4 * cached * one.kv_heads * one.head
    assert counts.dsmem_bytes == chosen.dsmem_bytes(seen(case))


@pytest.mark.parametrize(
    ("hidden", "heads", "kv_heads", "requests"),
    [
        (1024, 8, 2, 16),
        pytest.param(4096, 32, 32, 8, marks=pytest.mark.slow),
        pytest.param(4096, 32, 32, 16, marks=pytest.mark.slow),
        pytest.param(4096, 32, 8, 16, marks=pytest.mark.slow),
    ],
)
def test_many_requests_share_one_pass_over_the_weights(hidden, heads, kv_heads, requests):
    """The large ones are of the sizes of Llama-2-7B and Llama-3-8B."""
    one = shape(requests, hidden, heads, kv_heads, 128, page=16)
    case, chosen = make_case(one, [9 * n for n in range(requests)]), plan(one, H200, 4)
    sums, pools, counts = run(chosen, case, toolchain=CXX)
    check(case, sums, pools, ROUNDED["f16"])
    weights = 2 * (case.wq.size + case.wk.size + case.wv.size + case.wo.size)
    pushed = 3 * 4 * kv_heads * requests * one.sizes.rows
    cached = 4 * int(case.cached.sum()) * kv_heads * one.head
    assert counts.copied_bytes == weights + pushed + cached


@pytest.mark.parametrize(
    ("one", "cluster", "words"),
    [
        (shape(1, 256, 4, 2, 80), 1, "a head of 80"),
        (shape(1, 256, 5, 2, 64), 1, "5 query heads do not divide"),
        (shape(1, 256, 65, 1, 64), 1, "65 query heads share a key head"),
        (shape(1, 256, 4, 2, 64, page=8), 1, "pages of 8"),
        (shape(1, 260, 4, 2, 64), 4, "a hidden size of 260"),
        (shape(1, 256, 4, 2, 64), 17, "a cluster of 17 blocks"),
        (shape(16, 8192, 64, 64, 128), 4, "bytes of vectors and sums leave no room"),
    ],
)
def test_shapes_that_do_not_fit(one, cluster, words):
    with pytest.raises(DoesNotFit, match=words):
        plan(one, H200, cluster)


def test_lanes_of_normed_heads_are_not_shared():
    with pytest.raises(DoesNotFit, match="heads are normed"):
        plan(shape(1, 256, 4, 2, 64, head_epsilons=(1e-6, 1e-6)), H200, 2, "split_head")

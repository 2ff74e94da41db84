"""The latent attention block in the executor against float64, in every schedule and copy mode."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from decode_reference import swizzled_pool
from latent_reference import expected, from_kind, make_case
from reduced import crossed, each, in_turns, only

from meshc.analysis.cuda.blocks import MOST_REGISTERS, THREADS, latent_by_tiles
from meshc.analysis.cuda.dsmem import LatentAttention
from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, Grid, Library, Mode, modes
from meshc.backends.cuda.kernels.latent_block.kernel import Latent, plan, text
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.packing import in_fragments, latent_keys, latent_queries, output
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.devices import device

H200 = device("h200")


pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
NAME = "latent"
FIRST = Mode()


@cache
def library(chosen, toolchain):
    return Library(chosen, toolchain=toolchain)


def laid_out(chosen, case, pool):
    """The pool as the kernel has it, or, of that, as it was."""
    return swizzled_pool(pool[:, None], case.pages)[:, 0] if chosen.by_tiles else pool.copy()


def run(chosen, case, mode=FIRST, lint=False, toolchain=QUICK):
    """Outputs, the pool after the step, and counts."""
    sizes, w = chosen.shape.sizes, case.weights
    sums = np.zeros((sizes.batch, sizes.hidden), np.float32)
    pool = laid_out(chosen, case, case.latents)
    packed = [
        latent_queries(w["wq"], w["wq_rope"], sizes.clusters),
        latent_keys(w["w_latent"], w["w_rope"]),
        w["w_uk"].transpose(1, 2, 0),
        w["w_uv"].transpose(1, 2, 0),
        output(w["wo"], sizes.clusters)[:, 0],
    ]
    of_query = [w["query_norm"], in_fragments(w["w_query"].T)] if sizes.query_rank else []
    arguments = [
        case.residual, sums, w["norm"], w["latent_norm"], *of_query, *map(in_fragments, packed),
        pool, case.pages, np.int32(case.pages.shape[1]), case.cached, case.cosines, case.sines,
    ]  # fmt: skip
    grid = Grid(chosen.blocks, THREADS, chosen.cluster, chosen.arena.bytes)
    counts = library(text(chosen, NAME), toolchain).run(NAME, grid, arguments, mode, lint)
    return sums, laid_out(chosen, case, pool), counts


def check(case, sums, pool, tolerance):
    """Outputs within ``tolerance``; the new tokens stored, all others as they were."""
    shape = case.shape
    want, new = expected(case)
    assert np.abs(sums - want).max() <= tolerance
    after = pool.copy()
    for b, length in enumerate(case.cached):
        place = case.pages[b, length // shape.page], length % shape.page
        stored = from_kind(pool[place], shape.dtype)
        assert np.abs(stored - new[b]).max() <= 0.01 * np.abs(new[b]).max()
        after[place] = case.latents[place]
    assert (after == case.latents).all()


def shape(group, batch=1, dtype="f16", page=16, **changes):
    sizes = {"hidden": 256, "heads": 4, "latent": 64, "rope": 16, "query": 32, "value": 32}
    made = LatentAttention(**{**sizes, **changes}, batch=batch, group=group)
    return Latent(made, dtype, page, 1e-5, 1e-6, (made.query + made.rope) ** -0.5, 2e-6)


SMALL = {
    "one block, a head": (shape(1, value=64), 1, [37]),
    "one block, all heads": (shape(4), 1, [70]),
    "two heads, two requests": (shape(2, 2, "bf16", 1), 4, [200, 0]),
    "odd cluster": (
        shape(1, 3, page=64, hidden=384, heads=3, latent=96, rope=24, query=48, value=96),
        3, [130, 7, 64],
    ),
    "eight blocks": (shape(4, latent=128, rope=32, page=64), 8, [300]),
    "sixteen blocks, sixteen heads": (
        shape(16, heads=16, latent=192, rope=64, query=64, page=64), 16, [130]
    ),
    "sixteen requests": (shape(1, 16, value=64), 2, list(range(0, 160, 10))),
    "tiles of eight heads": (shape(8, 2, "bf16", 1, heads=8, rope=32), 4, [90, 31]),
    "tiles, several rounds": (shape(4, 4, latent=96, rope=32), 8, [3, 140, 0, 64]),
    "queries of a low rank": (shape(2, 3, query_rank=72), 4, [50, 9, 0]),
    "tiles, queries of a low rank": (
        shape(4, 5, "bf16", rope=32, query_rank=160), 8, [9, 80, 1, 2, 3]
    ),
    "nothing cached": (shape(2, dtype="bf16"), 2, [0]),
    "more blocks than rows of values fill": (shape(1, hidden=264, latent=72, query=40), 8, [50]),
    "more heads than blocks": (shape(4, 5, value=40), 2, [40, 3, 17, 64, 0]),
}  # fmt: skip


def small(name):
    """The plan and the inputs of a case."""
    one, cluster, cached = SMALL[name]
    return plan(one, H200, cluster), make_case(one, cached)


def tolerance(one):
    """Of results of the order of one: what vectors keep on tensor cores, up to four twice the bits
    of the type, and queries and weights of scores those of the type."""
    if one.sizes.batch > 4 or latent_by_tiles(one.sizes):
        return {"f16": 2e-3, "bf16": 1.6e-2}[one.dtype]
    return {"f16": 2e-6, "bf16": 2e-5}[one.dtype]


MODES = list(modes((3,)))
TURNS = 3


@pytest.mark.parametrize(("name", "turn"), in_turns([*SMALL], [*SMALL][::2], TURNS))
def test_it_equals_float64_and_all_modes_agree_to_the_bit(name, turn):
    chosen, case = small(name)
    first = run(chosen, case)
    check(case, *first[:2], tolerance(chosen.shape))
    assert first[2].dsmem_bytes == chosen.dsmem_bytes
    for mode in MODES[1 + turn :: TURNS]:
        sums, pool, _ = run(chosen, case, mode)
        assert sums.tobytes() == first[0].tobytes(), mode
        assert (pool == first[1]).all(), mode


@pytest.mark.parametrize("name", each(SMALL, 2))
def test_loads_from_shared_memory_have_no_bank_conflicts(name):
    _, _, counts = run(*small(name), lint=True)
    assert counts.shared_load_cycles == counts.shared_loads > 0


WATCHED_MODES = [Mode(), Mode("random", True, 3)]
# Queries of a low rank, tiles, and several rounds.
WATCHED_SHAPES = ("queries of a low rank", "more heads than blocks")
MORE_SHAPES = only(
    product(
        ["two heads, two requests", "tiles, queries of a low rank", "eight blocks"], WATCHED_MODES
    )
)


@pytest.mark.parametrize(
    ("name", "mode"), [*crossed(WATCHED_SHAPES, WATCHED_MODES), *MORE_SHAPES], ids=str
)
def test_shared_memory_is_used_again_without_races(name, mode):
    chosen, case = small(name)
    run(chosen, case, mode, toolchain=WATCHED)


LITE = {"hidden": 2048, "heads": 16, "latent": 512, "rope": 64, "query": 128, "value": 128}


@pytest.mark.parametrize(
    ("hidden", "group", "cluster", "cached"),
    each(
        [
            (512, 4, 16, 300),
            (2048, 4, 16, 1024),
            (2048, 1, 8, 1024),
            (2048, 4, 16, 4096),
            (2048, 1, 8, 4096),
        ],
        5,
    ),
)
def test_deepseek_v2_lite(hidden, group, cluster, cached):
    one = shape(group, page=64, **{**LITE, "hidden": hidden})
    case, chosen = make_case(one, [cached]), plan(one, H200, cluster)
    sums, pool, counts = run(chosen, case, Mode("shuffled", True), toolchain=CXX)
    check(case, sums, pool, 2e-3 if chosen.by_tiles else 1e-5)
    assert counts.dsmem_bytes == chosen.dsmem_bytes
    assert counts.copied_bytes == 2 * values_read(case)


@pytest.mark.slow
def test_requests_share_a_pass_over_the_weights():
    """Of heads like those of DeepSeek-V2-Lite."""
    one = shape(4, 16, page=16, **{**LITE, "hidden": 512})
    case, chosen = make_case(one, list(range(0, 160, 10))), plan(one, H200, 16)
    sums, pool, counts = run(chosen, case, toolchain=CXX)
    check(case, sums, pool, tolerance(one))
    assert counts.dsmem_bytes == chosen.dsmem_bytes
    assert counts.copied_bytes == 2 * values_read(case)


def values_read(case):
    """Weights of heads once; every cluster reads the shared projection and all cached tokens."""
    sizes, w = case.shape.sizes, case.weights
    own = sum(w[name].size for name in ("wq", "wq_rope", "w_uk", "w_uv", "wo"))
    shared = w["w_latent"].size + w["w_rope"].size + int(case.cached.sum()) * sizes.key
    return own + sizes.clusters * shared


@pytest.mark.cuda_compiler
@pytest.mark.parametrize(
    ("group", "cluster", "batch", "registers"),
    each(
        [
            (1, 8, 1, 72),
            (2, 16, 1, 96),
            (4, 16, 1, 96),
            (8, 16, 1, 104),
            (1, 8, 4, 80),
            (4, 16, 16, 120),
        ],
        6,
    ),
)
def test_it_compiles_without_spills(group, cluster, batch, registers):
    check_compiled(plan(shape(group, batch, "bf16", **LITE), H200, cluster), registers)


@pytest.mark.cuda_compiler
@pytest.mark.parametrize(
    ("group", "cluster", "batch"), each([(16, 8, 1), (8, 16, 4), (4, 16, 16)], 3)
)
def test_blocks_of_the_size_of_deepseek_v2_compile(group, cluster, batch):
    sizes = {**LITE, "hidden": 5120, "heads": 128, "query_rank": 1536}
    check_compiled(plan(shape(group, batch, "bf16", **sizes), H200, cluster), MOST_REGISTERS)


def check_compiled(chosen, registers):
    """No spills, no more than these registers, no warnings."""
    cubin = compile_cubin(text(chosen, NAME))
    needs = cubin.kernels[NAME]
    assert (needs.spill_bytes, needs.stack_bytes, needs.shared_bytes) == (0, 0, 0)
    assert needs.registers <= registers
    assert cubin.warnings == ()


@pytest.mark.parametrize(
    ("one", "cluster", "words"),
    [
        (shape(3), 1, "4 heads do not divide into groups of 3"),
        (shape(1, latent=576), 1, "latents of 576 values, more than 512"),
        (shape(1, rope=12), 1, "12 rotary lanes are no whole number of eights"),
        (shape(1, page=8), 1, "pages of 8"),
        (shape(2), 3, "3 blocks share no 2 heads evenly"),
        (shape(1), 3, "64 rows of absorbed queries do not divide over 3 blocks"),
        (shape(16, 16, **LITE), 4, "leave no room"),
    ],
)
def test_shapes_that_do_not_fit(one, cluster, words):
    with pytest.raises(DoesNotFit, match=words):
        plan(one, H200, cluster)

"""The primitives in the executor: what they compute, what they count, which faults it finds."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshc.analysis.tasks.tiles import looked_up_together
from meshc.backends.cuda import toolchain_for
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

HERE = Path(__file__).parent
SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library(name):
    return Library((HERE / f"{name}.cu").read_text(encoding="utf-8"), toolchain=QUICK)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operator", ["sum", "max"])
def test_cluster_reduce_is_the_sum_in_rank_order_in_all_modes(size, operator):
    count, clusters = 72, 2
    x = values(clusters, size, count)
    expected = x[:, 0] + np.float32(0)
    for rank in range(1, size):
        combine = np.add if operator == "sum" else np.maximum
        expected = combine(expected, x[:, rank])
    grid = Grid(clusters * size, 64, size, 16 + 2 * 4 * count)
    for mode in modes():
        y = np.zeros_like(x)
        counts = library("primitives").run(
            f"{operator}_{size}", grid, [x, y, np.int32(count)], mode
        )
        assert (y == expected[:, None]).all(), mode
        assert counts.dsmem_bytes == clusters * size * (size - 1) * 4 * count


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("size", SIZES)
def test_cluster_gather_brings_shares_to_their_places_in_all_modes(size, count):
    """Shares of different sizes; with one four for each block every other share is empty."""
    clusters, rows = 2, (2, 4 * size * count)
    x = values(clusters, *rows)
    grid = Grid(clusters * size, 64, size, 16 + 4 * 2 * rows[1])
    for mode in modes():
        y = np.zeros((clusters, size, *rows), np.float32)
        counts = library("primitives").run(f"gather_{size}", grid, [x, y, np.int32(count)], mode)
        assert (y == x[:, None]).all(), mode
        assert counts.dsmem_bytes == (size - 1) * x.nbytes


def summed(tiles):
    """Tiles and one more, and the sum of the others in order."""
    x = values(tiles + 1, 96)
    expected = np.zeros(96, np.float32)
    for tile in x[:tiles]:
        expected += tile
    return x, expected


@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 9])
def test_a_ring_brings_every_tile_once(tiles):
    x, expected = summed(tiles)
    for mode in modes((1, 2)):
        y = np.zeros(96, np.float32)
        grid = Grid(1, 128, 1, 128 + 2 * 384)
        counts = library("primitives").run("ring_sum", grid, [x, y, np.int32(tiles)], mode)
        assert (y == expected).all(), mode
        assert counts.copied_bytes == tiles * 384


@pytest.mark.parametrize(("tiles", "apart"), [(0, 1), (1, 1), (9, 1), (23, 1), (40, 4), (33, 7)])
def test_a_ring_that_is_paced_brings_every_tile_once(tiles, apart):
    x, expected = summed(tiles)
    for mode in modes((1, 2)):
        y = np.zeros(96, np.float32)
        given = [x, y, np.int32(tiles), np.int32(apart)]
        library("primitives").run("paced_sum", Grid(1, 128, 1, 128 + 5 * 384), given, mode)
        assert (y == expected).all(), mode


@pytest.mark.parametrize("which", [0, 1])
def test_either_of_two_mbarriers_is_enough(which):
    for mode in modes((1, 2)):
        y = np.zeros(64, np.float32)
        library("faults").run("either", Grid(1, 64, 1, 64), [y, np.int32(which)], mode)
        assert (y == 1).all(), mode


@pytest.mark.parametrize("first", [0, 5])
def test_pages_are_looked_up_by_all_lanes_ahead_of_their_use(first):
    """The first 64 are those of the table as it was when the first was asked for."""
    for mode in modes((1, 2)):
        table, end = np.arange(1000, 1055, dtype=np.int32), 109
        wanted = table[np.arange(first, end) // 2]
        found = np.zeros((end - first, 32), np.int32)
        arguments = [table, found, np.int32(first), np.int32(end)]
        library("primitives").run("pages_ahead", Grid(1, 32, 1, 0), arguments, mode)
        assert (found[:64] == wanted[:64, None]).all(), mode
        assert (found[64:] == -1).all(), mode


@pytest.mark.parametrize("counts", [(1,), (9, 4, 1, 1, 5), (1, 40, 3, 30, 2)])
def test_neighbours_begin_with_every_fourth_token_of_a_request(counts):
    ahead = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
    firsts = [row for row, before in enumerate(ahead) if before % 4 == 0]
    for mode in modes((1, 2)):
        found = np.full(len(ahead) + 3, -1, np.int32)
        arguments = [ahead, found, np.int32(len(ahead))]
        grid = Grid(1, 32, 1, 4 * (len(ahead) + 2))
        library("primitives").run("neighbours", grid, arguments, mode)
        wanted = [len(firsts), *firsts, len(ahead)]
        assert found.tolist() == wanted + [-1] * (len(found) - len(wanted)), mode


def test_predictions_know_how_many_tiles_have_their_pages_looked_up_at_once():
    found = np.zeros(6, np.int32)
    library("primitives").run("pages_at_once", Grid(1, 32, 1, 0), [found])
    shapes = (16, 32), (64, 16), (1, 32), (1, 64), (1, 2), (16, 2)
    assert [looked_up_together(tokens, page) for page, tokens in shapes] == [*found]
    assert [*found] == [16, 32, 1, 1, 16, 32]


def test_warps_exchange_values():
    x = values(32)
    y = np.zeros((5, 32), np.float32)
    library("primitives").run("warps", Grid(1, 32, 1, 0), [x, y])
    total = x.copy()
    for mask in (16, 8, 4, 2, 1):
        total = total + total[np.arange(32) ^ mask]
    assert (y[0] == total).all()
    assert (y[1].reshape(2, 16) == x.reshape(2, 16).max(1, keepdims=True)).all()
    four = x.reshape(8, 4)
    pairs = four + four[:, [2, 3, 0, 1]]
    assert (y[2].reshape(8, 4) == pairs + pairs[:, [1, 0, 3, 2]]).all()
    assert (y[3] == x[(np.arange(32) + 5) % 32]).all()
    assert (y[4] == x[np.arange(32) ^ 9]).all()


def test_a_grid_meets_when_all_its_blocks_are_alive():
    for mode in modes():
        total, counter = np.zeros(1, np.float32), np.zeros(1, np.uint32)
        y = np.zeros((2, 12), np.float32)
        grid = Grid(12, 64, 4, 0, whole_grid=True)
        library("primitives").run("grid_total", grid, [total, y, counter], mode)
        assert (y == [[66.0], [132.0]]).all(), mode


def test_a_grid_whose_blocks_are_not_all_alive_cannot_meet():
    total, counter = np.zeros(1, np.float32), np.zeros(1, np.uint32)
    y = np.zeros((2, 12), np.float32)
    with pytest.raises(ExecutorError, match=r"deadlock: .* in grid_wait"):
        library("primitives").run("grid_total", Grid(12, 64, 4, 0), [total, y, counter])


def bits(values, kind):
    """Values that both kinds represent exactly, as 16-bit words."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_fragments_multiply(kind):
    """Fragment layouts of mma.m16n8k16 as the PTX ISA gives them."""
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (16, 16)).astype(np.float32)
    b = rng.integers(-4, 5, (16, 8)).astype(np.float32)
    c = rng.integers(-9, 9, (16, 8)).astype(np.float32)
    left, right, sums = (np.zeros((32, n), t) for n, t in ((8, "u2"), (4, "u2"), (4, "f4")))
    for lane in range(32):
        group, place = divmod(lane, 4)
        for i in range(8):
            row = group + 8 * (i // 2 % 2)
            left[lane, i] = bits(a[row, 2 * place + i % 2 + 8 * (i // 4)], kind)
        for i in range(4):
            right[lane, i] = bits(b[2 * place + i % 2 + 8 * (i // 2), group], kind)
            sums[lane, i] = c[group + 8 * (i // 2), 2 * place + i % 2]
    library("primitives").run(f"fragment_{kind}", Grid(1, 32, 1, 0), [left, right, sums])
    expected = c + a @ b
    for lane in range(32):
        for i in range(4):
            assert sums[lane, i] == expected[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]


def test_f16_conversions_are_those_of_numpy():
    x = np.arange(512, dtype=np.uint16) * 127
    x = np.where(np.isnan(x.view(np.float16)), 0, x).astype(np.uint16)
    v = (values(512) * np.float32(10) ** np.linspace(-9, 6, 512)).astype(np.float32)
    wide, narrow = np.zeros(512, np.float32), np.zeros(512, np.uint16)
    library("primitives").run("convert_f16", Grid(1, 64, 1, 0), [x, v, wide, narrow])
    assert (wide == x.view(np.float16).astype(np.float32)).all()
    with np.errstate(over="ignore"):
        assert (narrow == v.astype(np.float16).view(np.uint16)).all()


def test_bf16_conversions_round_to_nearest_even():
    x = np.arange(512, dtype=np.uint16) * 63
    v = np.concatenate([values(500), [1.0, 1.00390625, 1.01171875, -1.00390625]]).astype(np.float32)
    v = np.concatenate([v, np.zeros(512 - len(v), np.float32)])
    wide, narrow = np.zeros(512, np.float32), np.zeros(512, np.uint16)
    library("primitives").run("convert_bf16", Grid(1, 64, 1, 0), [x, v, wide, narrow])
    assert (wide.view(np.uint32) == x.astype(np.uint32) << 16).all()
    torch = pytest.importorskip("torch")
    expected = torch.from_numpy(v).to(torch.bfloat16).view(torch.int16).numpy()
    assert (narrow.view(np.int16) == expected).all()


@pytest.mark.parametrize(("pitch", "factor"), [(8, 1), (64, 8), (72, 1), (16, 2)])
def test_the_lint_counts_bank_conflicts(pitch, factor):
    y = np.zeros(32, np.float32)
    grid = Grid(1, 32, 1, 64 * pitch)
    counts = library("primitives").run("strided", grid, [y, np.int32(pitch)], lint=True)
    assert counts.shared_load_cycles == factor * counts.shared_loads == factor * 4


# --- faults ---


def found(kernel, grid, arguments, which=None):
    """The messages and wrong results of a kernel over all modes."""
    seen = []
    for mode in which or modes():
        y = np.zeros(256, np.float32)
        try:
            library("faults").run(
                kernel, grid, [a if a is not None else y for a in arguments], mode
            )
        except ExecutorError as problem:
            seen.append(str(problem))
        else:
            seen.append(y)
    return seen


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("half_a_barrier", "deadlock: 32 threads wait for ever: block 0 thread 0 in group_sync"),
        ("lanes_apart", "lanes of a warp meet at lines"),
        ("too_many_arrivals", "more arrivals at an mbarrier than its phase has"),
    ],
)
def test_faults_that_end_a_run(kernel, message):
    for seen in found(kernel, Grid(1, 64 if "half" in kernel else 32, 1, 64), [None]):
        assert message in seen


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("waits_without_arrival", "waits for its cluster and has not arrived"),
        ("arrives_twice", "arrives at the barrier of its cluster twice"),
        ("ends_before_waiting", "ends that has arrived at the barrier of its cluster and not wait"),
    ],
)
def test_the_halves_of_a_cluster_barrier_belong_together(kernel, message):
    for seen in found(kernel, Grid(2, 32, 2, 64), [None]):
        assert message in seen


def test_a_stack_that_is_too_deep():
    (seen,) = found("deep_stack", Grid(1, 32, 1, 64), [None], [Mode()])
    assert "a thread's stack is too deep" in seen


def test_a_write_behind_shared_memory():
    for seen in found("writes_behind_shared_memory", Grid(2, 32, 1, 256), [None]):
        assert "block 0 wrote behind its 256 bytes of shared memory" in seen


def test_a_rank_outside_of_the_cluster():
    for seen in found("no_such_rank", Grid(2, 32, 2, 64), [None]):
        assert "rank 2 in a cluster of 2" in seen


def test_a_copy_that_nobody_waits_for():
    late = [m for m in modes() if m.late_copies]
    for seen in found("copy_nobody_awaits", Grid(1, 32, 1, 256), [values(64), None], late):
        assert "ended with 1 copies under way" in seen


@pytest.mark.parametrize(
    ("bytes_", "at", "message"),
    [(24, 64, "multiples of 16"), (64, 72, "multiples of 16"), (256, 64, "past the end")],
)
def test_copies_that_hardware_would_refuse(bytes_, at, message):
    arguments = [values(64), None, np.int32(bytes_), np.int32(at)]
    for seen in found("odd_copy", Grid(1, 32, 1, 256), arguments):
        assert message in seen


@pytest.mark.parametrize(
    ("bytes_", "at", "message"),
    [
        (24, 0, "no multiple of 16"),
        (16, 8, "no multiple of 16"),
        (0, 0, "no multiple of 16"),
        (272, 0, "not all in one array"),
        (32, 240, "not all in one array"),
        (16, 256, "not all in one array"),
        (16, -16, "not all in one array"),
    ],
)
def test_prefetches_of_what_is_not_there(bytes_, at, message):
    arguments = [values(64), None, np.int32(bytes_), np.int32(at)]
    for seen in found("odd_prefetch", Grid(1, 32, 1, 0), arguments):
        assert message in seen


def test_prefetched_bytes_are_counted():
    arguments = [values(64), values(64), np.int32(96), np.int32(160)]
    counts = library("faults").run("odd_prefetch", Grid(3, 32, 1, 0), arguments)
    assert (counts.prefetched_bytes, counts.copied_bytes) == (3 * 96, 0)


def test_bytes_that_never_come():
    for seen in found("short_copy", Grid(1, 32, 1, 256), [values(64), None]):
        assert "deadlock: 1 threads wait for ever: block 0 thread 0 in wait on an mbarrier" in seen


def test_neither_of_two_mbarriers():
    for seen in found("either", Grid(1, 64, 1, 64), [None, np.int32(2)]):
        assert "block 0 thread 0 in wait on two mbarriers" in seen
    watched = Library((HERE / "faults.cu").read_text(encoding="utf-8"), toolchain=WATCHED)
    with pytest.raises(ExecutorError, match="an mbarrier that was not initialised"):
        watched.run("either", Grid(1, 64, 1, 64), [np.zeros(64, np.float32), np.int32(3)])


def test_a_missing_barrier_shows_as_other_numbers():
    x = values(128)
    expected = x[(np.arange(128) + 33) % 128]
    results = found("no_block_sync", Grid(1, 128, 1, 512), [x, None])
    assert any(not np.array_equal(y[:128], expected) for y in results)


def test_a_sum_into_a_buffer_that_a_copy_still_reads():
    x = values(4, 64)
    late = [m for m in modes((1, 2, 3)) if m.late_copies]
    results = found("reduce_in_place", Grid(4, 64, 4, 1024), [x, None], late)
    assert any(not np.allclose(y.reshape(4, 64), x.sum(0), atol=1e-5) for y in results)


def test_a_block_that_leaves_while_a_peer_reads():
    x = values(32)
    results = found("leaves_early", Grid(2, 32, 2, 128), [x, None])
    assert any(not np.array_equal(y[:32], x) for y in results)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Grid(1, 33, 1, 0), "multiple of 32"),
        (Grid(3, 32, 2, 0), "whole clusters"),
        (Grid(17, 32, 17, 0), "whole clusters"),
        (Grid(1, 32, 1, 300000), "at most 232448"),
    ],
)
def test_launches_that_no_device_takes(grid, message):
    with pytest.raises(ExecutorError, match=message):
        library("primitives").run("warps", grid, [values(32), values(160)], Mode())


def test_an_array_with_gaps_is_refused():
    with pytest.raises(TypeError, match="not contiguous"):
        library("primitives").run("warps", Grid(1, 32, 1, 0), [values(64)[::2], values(160)])


def test_kernels_of_small_models_are_compiled_in_less_time():
    assert toolchain_for(1 << 20) is QUICK and toolchain_for(1 << 28) is CXX
    assert "-Og" in QUICK.flags and "-O2" in CXX.flags

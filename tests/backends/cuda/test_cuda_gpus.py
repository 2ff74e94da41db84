"""Grids on several GPUs at once: what the executor shows of symmetric memory and reports."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda.executor import (
    CXX,
    QUICK,
    WATCHED,
    ExecutorError,
    Grid,
    Library,
    Mode,
    modes,
    symmetric_memory,
)

TEXT = (Path(__file__).parent / "gpus.cu").read_text(encoding="utf-8")
BLOCKS, THREADS = 2, 64
NAN = 0xFFFFFFFF
GRID = Grid(BLOCKS, THREADS, 1, 128)

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@cache
def library(watched=False):
    return Library(TEXT, toolchain=WATCHED if watched else QUICK)


def exchange(kernel, gpus, mode, watched=False):
    """Sums of small whole numbers, exact in bf16, by GPU; and what they ought to be."""
    rows = gpus * BLOCKS * THREADS * 8
    values = symmetric_memory(0, gpus, [rows], np.uint16)
    sums = symmetric_memory(1, gpus, [rows], np.uint16)
    signals = symmetric_memory(2, gpus, [BLOCKS * gpus], np.uint32, signals=True)
    random = np.random.default_rng(gpus)
    numbers = random.integers(-8, 9, (gpus, rows)).astype(np.float32)
    for part, own in zip(values.parts, numbers, strict=True):
        part[:] = own.view(np.uint32) >> 16
    arguments = [
        [
            np.uint64(values.multicast), np.uint64(sums.multicast), signals.addresses,
            np.int32(rank), np.int32(gpus),
        ]
        for rank in range(gpus)
    ]  # fmt: skip
    moved = library(watched).run_on_gpus(kernel, GRID, arguments, [values, sums, signals], mode)
    found = np.stack([(p.astype(np.uint32) << 16).view(np.float32) for p in sums.parts])
    return found, numbers.sum(0), moved


@pytest.mark.parametrize("gpus", [1, 2, 3, 16])
def test_all_gpus_get_the_sums_in_every_mode(gpus):
    for mode in modes([1, 2]) if gpus == 3 else [Mode(), Mode("random", True)]:
        found, wanted, moved = exchange("right", gpus, mode)
        assert (found == wanted).all()
        # 16 bytes of each load and each store pass the links of their GPU once.
        assert moved == (gpus > 1) * gpus * BLOCKS * THREADS * 32


FAULTS = {
    "no_front": r"reads byte \d+ of GPU \d's .* which the grid in front of GPU \d uses",
    "no_start": r"reads byte \d+ of GPU \d's .* which the grid in front of GPU \d uses",
    "no_end": r"the grid of GPU \d ends, whose symmetric memory \d thread \d+ of block \d of GPU|"
    r"GPU \d's symmetric memory \d behind the end of the grid there",
    "others_read": r"thread \d+ of block \d of GPU \d reads .* the grid in front of GPU \d uses",
    "others_wrote": r"the grid of GPU \d ends, .* thread \d+ of block \d of GPU \d uses",
    "one_puts": r"deadlock: \d+ threads wait for ever: GPU \d block \d thread \d+ in .*"
    r"wait_signal \(word \d+ of GPU \d\)",
    "wrong_slot": r"deadlock: .* GPU \d block \d thread \d+ in .*_signal \(word",
    "put_twice": r"nobody waits for the signal in word 0 of GPU 0",
    "same_row": r"GPU \d writes byte \d+ of GPU \d's .* GPU \d uses: no release and acquire",
}


@pytest.mark.parametrize("kernel", FAULTS)
def test_a_fault_is_told_in_every_mode(kernel):
    for mode in modes():
        with pytest.raises(ExecutorError, match=FAULTS[kernel]):
            exchange(kernel, 3, mode)


def handed_on(mode, in_order, watched=False):
    parts = symmetric_memory(0, 3, [2 * THREADS, 4], np.uint32)
    signals = symmetric_memory(1, 3, [4 * 3 + 1], np.uint32, signals=True)
    arguments = [
        [
            parts.addresses, signals.addresses, np.zeros(1, np.uint32), np.int32(rank),
            np.int32(3), np.int32(in_order),
        ]
        for rank in range(3)
    ]  # fmt: skip
    library(watched).run_on_gpus("handed_on", GRID, arguments, [parts, signals], mode)
    return parts.parts[2]


def test_an_order_goes_through_other_gpus_and_blocks():
    for mode in modes():
        found = handed_on(mode, True)
        assert (found[:, 0] == np.arange(2 * THREADS) % THREADS).all()
        assert (found[:THREADS, 1:] == [1, 2, 3]).all()
        assert (found[THREADS:, 1:] == [11, 2, 3]).all()
        with pytest.raises(ExecutorError, match=r"a race between GPUs: .* GPU 2"):
            handed_on(mode, False)


MISUSE = (
    (0, "load_sum_of_gpus of an address that is no multicast address"),
    (1, "store_to_gpus of an address that is no multiple of 16"),
    (2, "load_from_gpu of an address outside of symmetric memory"),
    (3, "store_to_gpu of a word for signals"),
    (4, "put_signal outside of the words for signals"),
    (5, "gpu_arrive outside of the counters of arrivals"),
    (6, "load_sum_of_gpus of an address that is no multicast address"),
)


@pytest.mark.parametrize(("how", "words"), MISUSE)
def test_misuse_is_refused(how, words):
    with pytest.raises(ExecutorError, match=re.escape(words)):
        misuse(how)


def misuse(how, watched=False):
    values = symmetric_memory(0, 2, [64], np.uint16)
    parts = symmetric_memory(1, 2, [64], np.uint32)
    signals = symmetric_memory(2, 2, [64], np.uint32, signals=True)
    one = [np.uint64(values.multicast), parts.addresses, signals.addresses, np.int32(how)]
    library(watched).run_on_gpus("misused", GRID, [one, one], [values, parts, signals])


def test_clusters_and_too_many_gpus_are_refused():
    values = symmetric_memory(0, 2, [64], np.uint16)
    for grid, count, words in (
        (Grid(2, 64, 2, 128), 2, "clusters in a grid of several GPUs"),
        (GRID, 17, "1 to 16 GPUs"),
    ):
        arguments = [[np.uint64(0), values.addresses, values.addresses, np.int32(0)]] * count
        with pytest.raises(ExecutorError, match=words):
            library().run_on_gpus("misused", grid, arguments, [values])


def peek(mode, watched=False):
    sums = symmetric_memory(0, 2, [2 * THREADS, 4], np.float32)
    signals = symmetric_memory(1, 2, [BLOCKS * 2], np.uint32, signals=True)
    y = [np.zeros((BLOCKS, THREADS), np.float32) for _ in range(2)]
    arguments = [
        [
            np.uint64(sums.multicast),
            sums.addresses,
            y[r],
            signals.addresses,
            np.int32(r),
            np.int32(2),
        ]
        for r in range(2)
    ]
    library(watched).run_on_gpus("peeks", GRID, arguments, [sums, signals], mode)
    return y


def test_a_store_is_visible_only_behind_release_and_acquire():
    """A plain load of a peer's store before the meeting that would show it."""
    for mode in modes():
        found = np.stack(peek(mode))[:, 0].view(np.uint32)
        seen = set(found.ravel().tolist())
        if mode.late_copies:
            assert NAN in seen and seen <= {0, NAN}
        else:
            assert 1 in seen and seen <= {0, 1}


ENDS = (
    "own store", "store known", "store unknown", "load unknown", "first known", "second known",
    "store late", "same block", "second late",
)  # fmt: skip

WANTED = {"own store": 2 * [6, 5, 5, 5], "store known": 4 * [7] + 4 * [5]}
AT_THE_END = (
    r"the grid of GPU 1 ends, .* of GPU \d uses|GPU \d .* GPU 1's .* behind the end of the grid"
    r"|GPU 1 writes byte 0 of GPU 1's .* thread (0|40) of block 0 of GPU 1 uses"
)


def run_of_words(kernel, number, mode):
    """Words of GPU 1 behind a run of three."""
    parts = symmetric_memory(0, 3, [8], np.uint32)
    for part in parts.parts:
        part[:] = 5
    signals = symmetric_memory(1, 3, [8], np.uint32, signals=True)
    arguments = [
        [parts.addresses, signals.addresses, np.int32(rank), np.int32(number)] for rank in range(3)
    ]
    library().run_on_gpus(kernel, GRID, arguments, [parts, signals], mode)
    assert all((parts.parts[rank] == 5).all() for rank in (0, 2))
    return parts.parts[1].tolist()


@pytest.mark.parametrize("ending", ENDS)
def test_a_grid_ends_behind_all_uses_of_its_memory(ending):
    """Where only its own threads know of a store, that is enough, if these know of each other."""
    for mode in modes():
        if ending in WANTED:
            assert run_of_words("ends", ENDS.index(ending), mode) == WANTED[ending]
        else:
            with pytest.raises(ExecutorError, match=AT_THE_END):
                run_of_words("ends", ENDS.index(ending), mode)


def test_a_block_knows_what_a_group_of_its_threads_does():
    for mode in modes():
        assert run_of_words("grouped", 0, mode) == [7] * 8


@pytest.mark.parametrize("how", [1, 2], ids=["other threads", "fewer threads"])
def test_groups_of_changing_threads_are_refused(how):
    with pytest.raises(ExecutorError, match="a group barrier of changing threads"):
        run_of_words("grouped", how, Mode())


def test_a_signal_waits_until_the_one_before_is_taken():
    for mode in modes():
        assert run_of_words("in_turn", 3, mode) == [5] * 8


def test_a_grid_of_one_gpu_has_no_symmetric_memory():
    parts = symmetric_memory(0, 1, [64], np.uint32)
    one = [np.uint64(parts.multicast), parts.addresses, parts.addresses, np.int32(0)]
    with pytest.raises(ExecutorError, match="load_sum_of_gpus in a grid of a single GPU"):
        library().run("misused", GRID, one)


@pytest.mark.parametrize("known", [0, 2])
def test_a_store_must_know_of_every_load_before(known):
    for mode in modes():
        assert run_of_words("overwrites", 3, mode) == [7] * 4 + [5] * 4
        with pytest.raises(ExecutorError, match=r"of GPU \d (reads|writes) byte 0 of GPU 1's"):
            run_of_words("overwrites", known, mode)


@pytest.mark.parametrize(
    "shown", [0, 1, 2, 3, 5], ids=["block", "signal", "group", "warp", "other_group"]
)
def test_a_plain_load_sees_what_is_known(shown):
    for mode in modes():
        assert run_of_words("loads_plainly", shown, mode) == [7] * 8


SEVEN = 0x40E00000  # 7.0f


def test_an_mbarrier_shows_what_its_phase_ends_behind():
    for mode in modes():
        assert run_of_words("arrives", 1, mode)[4:] == [SEVEN] * 4
    late = {run_of_words("arrives", 0, mode)[4] for mode in modes([1, 2]) if mode.late_copies}
    assert late == {5, NAN}


def counted(told, mode, watched=False):
    """What GPU 1 has behind two meetings of three GPUs, of which so many are told."""
    parts = symmetric_memory(0, 3, [8], np.uint32)
    counters = symmetric_memory(1, 3, [1], np.uint32, counters=True)
    met = [np.zeros(1, np.uint32) for _ in range(3)]
    given = [
        [parts.addresses, counters.addresses, met[rank], np.int32(rank), np.int32(told)]
        for rank in range(3)
    ]
    library(watched).run_on_gpus("told_by_counters", GRID, given, [parts, counters], mode)
    assert [c.tolist() for c in counters.parts] == [[6]] * 3
    return parts.parts[1][[0, 4]].tolist()


def test_counters_of_arrivals_join_all_blocks_of_all_gpus():
    for mode in modes([1, 2]):
        assert counted(3, mode) == [SEVEN] * 2
    assert counted(3, Mode("random", True, 7), watched=True) == [SEVEN] * 2
    with pytest.raises(ExecutorError, match="deadlock: 384 threads wait for ever"):
        counted(2, Mode())


def test_results_of_the_grid_in_front_may_not_be_there_before_the_wait():
    """They are where another thread has passed that."""
    seen = {mode: run_of_words("loads_plainly", 4, mode)[4] for mode in modes()}
    assert {word for mode, word in seen.items() if not mode.late_copies} == {5}
    assert {word for mode, word in seen.items() if mode.late_copies} == {5, NAN}


@pytest.mark.slow
def test_plain_accesses_are_watched():
    with pytest.raises(ExecutorError, match="a race between GPUs"):
        peek(Mode(), watched=True)
    for how, words in (
        (7, "a plain access of a word for signals"),
        (8, "an access past the end of symmetric memory 1"),
        (9, "a plain access of a multicast address"),
    ):
        with pytest.raises(ExecutorError, match=words):
            misuse(how, watched=True)
    for mode in (Mode(), Mode("random", True, 3)):
        found, wanted, _ = exchange("right", 2, mode, watched=True)
        assert (found == wanted).all()

"""Accesses outside of the arrays of a launch end a run of the executor, watched or not."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.cuda.executor import CXX, QUICK, WATCHED, ExecutorError, Grid, Library
from meshc.backends.cuda.executor.guarded_memory import GuardedMemory, guarded, memory_of, placed

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

TOOLS = {"optimised": CXX, "quick": QUICK, "watched": WATCHED}
GRID = Grid(1, 32, 1, 256)


@cache
def library(tool):
    text = (Path(__file__).parent / "memory.cu").read_text(encoding="utf-8")
    return Library(text, toolchain=TOOLS[tool])


def run(tool, kernel, at, x=None, y=None):
    """What the kernel gives 40 numbers for 40, of which each of 32 threads uses one ``at`` more."""
    x = np.arange(40, dtype=np.float32) if x is None else x
    y = np.zeros(40, np.float32) if y is None else y
    library(tool).run(kernel, GRID, [x, y, np.int32(at)])
    return y


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_within_the_arrays_is_used(tool):
    assert (run(tool, "reads", 8)[:32] == np.arange(8, 40)).all()
    assert (run(tool, "writes", 8)[8:] == np.arange(32)).all()
    assert (run(tool, "copies", 8)[:32] == np.arange(8, 40)).all()


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("kernel", "at", "words"),
    [
        (
            "reads",
            9,
            "thread 31 of block 0 reads memory 0 bytes behind argument 0, an array",
        ),
        ("reads", 50, "thread 0 of block 0 reads memory 40 bytes behind argument 0"),
        ("reads", 100_000, "thread 0 of block 0 reads memory 399840 bytes behind argument 0"),
        ("reads", -2000, "thread 0 of block 0 reads memory 8000 bytes in front of argument 0"),
        (
            "writes",
            9,
            "thread 31 of block 0 writes memory 0 bytes behind argument 1, an array",
        ),
        ("writes", -1, "in front of argument 1"),
        ("writes", -2000, "thread 0 of block 0 writes memory 8000 bytes in front of argument 1"),
        ("copies", 12, "a copy of 128 bytes that are not all in one array of the launch"),
        ("copies", -4, "a copy of 128 bytes that are not all in one array of the launch"),
    ],
)
def test_what_is_outside_of_them_ends_the_run(kernel, at, words, tool):
    with pytest.raises(ExecutorError, match=words):
        run(tool, kernel, at)
    assert (run(tool, "reads", 0)[:32] == np.arange(32)).all(), "the process goes on"


def test_watched_runs_notice_what_another_part_of_an_array_has():
    """A layer's part of a cache is given, and the next layer's used."""
    both = guarded(np.arange(80, dtype=np.float32).reshape(2, 40))
    assert run("quick", "reads", 40, both[0])[0] == 40
    with pytest.raises(ExecutorError, match="reads memory 0 bytes behind argument 0"):
        run("watched", "reads", 40, both[0])


def test_arrays_that_overlap_do_so_in_guarded_memory():
    x = np.arange(60, dtype=np.float32)
    wanted = x.copy()
    for n in range(32):  # threads run one after the other
        wanted[20 + n] = wanted[n]
    run("quick", "writes", 0, x[:32], x[20:])
    assert (x == wanted).all()
    with placed([x, x[10:20], x[::2], np.int32(3)]) as given:
        first, second, gaps, number = given
        assert memory_of(first) is memory_of(second) is not None
        assert second.ctypes.data - first.ctypes.data == 40
        assert memory_of(gaps) is None and number == 3
        second += 1000
    assert (x[10:20] >= 1000).all() and (x[20:] < 1000).all()


def test_constants_are_given_and_stay_what_they_are():
    x = np.arange(40, dtype=np.float32)
    x.flags.writeable = False
    assert run("quick", "reads", 0, x)[5] == 5


@pytest.mark.parametrize("count", [0, 1, 4096, 5000, 1 << 21])
def test_guarded_memory_ends_where_its_array_does(count):
    array = guarded(np.full(count, 7, np.uint8))
    memory = memory_of(array[count // 2 :])
    assert isinstance(memory, GuardedMemory) and not memory.written
    left = memory.end - (1 << 20) - (array.ctypes.data + count)
    assert left == -count % 16 or not count
    assert array.ctypes.data % 16 == 0
    assert (array == 7).all()


def test_what_lies_behind_an_array_of_no_whole_sixteen_bytes_is_looked_at():
    y = np.zeros(37, np.float32)
    run("quick", "writes", 5, y=y)
    assert y[36] == 31
    with pytest.raises(ExecutorError, match="something was written behind argument 1"):
        run("quick", "writes", 6, y=y)

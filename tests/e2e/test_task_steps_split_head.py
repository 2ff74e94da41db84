"""Steps whose blocks share the lanes of a head: right, in every order, in clusters of any size."""

from dataclasses import replace

import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_step_cases import CASES
from task_steps import Judge, mode_of

from meshc.backends.cuda.executor import CXX, WATCHED, Mode, modes
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def judge_of(name, seed, folder, cluster, cores):
    return Judge.of(replace(CASES[name], cores=cores), seed, folder, cluster, "lanes")


@pytest.mark.parametrize(
    ("name", "cluster"),
    only(
        [(name, size) for name in ("llama", "parts") for size in (2, 4, 8, 16)]
        + [("windows", size) for size in (2, 4)],
        ("llama", 8), ("windows", 2), ("parts", 4),
    ),
)  # fmt: skip
def test_clusters_of_any_size(name, cluster, tmp_path):
    """Lanes that are no whole copy are filled up; windows, sinks, caps, norms of heads, batches."""
    judge = judge_of(name, 1, tmp_path, cluster, 2 * cluster)
    assert judge.step.program.kernels["step"].cluster == cluster
    judge.check()


@pytest.mark.parametrize("name", only(["llama", "windows"], "llama"))
def test_every_order_of_threads_and_copies_gives_the_same_bits(name, tmp_path):
    judge = judge_of(name, 2, tmp_path, 2, 4)
    first, *others = [judge.check(mode=mode) for mode in modes()]
    pairs = [pair for found in others for pair in zip(first, found, strict=True)]
    assert all((one == other).all() for one, other in pairs)


def test_no_two_threads_race(tmp_path):
    short = replace(CASES["llama"], cores=4, positions=((37,),))
    judge = Judge.of(short, 3, tmp_path, 2, "lanes")
    for late in (0, 1):
        judge.check(mode=Mode("random", late, 5), toolchain=WATCHED)


@pytest.mark.parametrize("seed", only(range(100), 3, 12, 33))
def test_drawn_decoders(seed, tmp_path):
    drawn = drawn_decoder(seed)
    cluster = (2, 4)[seed % 2]
    drawn = replace(drawn, cores=max(drawn.cores, cluster))
    try:
        judge = Judge.of(drawn, seed, tmp_path, cluster, "lanes")
    except MeshcError as refusal:
        (error,) = refusal.diagnostics
        assert error.code in ("does-not-fit", "no-tasks"), refusal
        return
    judge.check(mode=mode_of(seed))


EDITS = {
    "products of the first part for all": ("+ 320 * part", "+ 0 * part"),
    "the new key in the place of another": (
        "                                products_of_lanes[16 * element + pos - 16 * n] = v;",
        "                                products_of_lanes[16 * element] = v;",
    ),
    "the values of another part": (
        "::bring(ring, item, 0, cache_v + (size_t)layer * 10240, from, 2 * g + part",
        "::bring(ring, item, 0, cache_v + (size_t)layer * 10240, from, 2 * g + 1 - part",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edits_are_noticed(name, tmp_path):
    judge = judge_of("llama", 1, tmp_path, 2, 4)
    step = judge.step.edited("step.cu", *EDITS[name])
    with pytest.raises(AssertionError):
        judge.check(step)

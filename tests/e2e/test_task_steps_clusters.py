"""Steps whose attention clusters of blocks have: right, in every order, by any number of them."""

from dataclasses import replace

import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_step_cases import CASES, LLAMA
from task_steps import Judge, mode_of

from meshc.backends.cuda.executor import CXX, WATCHED, Mode, modes
from meshc.backends.cuda.tasks.clusters import Clusters
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def judge_of(name, seed, folder, cluster, cores):
    return Judge.of(replace(CASES[name], cores=cores), seed, folder, cluster)


def same(found):
    first, *others = found
    return all(
        (one == other).all() for logits in others for one, other in zip(first, logits, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "cluster"),
    only(
        [(name, size) for name in CASES for size in (1, 2, 4, 8, 16)],
        ("llama", 1), ("llama", 4), ("llama", 16), ("windows", 2), ("parts", 8),
    ),
)  # fmt: skip
def test_clusters_of_any_size(name, cluster, tmp_path):
    """Key heads of ``windows`` are no whole groups of rows: clusters have attention alone."""
    judge = judge_of(name, 1, tmp_path, cluster, 2 * cluster)
    kernel = judge.step.program.kernels["step"]
    assert kernel.cluster == cluster and kernel.blocks == 2 * cluster
    assert ("mc::cluster_put<CLUSTER>" in judge.step.text) == (name != "windows")
    judge.check()


@pytest.mark.parametrize("clusters", only([2, 5], 2))
def test_any_number_of_clusters_gives_the_same_bits(clusters, tmp_path):
    """Two key heads, of which a cluster may have both."""
    judge = judge_of("llama", 6, tmp_path, 4, 4)
    assert same([judge.check(), judge.check(judge.step.with_blocks(4 * clusters))])


def test_how_many_blocks_there_are_at_least():
    """5 clusters have 2 of 8 groups and 1 of 5: with 4 of them one had 2 of 5."""
    values = (object(),)
    assert Clusters(4, 20, values, frozenset({8})).least_blocks == 16
    assert Clusters(4, 20, values, frozenset({8, 5})).least_blocks == 20
    assert Clusters(4, 20, (), frozenset({8, 5})).least_blocks == 4


@pytest.mark.parametrize(("name", "cluster"), only([("llama", 2), ("windows", 4)], ("llama", 2)))
def test_every_order_of_threads_and_copies_gives_the_same_bits(name, cluster, tmp_path):
    judge = judge_of(name, 2, tmp_path, cluster, 8)
    assert same([judge.check(mode=mode) for mode in modes()])


@pytest.mark.parametrize(("name", "cluster"), only([("llama", 4), ("windows", 2)], ("llama", 4)))
def test_no_two_threads_race(name, cluster, tmp_path):
    judge = judge_of(name, 3, tmp_path, cluster, 8)
    watched = [judge.check(mode=Mode("random", late, 5), toolchain=WATCHED) for late in (0, 1)]
    assert same([judge.check(), *watched])


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [4, 2])
def test_all_blocks_of_a_full_grid_are_watched(cluster, tmp_path):
    """As many clusters as an H200 has; a meeting of a cluster left out is a race, or a NaN."""
    decoder = replace(LLAMA.decoder, words=132 * 16, layers=1)
    wide = replace(LLAMA, decoder=decoder, cores=132, positions=((99,),))
    judge = Judge.of(wide, 4, tmp_path, cluster)
    assert judge.step.program.kernels["step"].blocks == {4: 124, 2: 132}[cluster]
    judge.check(toolchain=WATCHED)
    meeting = (
        "    mc::cluster_publish<CLUSTER>(published + round % 2, round / 2 & 1, me, WORKERS, 1);\n"
    )
    alone = "    mc::group_sync(1, WORKERS);\n"
    with pytest.raises((MeshcError, AssertionError), match=r"a race: thread|nan"):
        judge.check(judge.step.edited("step.cu", meeting, alone), toolchain=WATCHED)


@pytest.mark.parametrize("seed", only(range(100), 3, 5, 12))
def test_drawn_decoders(seed, tmp_path):
    drawn = drawn_decoder(seed)
    cluster = (2, 4, 8)[seed % 3]
    drawn = replace(drawn, cores=max(drawn.cores, cluster))
    try:
        judge = Judge.of(drawn, seed, tmp_path, cluster)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        wide = drawn.batch * drawn.decoder.heads * drawn.decoder.lanes
        assert wide >= 4096 or "of a cluster" in (refusal.diagnostics[0].help or "")
        return
    judge.check(mode=mode_of(seed))


EDITS = {
    "values that one block of a cluster gets": (
        "mc_collectives.cuh", "rank < N; rank++) store_peer", "rank < 1; rank++) store_peer",
    ),
    "a group fewer of a cluster": (
        "mc_tasks.cuh", "last_group = groups * ((int)cluster_index() + 1) / (int)clusters();",
        "last_group = groups * ((int)cluster_index() + 1) / (int)clusters() - 1;",
    ),
    "tasks of the block of another rank": (
        "mc_tasks.cuh", "begin = tasks * (int)cluster_rank() / N;",
        "begin = tasks * ((int)cluster_rank() ^ 1) / N;",
    ),
    "records of the first vector for all": (
        "mc_tasks.cuh", "records + (size_t)b * apart", "records + (size_t)0 * apart",
    ),
    "one mbarrier for all meetings": ("step.cu", "published + round % 2", "published"),
    "blocks that leave before their peers": (
        "step.cu", "    mc::cluster_wait();  // peers may still store here\n", "",
    ),
    "mbarriers that peers have not set up": ("step.cu", "mc::cluster_sync();", "mc::block_sync();"),
}  # fmt: skip
EQUIVALENT = {"tasks of the block of another rank"}
"""Of two blocks one then has all tasks of a group, and the other one none."""


@pytest.mark.parametrize("name", only(EDITS, *list(EDITS)[::3]))
def test_edits_are_noticed(name, tmp_path):
    """By numbers, by a race, or by a deadlock."""
    drawn = replace(CASES["llama"], cores=4, batch=2, positions=((149, 70), (17, 0)))
    judge = Judge.of(drawn, 7, tmp_path, 2)
    step = judge.step.edited(*EDITS[name])
    try:
        for mode in (Mode("forward", False), Mode("random", True, 3), Mode("starve_block", False)):
            judge.check(step, mode, WATCHED)
    except (AssertionError, MeshcError):
        assert name not in EQUIVALENT
    else:
        assert name in EQUIVALENT

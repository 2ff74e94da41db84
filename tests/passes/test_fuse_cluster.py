"""Clusters of blocks compute what the graph does, and have what is theirs to themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from reduced import each

import meshc
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.ir.clone import clone_module
from meshc.ir.ops import task
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.passes.task.fuse_cluster import cluster_bytes
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

DATA = Path(__file__).parents[1] / "data"
FOLDERS = ("tiny", "tiny_cuda", "tiny_dense", "tiny_families")
MODELS = sorted(path for folder in FOLDERS for path in (DATA / folder).iterdir())
GROUPED = DATA / "tiny" / "llama-9h3-tied"


def graph_of(model, batch=1, seq=24, dtype="f32"):
    given = {"phase": "decode", "seq": seq, "device": "h200", "batch": batch}
    return meshc.compile(str(model), dtype=dtype, compile_to="graph", **given).modules["decode"]


def clustered(graph, cluster, blocks, report=None, **grain):
    options = {"rows": 4, "tokens": 4, "heads": "true", **grain}
    text = ",".join(f"{name}={value}" for name, value in options.items())
    passes = meshc.parse_pipeline(
        f"canonicalize,eliminate-transpose,expand-tasks{{{text}}},place-tasks{{blocks={blocks}}},"
        f"fuse-cluster{{cluster={cluster}}},meet,fold-scratch"
    )
    return meshc.PassManager(passes).run(graph, report)


def run_in(module, trace, order):
    session = Session(module, trace.constant, order=order)
    return [array for given, scalars in trace.steps for array in session.step(given, scalars)]


def shows(graph, module, trace, wanted, seeds=3, **order):
    """Whether some order of blocks gives other numbers, or reads what is not there."""
    for seed in range(seeds):
        try:
            found = run_in(module, trace, Order(seed, blocks=True, **order))
            check_outcomes(graph, module, wanted, found)
        except MeshcError as error:
            assert {d.code for d in error.diagnostics} <= {
                "interp-mismatch",
                "interp-uninitialised",
                "interp-view",
            }
            return True
    return False


@pytest.mark.parametrize(("model", "number"), each(zip(MODELS, range(99), strict=False), 10))
def test_clusters_of_any_size(model, number):
    """Blocks run ahead as far as meetings let them; each cluster has memory of its own."""
    cluster, blocks = (1, 2, 4, 8)[number % 4], (8, 5, 16, 24)[number % 4]
    batch, splits = 1 + number % 3, (0, cluster, 3)[number % 3]
    rows = (8, 2, 4)[number % 3]
    graph = graph_of(model, batch)
    module = clustered(graph_of(model, batch), cluster, blocks, splits=splits, rows=rows)
    assert any(op.groups for op in module.walk() if isinstance(op, task.Phase))
    check_claims(module)
    text = meshc.print_module(module)
    assert meshc.print_module(parse_module(Source("again", text))) == text
    trace = random_trace(graph, number, 2)
    wanted = run_trace(graph, trace)
    for order in (None, Order(1), Order(0, blocks=True), Order(1, blocks=True)):
        check_outcomes(graph, module, wanted, run_in(module, trace, order))


def meetings(module):
    return [op for op in module.walk() if isinstance(op, task.Meet)]


def test_a_layer_meets_twice_in_clusters_and_four_times_in_all():
    report = meshc.Diagnostics()
    module = clustered(graph_of(GROUPED), 4, 16, report)
    phases = [op for op in module.walk() if isinstance(op, task.Phase)]
    assert {(p.blocks, p.cluster) for p in phases} == {(16, 4)}
    assert [p.name for p in phases if p.groups] == ["q_k_v", "attend", "o"]
    kinds = [op.kind for op in meetings(module)]
    counter, cluster = "counter", "cluster"
    assert kinds == [counter, cluster, cluster, counter, counter, counter, counter]
    words = [m.message for m in report.messages if m.code == "clusters"]
    assert words == ["4 clusters of 4 blocks have 3 groups of tasks of attend, q_k_v, o"]
    of_cluster = [b.value.name for b in module.buffers if b.cluster]
    assert of_cluster == ["o_1_1", "o_2_1", "v_1", "records"]


def test_all_blocks_meet_where_tasks_have_no_groups_even_in_one_cluster():
    """A launch may have more clusters, or fewer, than the program was placed for."""
    one, several = (
        [op.kind for op in meetings(clustered(graph_of(GROUPED), 4, blocks))] for blocks in (4, 16)
    )
    assert one == several


def test_every_meeting_that_is_left_out_or_too_small_shows():
    graph = graph_of(GROUPED)
    module = clustered(graph_of(GROUPED), 4, 16, splits=4)
    trace = random_trace(graph, 5, 2)
    wanted = run_trace(graph, trace)
    assert not shows(graph, module, trace, wanted)
    for number, meeting in enumerate(meetings(module)):
        assert shows(graph, module, trace, wanted, 8, passed=frozenset({number})), number
        if meeting.kind == task.COUNTER:
            meeting.kind = task.CLUSTER
            assert shows(graph, module, trace, wanted, 8), number
            with pytest.raises(MeshcError, match="may run before"):
                check_claims(module)
            meeting.kind = task.COUNTER


def edited(edit):
    module = clustered(graph_of(GROUPED), 4, 16, splits=4)
    edit(module)
    return module


def phase_of(module, name):
    return next(op for op in module.walk() if isinstance(op, task.Phase) and op.name == name)


def buffer_of(module, name):
    return next(b for b in module.buffers if b.value.name == name)


def ungroup(name):
    def edit(module):
        phase_of(module, name).groups = 0

    return edit


def regroup(name, family, dim):
    def edit(module):
        phase = phase_of(module, name)
        next(f for f in phase.regions[0].ops if f.name == family).grouped = dim

    return edit


def into_cluster(name, place):
    def edit(module):
        buffer_of(module, name).cluster = place

    return edit


EDITS = {
    "q to all blocks": ungroup("q_k_v"),
    "attention to all blocks": ungroup("attend"),
    "output to all blocks": ungroup("o"),
    "columns in place of heads": regroup("o", "o", "g"),
    "what all need in a cluster": into_cluster("o_parts", (1, 1)),
    "the residual in a cluster": into_cluster("x_of_layer", (2, 12)),
    "queries of a head in half the place": into_cluster("o_1_1", (2, 6)),
    "records of the other dim": into_cluster("records", (3, 1)),
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_of_what_is_of_a_cluster_are_noticed_twice(name):
    """By a fact, and by what the tasks compute."""
    module = edited(EDITS[name])
    with pytest.raises(MeshcError) as caught:
        verify_module(module)
        check_claims(module)
    codes = {d.code for d in caught.value.diagnostics}
    assert codes <= {"outside-cluster", "not-ordered", "overwritten"}
    graph = graph_of(GROUPED)
    trace = random_trace(graph, 3, 2)
    assert shows(graph, module, trace, run_trace(graph, trace), 8)


WRONG = {
    "7 blocks are no whole clusters": lambda m: setattr(phase_of(m, "o"), "blocks", 7),
    "but no clusters that have them": lambda m: setattr(phase_of(m, "o"), "cluster", 0),
    "in 4 groups": lambda m: setattr(phase_of(m, "o"), "groups", 4),
    "which of its dims is grouped": regroup("o", "o", ""),
    "it has no dim 's' to be grouped": regroup("o", "o", "s"),
    "has clusters of 2, others have not": lambda m: setattr(phase_of(m, "y"), "cluster", 2),
    "has 9 of dim 2 in a cluster": into_cluster("records", (2, 9)),
}


@pytest.mark.parametrize("words", WRONG)
def test_clusters_that_are_none(words):
    module = clone_module(clustered(graph_of(GROUPED), 4, 16))
    WRONG[words](module)
    with pytest.raises(MeshcError, match=words):
        verify_module(module)


def test_no_clusters_to_meet_in():
    module = clustered(graph_of(GROUPED), 4, 16)
    for op in module.walk():
        if isinstance(op, task.Phase):
            op.cluster = op.groups = 0
    with pytest.raises(MeshcError, match="the blocks of clusters meet, but there are none"):
        verify_module(module)


@pytest.mark.parametrize(
    ("cluster", "blocks", "words"),
    [
        (3, 6, "clusters of 3 blocks: h200 has 1, 2, 4, 8, 16"),
        (8, 5, "5 blocks of h200 are no cluster of 8"),
    ],
)
def test_sizes_that_a_device_lacks(cluster, blocks, words):
    with pytest.raises(MeshcError, match=words):
        clustered(graph_of(GROUPED), cluster, blocks)


def test_tasks_that_are_placed_again_are_of_no_cluster():
    module = clustered(graph_of(GROUPED), 4, 16)
    again = meshc.PassManager(meshc.parse_pipeline("place-tasks{blocks=5}")).run(module)
    text = meshc.print_module(again)
    assert all(words not in text for words in ("grouped =", "task.meet {", "cluster = ["))


def test_tasks_without_a_place():
    passes = meshc.parse_pipeline("expand-tasks{rows=8,tokens=4},fuse-cluster{cluster=2}")
    with pytest.raises(MeshcError, match="tasks are not placed") as caught:
        meshc.PassManager(passes).run(graph_of(GROUPED))
    assert [d.code for d in caught.value.diagnostics] == ["tasks-not-placed"]


def test_clusters_lie_within_groups_of_cores():
    """An H200 has 132 cores in groups of 14 to 18, in which 31 clusters of 4 and 8 of 16 lie."""
    for cluster, blocks in ((1, 132), (2, 132), (4, 124), (8, 120), (16, 112)):
        module = clustered(graph_of(GROUPED), cluster, 132)
        assert phase_of(module, "y").blocks == blocks, cluster


def test_scratch_that_leaves_no_room_for_a_ring_stays_outside():
    """64 records of 41 heads of 128 lanes are more than a block has."""
    report = meshc.Diagnostics()
    graph = graph_of("llama-2-13b", 16, seq=512, dtype="f16")
    module = clustered(graph, 1, 1, report, splits=8, rows=16, tokens=16)
    assert buffer_of(module, "records").cluster is None
    words = [m.message for m in report.messages if m.code == "fuse-cluster"]
    assert words and all("stays in the memory of the GPU: it takes" in text for text in words)
    kept = [cluster_bytes(b) for b in module.buffers if b.cluster]
    assert sum(kept) <= 232_448

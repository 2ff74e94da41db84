"""Steps whose attention clusters of blocks have: who does what, and what their meetings take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_task_work import tasks_of

from meshc.cost.tasks.phase_times import shared_evenly, step_time, time_of_work
from meshc.cost.tasks.stages import LoopWork, Meeting, PhaseWork, Piece, TaskWork
from meshc.cost.tasks.tile_times import TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices import Number, device
from meshc.interp.task_orders import Blocks, Order
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import MeshcError

H200 = device("h200")
ONE_TILE = TaskWork((Piece(1024),))
PLACED = "place-tasks,fuse-cluster{{cluster={}}},meet,fold-scratch"


def clustered(cluster, model="smollm2-135m", batch=1):
    module = tasks_of(model, f"expand-tasks{{heads=true,splits={cluster}}}", seq=1025, batch=batch)
    return PassManager(parse_pipeline(PLACED.format(cluster))).run(module)


@pytest.fixture(scope="module")
def four():
    return clustered(4)


def phases(stages):
    for stage in stages:
        if isinstance(stage, PhaseWork):
            yield stage
        elif isinstance(stage, LoopWork):
            yield from phases(stage.body)


@pytest.mark.parametrize(("cluster", "batch"), [(1, 1), (4, 2), (16, 1)])
def test_blocks_have_the_tasks_that_the_interpreter_gives_them(cluster, batch):
    """Of one layer: as many tiles in the predicted share as there are tasks that bring them."""
    module = clustered(cluster, batch=batch)
    queues = Blocks(module, Order(blocks=True), lambda number: True).queues
    counts = [sum(isinstance(one, int) for one in queue) for queue in queues]
    times = TileTimes(H200)
    stages = work_of(module, {"pos": 1024})
    found = [0] * len(queues)
    for stage in stages:
        repeats = stage.count if isinstance(stage, LoopWork) else 1
        for phase in phases([stage]):
            one_tile = replace(
                phase,
                families=tuple(
                    replace(f, tasks=(ONE_TILE,) * len(f.tasks)) for f in phase.families
                ),
            )
            run = shared_evenly(one_tile, times, len(queues))
            found = [n + repeats * len(tiles) for n, tiles in zip(found, run.tiles, strict=True)]
    assert found == counts


def test_a_layer_has_two_meetings_of_clusters(four):
    (loop,) = [stage for stage in work_of(four, {"pos": 1024}) if isinstance(stage, LoopWork)]
    meetings = [one.of_cluster for one in loop.body if isinstance(one, Meeting)]
    assert meetings == [False, True, True, False, False, False]
    grouped = [p.name for p in phases([loop]) if p.groups]
    assert grouped == ["q_k_v", "attend", "o"]


def test_what_clusters_take_to_meet_is_the_devices_number(four):
    """Twice in each of 30 layers, on the way of the clusters that attend, which all wait for."""
    work = work_of(four, {"pos": 1024})
    usual = time_of_work(work, TileTimes(H200))
    value = "2:494,4:1536,8:683,16:988"
    numbers = {**H200.numbers, "cluster_signal_ns": Number(value, "assumed", "here")}
    slower = time_of_work(work, TileTimes(replace(H200, numbers=numbers)))
    assert slower.seconds - usual.seconds == pytest.approx(30 * 2 * 1000e-9, rel=0.2)
    assert "cluster_signal_ns" in usual.inputs["calibrated"]
    without = {name: n for name, n in H200.numbers.items() if name != "cluster_signal_ns"}
    with pytest.raises(MeshcError, match="cluster_signal_ns"):
        time_of_work(work, TileTimes(replace(H200, numbers=without)))


def test_clusters_without_key_heads_are_idle(four):
    """3 key heads, 31 clusters: attention of all tokens in 12 blocks."""
    found = {p.name: p.spent for p in step_time(four, {"pos": 1024}).phases}
    usual = {
        p.name: p.spent
        for p in step_time(tasks_of("smollm2-135m", "expand-tasks", seq=1025), {"pos": 1024}).phases
    }
    assert found["attend"].computing < usual["attend"].computing
    longest = found["attend"].seconds + found["q_k_v"].seconds + found["o"].seconds
    assert longest > usual["attend"].seconds + usual["q_k_v"].seconds
    assert found["gate_up"].computing == pytest.approx(usual["gate_up"].computing, rel=0.1)


def test_bytes_are_the_same_in_clusters(four):
    found = step_time(four, {"pos": 1024})
    usual = step_time(tasks_of("smollm2-135m", "expand-tasks", seq=1025), {"pos": 1024})
    assert found.blocks == 124
    assert found.bytes == pytest.approx(usual.bytes, rel=1e-6)

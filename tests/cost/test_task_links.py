"""What links between the GPUs of ranks add to the predicted step of a program of tasks."""

from pathlib import Path

import pytest

import meshc
from meshc.backends.cuda.step_times import predicted
from meshc.cost.tasks.phase_times import step_time
from meshc.cost.tasks.stages import LoopWork, Meeting
from meshc.cost.tasks.tile_times import Links, TileTimes
from meshc.cost.tasks.work import work_of
from meshc.devices import device
from meshc.ir.ranks import RANK

MODEL = Path(__file__).parents[1] / "data" / "tiny_cuda" / "llama-4h2"
AT = {"pos": 3, RANK: 0}


def program(ranks, gpu="h100"):
    given = {"phase": "decode", "seq": 32, "device": gpu, "dtype": "f16"}
    graph = meshc.compile(str(MODEL), compile_to="graph", **given).modules["decode"]
    deal = f"tensor-parallel{{ranks={ranks},multiple=8,keep=[V]}}"
    passes = f"{deal},expand-tasks,place-tasks,meet,fold-scratch"
    return meshc.PassManager(meshc.parse_pipeline(passes)).run(graph)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_meeting_of_ranks_takes_a_way_over_links_and_its_bytes(ranks):
    """Memory has nothing to do meanwhile, so that all of both is seen: at the start, and behind
    both sums of a layer, of which a rank gets the parts of all others."""
    module = program(ranks)
    gpu = module.the_device()

    def seconds(latency, rate):
        return step_time(module, AT, TileTimes(gpu, links=Links(latency, rate))).seconds

    layers, hidden = module.dims["layers"], module.dims["E"]
    free = step_time(module, AT, TileTimes(gpu)).seconds
    assert seconds(0.0, 1e30) == pytest.approx(free)
    assert seconds(1e-3, 1e30) - free == pytest.approx((1 + 2 * layers) * 1e-3)
    linked = 2 * layers * (ranks - 1) * 4 * hidden
    assert seconds(0.0, 1e3) - free == pytest.approx(linked / 1e3)
    stages = work_of(module, AT)
    inner = [s for loop in stages if isinstance(loop, LoopWork) for s in loop.body]
    found = [s.linked for s in inner if isinstance(s, Meeting) and s.kind == "ranks"]
    assert found == [(ranks - 1) * 4 * hidden] * 2


def test_links_are_those_of_the_smallest_node_of_such_gpus():
    node = device("h100x8")
    links = Links.of(node)
    assert links.latency == pytest.approx(11_160 / 1_755_000_000)
    assert links.rate == 3.92e11
    assert "in meetings" in predicted(program(4))
    assert predicted(program(2, "h20")) == ""

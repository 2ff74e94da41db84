"""The PLMR table against what is emitted: routes, queues and bytes counted without its analysis;
and no emitted program takes more than a device has."""

from itertools import product

import pytest
from csl_runs import emit
from reduced import each, only
from route_judge import HOST_COLORS, count

from meshc.devices import device
from meshc.driver.estimating import estimate
from meshc.driver.questions import GEMMS, GEMVS, Question, tile_module
from meshc.support.diagnostics import MeshcError
from meshc.support.plmr import letter_of

PHASES = ("k_tree:1", *GEMVS)
MESHES = ("2x2", "3x3", "4x4", "5x5", "8x8", "4x6", "6x4", "1x4")
COLUMNS = ("4x1", "2x2", "2x3", "4x4", "1x9", "2x16", "1x27", "1x81")
TOO_MANY = ("tree", "1x81")  # channels for the queues of a core
CASES = [
    *(("gemm", algo, mesh) for mesh in MESHES for algo in GEMMS),
    *(("gemv", algo, mesh) for mesh in COLUMNS for algo in PHASES if (algo, mesh) != TOO_MANY),
]


def asked(kind, mesh, **other):
    """A product that no axis divides, in f16."""
    numbers = {"k": 50, "n": 22, "device": "wse2", "dtype": "f16", "accumulate": "f16", **other}
    return Question(m=13 if kind == "gemm" else 1, mesh=mesh, **numbers)


@pytest.mark.parametrize(("kind", "algo", "mesh"), each(CASES, 15))
def test_the_table_says_what_is_emitted(kind, algo, mesh, tmp_path):
    question = asked(kind, mesh)
    row = estimate(question, kind, algo)
    emitted = emit({"main": tile_module(question, kind, algo)})
    counted = count(emitted, tmp_path, "wse2")
    assert row.profile.paths == counted.colors
    assert row.profile.inputs == counted.input_queues
    assert row.profile.reach == counted.reach
    assert row.bytes == counted.bytes and row.emitted
    step = row.profile.step
    assert (step.hops, step.stages) == max(counted.chains, key=slowest, default=(0, 0))
    if kind == "gemv" and algo != "ring" and mesh != "4x1":  # phases, and a multicast ends them
        total = row.profile.total
        assert (total.hops, total.stages) == tuple(map(sum, zip(*counted.chains, strict=True)))


def slowest(way):
    """Latency of hops and stages by the device's alpha and beta."""
    link = device("wse2").link
    return way[0] * link.hop_cycles + way[1] * link.route_cycles


def test_the_table_says_what_is_refused():
    """Seven phases are more inputs than a core has queues, in the table and in the back end."""
    algo, mesh = TOO_MANY
    question = asked("gemv", mesh, k=500)  # with less to do one core has all of it
    assert estimate(question, "gemv", algo).violates["R"] == "7 input queues of 6"
    with pytest.raises(MeshcError) as caught:
        emit({"main": tile_module(question, "gemv", algo)})
    (refused,) = caught.value.diagnostics
    assert refused.code == "csl-queues" and letter_of(refused) == "R"


@pytest.mark.parametrize(
    ("arch", "dtype"), only(product(["wse2", "wse3"], ["f16", "f32"]), ("wse2", "f16"))
)
def test_no_program_takes_more_than_a_core_has(arch, dtype, tmp_path):
    """Colors, queues, task ids and memory, in the text and in the report."""
    numbers = device(arch)
    routing = numbers.routing
    cases = [*(("gemm", a) for a in GEMMS), *(("gemv", a) for a in PHASES)]
    for number, (kind, algo) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        question = asked(kind, "4x4", device=arch, dtype=dtype, accumulate="f32")
        found = count(emit({"main": tile_module(question, kind, algo)}), folder, arch)
        assert len(found.every_color) <= routing.colors.count
        assert found.every_color <= set(routing.colors.free)
        assert found.queues["input"] <= set(routing.input_queues.free)
        assert found.queues["output"] <= set(routing.output_queues.free)
        assert len(set(found.tasks)) == len(found.tasks)
        assert set(found.tasks) <= set(routing.task_ids.free) - found.every_color - HOST_COLORS
        assert found.bytes <= numbers.data_bytes
        assert found.data_end <= numbers.memory_bytes

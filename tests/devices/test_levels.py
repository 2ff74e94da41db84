"""Devices of several levels: axes whose cores are joined in different ways."""

from dataclasses import replace

import pytest

import meshc
from meshc.cost.mesh_ops import MeshCosts
from meshc.devices import describe, device
from meshc.ir.header import device_lines
from meshc.ir.ops import mesh as ops
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

RACK = """
name = "rack"
kind = "node"
description = "boards of chips"
axes = "row rack chip"
levels = "hall hall board"
topology = "mesh"
push = true
default_dtype = "f32"
cores_x = 8
cores_y = 4
clock_hz = 1_000_000_000
memory_bytes = "unlimited"
reserved_bytes = 0
hop_cycles = 1
route_cycles = 10
relay_cycles = 6
word_bytes = 4
words_per_cycle = 2
f32_macs_per_cycle = 1
f32_lanes_per_cycle = 1
op_cycles = 0
vector_cycles = 0
scalar_cycles = 0
step_cycles = 5
colors = "unlimited"
input_queues = "unlimited"
output_queues = "unlimited"

[level.hall]
topology = "all_to_all"
hop_cycles = {value = 1000, unit = "cycles", kind = "published", source = "P: Table 1"}
route_cycles = 20
relay_cycles = "none"
words_per_cycle = 0.5

[sources]
P = "a paper"
"""
PRODUCT = """
model product(M=1, K=48, N=48) {
  weights f32  accumulate f32
  param a[K, N], b[N, K]
  main(x[M, K]) -> [M, K] { return x @ a @ b }
}
"""


def rack(tmp_path, text=RACK):
    path = tmp_path / "rack.toml"
    path.write_text(text)
    return device(str(path))


def test_links_are_those_of_the_level_of_an_axis(tmp_path):
    found = rack(tmp_path)
    assert [found.level(axis) for axis in ("row", "rack", "chip", "chipd")] == [
        "hall", "hall", "board", "board",
    ]  # fmt: skip
    for axis in ("row", "rack"):
        link = found.along(axis).link
        assert (link.hop_cycles, link.route_cycles, link.words_per_cycle) == (1000, 20, 0.5)
        assert (link.topology, link.push, link.relay_cycles) == ("all_to_all", False, None)
    assert found.along("chip") is found
    assert (found.link.hop_cycles, found.link.topology, found.link.push) == (1, "mesh", True)
    # What is not said of links is the same along all axes.
    assert found.along("rack").cores_x == 8 and found.along("rack").link.word_bytes == 4


def test_a_device_of_one_level_is_the_same_along_all_axes():
    wafer = device("wse2")
    assert all(wafer.along(axis) is wafer for axis in ("r", "y", "x", "xd"))
    assert {wafer.level(axis) for axis in ("r", "y", "x")} == {wafer.level("xh")}


def test_blocks_of_different_clusters_meet_in_global_memory():
    """The catalogue's GPUs: a message from cluster to cluster takes an answer of global memory."""
    for name in ("h100", "h200"):
        found = device(name)
        far = found.along(found.axes.down).link.hop_cycles
        assert far == found.global_latency_cycles > found.link.hop_cycles


def test_a_watched_device_says_of_which_level_a_number_was_asked_for(tmp_path):
    found = rack(tmp_path).watched()
    assert found.along("rack").link.hop_cycles == 1000 and found.link.route_cycles == 10
    assert found.along("rack").clock_hz == 1_000_000_000
    assert found.inputs() == {
        "published": ("hall.hop_cycles",),
        "assumed": ("clock_hz", "route_cycles"),
    }


def test_a_module_keeps_the_levels_of_its_device(tmp_path):
    found = rack(tmp_path)
    lines = device_lines(found)
    start = lines.index("  level hall topology = all_to_all, push = false")
    assert lines[start + 1 :] == [
        "    published hop_cycles = 1000",
        "    assumed route_cycles = 20, relay_cycles = none, words_per_cycle = 0.5",
    ]
    (tmp_path / "product.mesh").write_text(PRODUCT)
    compiled = meshc.compile(
        str(tmp_path / "product.mesh"), mesh="rack=2,chip=3", device=str(tmp_path / "rack.toml")
    )
    text = print_module(compiled.modules["main"])
    again = parse_module(Source("main.meshir", text))
    assert again.device == replace(found, sources={}) and print_module(again) == text
    assert "hall.hop_cycles" in describe(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[level.hall]", "[level.room]"), "the links of level 'hall' are missing"),
        (("[level.hall]", "[level.room]"), "'room' is no level of the device above the innermost"),
        (("[level.hall]", "[level.board]"), "'board' is no level of the device above"),
        (("words_per_cycle = 0.5", ""), "'words_per_cycle' of level 'hall' is missing"),
        (("words_per_cycle = 0.5", "words_per_cycle = 0"), "'words_per_cycle' must be between"),
        (("words_per_cycle = 0.5", "words_per_cycle = 1\ncores_x = 1"), "no key of the level"),
        (("words_per_cycle = 0.5", "words_per_cycle = 1\nhops = 1"), "unknown device key 'hops'"),
        (('"hall hall board"', '"hall board hall"'), "'levels' must be three names"),
        (('"hall hall board"', '"hall board"'), "'levels' must be three names"),
        (('levels = "hall hall board"\n', ""), "'hall' is no level of the device"),
        (("[level.hall]", "level = 3\n[other]"), "'level' must be a table for each level"),
    ],
)
def test_wrong_levels(tmp_path, change, words):
    with pytest.raises(MeshcError) as caught:
        rack(tmp_path, RACK.replace(*change, 1))
    assert all(
        error.code in ("bad-device", "unreadable-device") for error in caught.value.diagnostics
    )
    assert words in "\n".join(error.message for error in caught.value.diagnostics)


def test_reductions_cost_what_the_links_of_their_axis_cost(tmp_path):
    """The same sum along both axes of a 3x3 mesh, along the rack by far the dearer."""
    (tmp_path / "product.mesh").write_text(PRODUCT)
    rack(tmp_path)
    compiled = meshc.compile(
        str(tmp_path / "product.mesh"),
        mesh="rack=3,chip=3",
        device=str(tmp_path / "rack.toml"),
        compile_to="mesh",
    )
    module = compiled.modules["main"]
    costs = MeshCosts.of_module(module, module.the_mesh())
    sums = {op.axis: op for op in module.walk() if isinstance(op, ops.AllReduce)}
    assert sums.keys() == {"rack", "chip"}
    cheapest = {axis: costs.sharing.cheapest(costs.demand(op)) for axis, op in sums.items()}
    assert cheapest["rack"].cost.total > 2000 > 10 * cheapest["chip"].cost.total

"""Channels as lines, and coordinates of cores: enumerated and compared with the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes import wafer

from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.analysis.traffic.channels import line_of, shares_core
from meshc.ir.affine import parse_map
from meshc.ir.module import Channel

MESH = wafer(4, 6, 1, segments=2, interleaved=("y", "x", "xd"))


def channel(route: str, multicast: bool = False) -> Channel:
    return Channel("c", parse_map(route), multicast=multicast)


def test_a_chain_along_x() -> None:
    line = line_of(channel("{ [y, x] -> [y, x - 1] : x >= 1 }"), MESH)
    assert line.axis == "x"
    assert line.pairs == tuple((x, x - 1) for x in range(1, 6))
    assert (line.senders, line.receivers) == (frozenset(range(1, 6)), frozenset(range(5)))
    assert line.hops == 1


def test_a_stride_along_y_passes_through_routers() -> None:
    line = line_of(channel("{ [y, x] -> [y - 2, x] : y mod 2 = 0 and y >= 2 }"), MESH)
    assert (line.axis, line.pairs, line.hops) == ("y", ((2, 0),), 2)
    assert line.messages() == {2: [0, 2]}


def test_a_multicast_is_one_message() -> None:
    route = "{ [y, x] -> [y, _x] : x = 0 and 1 <= _x and _x <= 5 }"
    line = line_of(channel(route, multicast=True), MESH)
    assert line.senders == {0}
    assert line.receivers == frozenset(range(1, 6))
    assert line.messages() == {0: [0, 5]}


def test_messages_that_leave_the_mesh_do_not_exist() -> None:
    line = line_of(channel("{ [y, x] -> [y, x + 1] : x >= 0 }"), MESH)
    assert line.receivers == frozenset(range(1, 6))


def test_cores_meet_where_no_axis_tells_them_apart() -> None:
    left, right = frozenset({0, 1}), frozenset({2, 3})
    assert not shares_core({"x": left}, {"x": right})
    assert shares_core({"x": left}, {"y": right}), "a row and a column cross"
    assert not shares_core({"x": left}, {"y": frozenset()})
    assert not shares_core({"r": left, "x": left}, {"x": right}), "other columns of all regions"
    assert shares_core({"r": left, "x": left}, {"y": right})


@pytest.mark.parametrize("axis", ["y", "x", "xd"])
@given(size=st.integers(1, 60))
def test_ring_and_core_are_inverse(axis: str, size: int) -> None:
    mesh = wafer(size, size, segments=1, interleaved=("y", "x", "xd"))
    functions = coordinate_functions(mesh)
    ring, core = functions[f"ring_{axis}"], functions[f"core_{axis}"]
    ranks = [int(ring.evaluate({"p": place})) for place in range(size)]
    assert sorted(ranks) == list(range(size))
    assert [int(core.evaluate({"p": rank})) for rank in ranks] == list(range(size))


def test_coordinates_of_a_core_in_a_factored_axis() -> None:
    values = coordinate_values(MESH)
    core = {"r": 0, "y": 1, "x": 4}
    found = {name: int(value.evaluate(core)) for name, value in values.items()}
    assert found == {
        "r": 0,
        "y": 1,
        "x": 4,
        "xh": 1,
        "xd": 1,
        "fold_x": 1,
        "fold_y": 0,
        "rank_y": 3,
        "rank_x": 2,
        "rank_xd": 2,
    }

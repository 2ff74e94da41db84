"""Channels with turns: who sends when, who hears, and the few pairs that stand for all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import wafer

from meshc.analysis.traffic.channels import line_of
from meshc.analysis.traffic.turns import DOWN, UP, Turns, turn_route, turns_of
from meshc.ir.affine import Expr, parse_map
from meshc.ir.module import Channel
from meshc.support.diagnostics import MeshcError

SIZES = st.integers(min_value=2, max_value=7)
WAYS = st.sampled_from([UP, DOWN])


def channel(mesh, axis, way, each=1):
    return Channel("c", turn_route(mesh, axis, way), multicast=True, turns=each)


@settings(max_examples=30, deadline=None)
@given(rows=SIZES, columns=SIZES, axis=st.sampled_from("yx"), way=WAYS)
def test_pairs_have_the_senders_receivers_and_longest_ways_of_the_route(rows, columns, axis, way):
    mesh = wafer(rows, columns)
    line = line_of(channel(mesh, axis, way), mesh)
    place = "yx".index(axis)
    sources, targets = turn_route(mesh, axis, way).pairs((rows, columns))
    assert line.axis == axis
    assert line.senders == set(sources[:, place].tolist())
    assert line.receivers == set(targets[:, place].tolist())
    assert line.hops == np.abs(sources - targets).max()
    assert len(line.pairs) <= 2 * mesh.size(axis)


@settings(max_examples=30, deadline=None)
@given(size=SIZES, way=WAYS, each=st.integers(min_value=1, max_value=3))
def test_every_core_hears_every_other_once_and_itself_going_down(size, way, each):
    turns = Turns("x", size, way, each)
    x = np.arange(size)
    step = Expr.var("t")
    for t in range(turns.messages):
        senders = np.flatnonzero(turns.sends(step).evaluate({"x": x, "t": t}))
        root = t // each
        assert senders.tolist() == ([] if way == UP and root == size - 1 else [root])
        heard = np.flatnonzero(turns.hears(Expr.const(root)).evaluate({"x": x}))
        assert heard.tolist() == (x[root + 1 :] if way == UP else x[: root + 1]).tolist()


def test_routes_read_back_as_they_are_written():
    mesh = wafer(3, 4)
    for axis in "yx":
        for way in (UP, DOWN):
            route = turn_route(mesh, axis, way)
            assert parse_map(str(route)) == route
            assert turns_of(channel(mesh, axis, way, 2), mesh) == Turns(
                axis, mesh.size(axis), way, 2
            )


def test_channels_without_turns_have_none():
    mesh = wafer(3, 4)
    assert turns_of(Channel("c", turn_route(mesh, "x", UP), multicast=True), mesh) is None


@pytest.mark.parametrize(
    "text",
    [
        "{ [y, x] -> [y, x + 1] }",
        "{ [y, x] -> [y, _x] : x < _x and _x <= 2 }",
        "{ [y, x] -> [y, _x] : 0 <= _x and _x <= 3 }",
    ],
)
def test_turns_are_for_whole_lines(text):
    lonely = Channel("c", parse_map(text), multicast=True, turns=1)
    with pytest.raises(MeshcError, match="cannot take turns"):
        turns_of(lonely, wafer(3, 4))

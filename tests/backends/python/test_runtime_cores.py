"""Coordinates and sets of cores of the runtime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import runtime_wafer, wafer

from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.backends.python.runtime import Coordinates, Fabric, PerCore, Phase, Sweep, memo
from meshc.backends.python.runtime.kernels import fill

SHAPES = [(1, 1, 1, 1), (2, 3, 1, 1), (5, 8, 2, 4), (4, 7, 1, 7), (3, 6, 3, 2)]


@pytest.mark.parametrize("interleaved", [(), ("y",), ("xd", "y"), ("x", "xd", "y")])
@pytest.mark.parametrize("shape", SHAPES)
def test_coordinates_are_those_of_the_ir(shape, interleaved):
    mesh = wafer(*shape, interleaved=interleaved)
    core = Coordinates(runtime_wafer(*shape), interleaved)
    r, y, x = np.indices((mesh.regions, mesh.rows, mesh.columns))
    for name, value in coordinate_values(mesh).items():
        expected = np.broadcast_to(value.evaluate({"r": r, "y": y, "x": x}), r.shape)
        got = np.broadcast_to(getattr(core, name)._grid, r.shape)
        np.testing.assert_array_equal(got, expected)
    for name, function in coordinate_functions(mesh).items():
        if name in coordinate_values(mesh):
            continue  # programs have it of their own place alone
        size = mesh.size(name.partition("_")[2])
        for place in range(size):
            found = getattr(core, name)(place)._grid.reshape(-1)[0]
            assert found == function.evaluate({"p": place})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sets_of_cores(data):
    """Intersection, difference and slices, for every numbering of the cores."""
    fabric = Fabric(runtime_wafer(3, 4, 2), data.draw(st.permutations(range(24))))
    draws = st.lists(st.booleans(), min_size=24, max_size=24)
    masks = [np.array(data.draw(draws)) for _ in range(2)]
    first, second = (fabric.where(PerCore(mask.reshape(2, 3, 4))) for mask in masks)

    def cores(found):
        return {int(fabric.core_of_lane[lane]) for lane in found.lanes}

    ours, theirs = (set(np.flatnonzero(mask).tolist()) for mask in masks)
    assert cores(first) == ours and first.count == len(ours)
    assert cores(first.both(second)) == ours & theirs
    assert cores(first.minus(second)) == ours - theirs
    assert first.both(second) is second.both(first)
    assert first.minus(first) is fabric.nobody
    lanes = np.arange(24)[first.key]
    np.testing.assert_array_equal(lanes, first.lanes)


def test_regular_sets_are_slices():
    fabric = Fabric(runtime_wafer(6, 4))
    core = Coordinates(fabric.mesh)
    for guard, key in (
        (core.y >= 0, slice(0, 24, 1)),
        (core.y == 2, slice(8, 12, 1)),
        (core.x == 1, slice(1, 22, 4)),
        ((core.y % 3 == 2), None),
        (core.x + core.y == 3, slice(3, 13, 3)),
        ((core.x == 0) | (core.y == 5), None),
    ):
        cores = fabric.where(guard)
        assert (cores.key == key) if key else not isinstance(cores.key, slice)


def test_sweeps_and_blocks_nest():
    phase = Phase(Fabric(runtime_wafer(3, 3)), "p")
    count = phase.buffer("count", "f32", 9, role="state")
    phase.load({})
    inner = phase.sweep(phase.core.x, 2)  # the last column takes no part
    seen = []

    def step():
        for _ in Sweep(phase.fabric, 2 - phase.core.y, 3):
            with phase.fabric.only(phase.where(phase.core.y >= 1)):
                for _ in inner:
                    fill(count[len(seen)], value=1.0)
                    seen.append(str(phase.fabric.active))

    phase.runs(step)
    phase.run({})
    assert seen == [f"core (y={y}, x={x})" for y in (2, 1) for x in (0, 1)]
    assert phase.fabric.active is phase.fabric.everyone
    assert count.memory.array.sum() == 4


def test_an_error_inside_a_block_does_not_leave_it_open():
    fabric = Fabric(runtime_wafer(2, 2))
    with pytest.raises(RuntimeError), fabric.only(fabric.nobody):
        raise RuntimeError
    assert fabric.active is fabric.everyone


def test_values_with_lanes_are_no_guards():
    fabric = Fabric(runtime_wafer(2, 2))
    core = Coordinates(fabric.mesh)
    with pytest.raises(TypeError, match="further axes"):
        fabric.where(core.every(3) == core.x)
    with pytest.raises(TypeError, match="a guard is a condition"):
        fabric.where(core.x)


def test_memo_gives_the_very_same_set():
    fabric = Fabric(runtime_wafer(2, 2))
    core = Coordinates(fabric.mesh)
    calls = []

    @memo
    def even(pos):
        calls.append(pos)
        return fabric.where(core.x == pos % 2)

    assert even(1) is even(1) and even(3) is even(1) and calls == [1, 3]

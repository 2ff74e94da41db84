"""Ring order, coordinates, and views as functions of the core."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interp_tile_texts import tile_module
from meshes import wafer

from meshc.interp.places import (
    coordinate_functions,
    core_coordinates,
    core_text,
    ring_position,
    ring_rank,
)
from meshc.interp.resolve import Names
from meshc.interp.windows import Window


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 100, 101])
def test_ring_neighbours_are_at_most_two_hops_apart(size):
    positions = ring_position(np.arange(size), size)
    assert sorted(positions) == list(range(size))
    np.testing.assert_array_equal(ring_rank(positions, size), np.arange(size))
    assert np.abs(np.diff(np.r_[positions, positions[0]])).max() <= 2
    assert [ring_position(r, size) for r in range(size)] == positions.tolist()
    assert [ring_rank(int(p), size) for p in positions] == list(range(size))


def test_coordinates_of_a_factored_mesh():
    mesh = wafer(2, 6, regions=2, segments=2, interleaved=("xd",))
    found = core_coordinates(mesh)
    core = (1 * 2 + 1) * 6 + 4
    assert {n: int(v[core]) for n, v in found.items()} == {
        "r": 1,
        "y": 1,
        "x": 4,
        "xh": 1,
        "xd": 1,
        "fold_x": 1,
        "fold_y": 0,
        "rank_y": 1,
        "rank_x": 4,
        "rank_xd": 2,
    }
    functions = coordinate_functions(mesh)
    assert functions["ring_xd"](1) == 2 and functions["core_xd"](2) == 1
    assert functions["ring_y"](1) == 1 and functions["core_x"](4) == 4
    assert core_text(mesh, core) == "core (r=1, y=1, x=4)"
    assert core_text(wafer(2, 6), 7) == "core (y=1, x=1)"


@given(st.data())
def test_writing_a_view_and_reading_it_back(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    texts = []
    expected = []
    for extent in shape:
        kind = data.draw(st.sampled_from(["point", "range", "whole"]))
        start = data.draw(st.integers(0, extent - 1))
        if kind == "point":
            texts.append(str(start))
            expected.append(start)
        elif kind == "range":
            step = data.draw(st.integers(1, 2))
            count = data.draw(st.integers(1, (extent - 1 - start) // step + 1))
            texts.append(f"x + {start} +: {count} by {step}" if step > 1 else f"{start} +: {count}")
            expected.append(slice(start, start + (count - 1) * step + 1, step))
        else:
            texts.append(":")
            expected.append(slice(None))
    buffer = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    wanted = buffer[tuple(expected)]
    order = data.draw(st.permutations(range(wanted.ndim)))
    suffix = f" order [{', '.join(map(str, order))}]" if order else ""
    module = tile_module(
        1,
        1,
        f"tile.fill %b[{', '.join(texts)}]{suffix} {{value = 0.0}}",
        f"buffer %b : f32[{', '.join(map(str, shape))}]",
    )
    (op,) = module.program.body.ops
    window = Window(op.operands[0], 0, Names(frozenset({"x"}), {}), None)
    place = window.place({"x": 0})
    np.testing.assert_array_equal(place.read([buffer]), wanted.transpose(order))
    assert place.shape == wanted.transpose(order).shape
    place.write([buffer], -place.read([buffer]) - 1)
    assert (buffer[tuple(expected)] < 0).all()
    assert (buffer < 0).sum() == wanted.size


def test_a_reshaped_view_is_written_through():
    module = tile_module(
        1, 1, "tile.fill %b[:, 1 +: 2] as [4] {value = 0.0}", "buffer %b : f32[2, 4]"
    )
    (op,) = module.program.body.ops
    place = Window(op.operands[0], 0, Names(frozenset(), {}), None).place({})
    memory = np.zeros((2, 4), np.float32)
    place.write([memory], np.arange(1, 5, dtype=np.float32))
    np.testing.assert_array_equal(memory, [[0, 1, 2, 0], [0, 3, 4, 0]])

"""Layouts: which core holds what, and that scattering and gathering are inverse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes import wafer

from meshc.interp.shards import PAD, Sharding, lane_of, split_elements
from meshc.ir.types import DType, Layout, Split, TensorType
from meshc.support.diagnostics import MeshcError


def sharding(mesh, dims, *splits, partial=(), actual=None):
    kind = TensorType(DType.F32, tuple(dims), Layout(tuple(splits), partial))
    return Sharding(kind, mesh, dims, {**dims, **(actual or {})})


def ceil_div(a, b):
    return -(-a // b)


@st.composite
def shardings(draw):
    segments = draw(st.integers(1, 3))
    columns = segments * draw(st.integers(1, 3))
    ring = tuple(a for a in ("y", "x", "xd") if draw(st.booleans()))
    mesh = wafer(draw(st.integers(1, 4)), columns, draw(st.integers(1, 2)), segments, ring)
    dims = {name: draw(st.integers(1, 9)) for name in "ABC"[: draw(st.integers(1, 3))]}
    axes = list(
        draw(st.permutations(["r", "y", "x"] if draw(st.booleans()) else ["y", "xh", "xd"]))
    )
    splits = []
    for dim, extent in dims.items():
        if draw(st.booleans()) or not axes:
            continue
        axis = axes.pop()
        kind = draw(st.sampled_from(["block", "cyclic", "shift"]))
        size = mesh.size(axis)
        copies = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        others = [a for a in ("y", "x", "xd") if a != axis and (a == "y" or axis == "y")]
        # Axes that skew each other would leave elements without a core.
        alone = not any(s.skew for s in splits)
        skew = draw(st.sampled_from(["", *others])) if alone else ""
        spare = draw(st.integers(0, 2))
        copies = copies if kind == "block" and not skew else 1
        block = ceil_div(extent, size // copies) + spare
        splits.append(Split(dim, axis, block, kind, skew, copies))
    rows = {name: draw(st.integers(0, extent)) for name, extent in dims.items()}
    return sharding(mesh, dims, *splits, actual=rows if draw(st.booleans()) else None)


@given(shardings())
def test_gather_undoes_scatter(lying):
    shape = tuple(lying.actual[d] for d in lying.type.dims)
    tensor = np.random.default_rng(0).standard_normal(shape)
    lanes = lying.scatter(tensor)
    assert lanes.shape == (lying.mesh.cores, *lying.type.local_shape(lying.extents))
    np.testing.assert_array_equal(lying.gather(lanes, "v"), tensor)


@given(shardings())
def test_padding_holds_zero_and_every_element_is_somewhere(lying):
    shape = tuple(lying.actual[d] for d in lying.type.dims)
    lanes = lying.scatter(np.ones(shape))
    replicas = 1
    used = {s.axis for s in lying.layout.splits}
    for axis in ("r", "y", "x") if "x" in used else ("r", "y", "xh", "xd"):
        replicas *= 1 if axis in used else lying.mesh.size(axis)
    for split in lying.layout.splits:
        replicas *= split.copies
    assert set(np.unique(lanes)) <= {0.0, 1.0}
    assert lanes.sum() == np.prod(shape) * replicas


def test_block_cyclic_and_skew_by_hand():
    mesh = wafer(2, 3)
    block = split_elements(Split("E", "x", 2), 5, mesh)
    assert block.tolist() == [[0, 1], [2, 3], [4, PAD]] * 2
    cyclic = split_elements(Split("E", "x", 2, "cyclic"), 5, mesh)
    assert cyclic.tolist() == [[0, 3], [1, 4], [2, PAD]] * 2
    copied = split_elements(Split("E", "x", 2, copies=2), 5, wafer(1, 6))
    assert copied.tolist() == [[0, 1], [0, 1], [2, 3], [2, 3], [4, PAD], [4, PAD]]
    skewed = split_elements(Split("E", "x", 2, skew="y"), 5, mesh)
    assert skewed[3:].tolist() == [[2, 3], [4, PAD], [0, 1]]
    ring = split_elements(Split("E", "x", 2), 5, wafer(1, 3, interleaved=("x",)))
    assert ring.tolist() == [[0, 1], [4, PAD], [2, 3]]


def test_two_dims_on_one_axis_are_split_together():
    lying = sharding(wafer(4, 1), {"H": 3, "E": 2, "D": 5}, Split("H", "y", 1), Split("D", "y", 2))
    assert lying.groups == (("H", "D"), ("E",))
    tensor = np.random.default_rng(0).standard_normal((3, 2, 5))
    lanes = lying.scatter(tensor)
    assert lanes.shape == (4, 4, 2)
    np.testing.assert_array_equal(lanes[1, :, 0], [tensor[0, 0, 4], *tensor[1, 0, :3]])
    np.testing.assert_array_equal(lying.gather(lanes, "v"), tensor)


def test_a_partial_value_is_on_one_part_only():
    lying = sharding(wafer(2, 3), {"E": 4}, Split("E", "x", 2), partial=("y",))
    lanes = lying.scatter(np.ones(4))
    assert lanes.sum() == 4 and not lanes[3:].any()
    with pytest.raises(MeshcError, match="'v' is a partial sum over y"):
        lying.gather(lanes, "v")


def test_replicas_that_differ_are_found():
    lying = sharding(wafer(2, 2), {"E": 4}, Split("E", "x", 2))
    lanes = lying.scatter(np.arange(4.0))
    lanes[3, 1] = 9
    with pytest.raises(MeshcError, match=r"differs between replicas, as on core \(y=\d, x=1\)"):
        lying.gather(lanes, "v")


def test_elements_that_no_core_holds_are_found():
    lying = sharding(wafer(1, 2), {"E": 5}, Split("E", "x", 2))
    with pytest.raises(MeshcError, match="no core holds"):
        lying.gather(np.zeros(lying.shape), "v")


def test_lane_of_finds_what_a_core_holds():
    lane, held = lane_of(np.array([[3, PAD, 7]]), np.array([[7, 9, 3, PAD]]))
    assert lane[held].tolist() == [2, 0] and held.tolist() == [[True, False, True]]

"""Views of hidden memory against slicing the memory of each core."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshes import runtime_wafer

from meshc.backends.python.runtime import Fabric, Phase, span
from meshc.backends.python.runtime.kernels import copy, gemm
from meshc.backends.python.runtime.memory import round_bf16, round_f16

SHAPE = (4, 3, 6)
ROWS, COLUMNS = 2, 3


@st.composite
def windows(draw):
    """Indices of a buffer: as the runtime takes them, and for the core at (y, x)."""
    given, plain = [], []
    for extent in SHAPE[: draw(st.integers(0, 3))]:
        kind = draw(st.sampled_from(["whole", "point", "slice", "core", "span"]))
        a, b = draw(st.integers(0, extent - 1)), draw(st.integers(0, extent - 1))
        low, high = min(a, b), max(a, b) + 1
        step = draw(st.integers(1, 2))
        if kind == "whole":
            given.append(lambda core: slice(None))
            plain.append(lambda y, x: slice(None))
        elif kind == "point":
            given.append(lambda core, a=a: a)
            plain.append(lambda y, x, a=a: a)
        elif kind == "slice":
            given.append(lambda core, s=slice(low, high, step): s)
            plain.append(lambda y, x, s=slice(low, high, step): s)
        elif kind == "core":
            given.append(lambda core, a=a, n=extent: (core.x + a + 2 * core.y) % n)
            plain.append(lambda y, x, a=a, n=extent: (x + a + 2 * y) % n)
        else:
            width = draw(st.integers(1, max(1, extent // 2)))
            free = extent - (width - 1) * step
            step, free = (step, free) if free > 0 else (1, extent - width + 1)
            given.append(
                lambda core, a=a, f=free, w=width, s=step: span((core.x + core.y + a) % f, w, s)
            )
            plain.append(
                lambda y, x, a=a, f=free, w=width, s=step: slice(
                    (x + y + a) % f, (x + y + a) % f + (w - 1) * s + 1, s
                )
            )
    return given, plain


def refactored(shape):
    """Another shape with as many elements."""
    total = int(np.prod(shape))
    factors = [n for n in range(1, total + 1) if total % n == 0]
    return st.sampled_from([(n, total // n) for n in factors])


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_views_are_slices_of_each_core(data):
    """Read and written, on sets of cores, in any numbering of the cores."""
    fabric = Fabric(runtime_wafer(ROWS, COLUMNS), data.draw(st.permutations(range(ROWS * COLUMNS))))
    phase = Phase(fabric, "p")
    buffer = phase.buffer("b", "f32", *SHAPE, role="state")
    memory = np.random.default_rng(1).standard_normal((6, *SHAPE)).astype(np.float32)
    given, plain = data.draw(windows())
    index = tuple([part(phase.core) for part in given])
    view = buffer[index] if index else buffer
    shape, order = None, None
    if view.shape and data.draw(st.booleans()):
        shape = data.draw(refactored(view.shape))
        view = view.shaped(*shape)
    if view.shape and data.draw(st.booleans()):
        order = tuple(data.draw(st.permutations(range(len(view.shape)))))
        view = view.ordered(*order)

    def of(core):
        own = memory[core][tuple(part(*divmod(core, COLUMNS)) for part in plain)]
        own = own if shape is None else own.reshape(shape)
        return own if order is None else own.transpose(order)

    assert view.shape == of(0).shape
    out = phase.buffer("o", "f32", *view.shape, role="state")
    phase.load({})
    buffer.memory.array[fabric.lane_of_core] = memory
    chosen = data.draw(st.sampled_from(["all", "row", "odd"]))
    core = phase.core
    on = {"all": core.x >= 0, "row": core.y == 1, "odd": (core.x + core.y) % 2 == 1}[chosen]
    cores = phase.where(on)
    for number, lane in enumerate(cores.lanes):
        np.testing.assert_array_equal(view.read(cores)[number], of(fabric.core_of_lane[lane]))
    values = np.random.default_rng(2).standard_normal(out.memory.array.shape)
    out.memory.array[...] = values
    copy(view, out, on=cores)
    lanes = set(cores.lanes.tolist())
    for c in range(6):
        lane = fabric.lane_of_core[c]
        if lane in lanes:
            mine = memory[c].copy()
            flat = np.arange(mine.size).reshape(SHAPE)
            where = flat[tuple(part(*divmod(c, COLUMNS)) for part in plain)]
            where = where if shape is None else where.reshape(shape)
            where = where if order is None else where.transpose(order)
            mine.reshape(-1)[where.reshape(-1)] = values[lane].reshape(-1)
            np.testing.assert_array_equal(buffer.memory.array[lane], mine)
        else:
            np.testing.assert_array_equal(buffer.memory.array[lane], memory[c])


def test_views_are_made_once():
    phase = Phase(Fabric(runtime_wafer(2, 2)), "p")
    buffer = phase.buffer("b", "f32", 4, 6)
    place = phase.core.x % 2
    assert buffer[1] is buffer[1]
    assert buffer[0:2, 3] is buffer[0:2, 3]
    assert buffer[place] is buffer[place]
    assert buffer[place] is not buffer[phase.core.x % 2]
    assert buffer[1].shaped(2, 3) is buffer[1].shaped(2, 3)
    assert buffer.ordered(1, 0) is buffer.ordered(1, 0)
    assert buffer[2] is not buffer[1]


def test_views_of_many_runs_do_not_pile_up():
    phase = Phase(Fabric(runtime_wafer(1, 1)), "p")
    buffer = phase.buffer("b", "f32", 10_000)
    for at in range(10_000):
        assert buffer[at].shape == ()
    assert len(buffer._windows) <= 4096


@pytest.mark.parametrize("stacked", [0, 1])
def test_the_order_in_which_the_host_keeps_a_matrix_is_not_seen(stacked):
    """Read, copied and multiplied, a matrix that is kept by columns is what it would be by rows."""
    phase = Phase(Fabric(runtime_wafer(2, 2)), "p")
    kept = [
        phase.buffer(f"w{by}", "f32", 3, 4, 5, stacked=stacked, by_columns=by == 1, role="state")
        for by in range(2)
    ]
    copied = phase.buffer("c", "f32", 20, role="state")
    v, o = phase.buffer("v", "f32", 1, 4, role="state"), phase.buffer("o", "f32", 1, 5)
    phase.load({})
    rng = np.random.default_rng(3)
    weights, vectors = rng.standard_normal((4, 3, 4, 5)), rng.standard_normal((4, 1, 4))
    v.memory.array[...] = vectors
    strides = [buffer.memory.array.strides[-2:] for buffer in kept]
    assert strides == [(20, 4), (4, 16)]
    for buffer in kept:
        buffer.memory.array[...] = weights
        copy(copied.shaped(4, 5), buffer[2])
        copy(copied[:10], buffer[1, 1:3].shaped(10))
        expected = weights.astype(np.float32)[:, 2].reshape(4, 20)
        expected[:, :10] = weights[:, 1, 1:3].reshape(4, 10)
        np.testing.assert_array_equal(copied.memory.array, expected)
        gemm(o, v, buffer[1])
        np.testing.assert_allclose(o.memory.array, vectors @ weights[:, 1], rtol=1e-5, atol=1e-6)


def test_windows_beyond_the_buffer_are_refused():
    buffer = Phase(Fabric(runtime_wafer(1, 1)), "p").buffer("b", "f32", 4, 6)
    with pytest.raises(IndexError, match="a window ends at 5, beyond the extent 4"):
        buffer[0:5]
    with pytest.raises(ValueError, match="no shape"):
        buffer.shaped(5, 5)


def test_f16_rounding_is_that_of_numpy():
    rng = np.random.default_rng(4)
    values = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    round_f16(values)
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(("rounds", "bits"), [(round_f16, 11), (round_bf16, 8)])
def test_rounding_is_to_the_nearest_and_ties_to_even(rounds, bits):
    quarters = 2.0 ** (bits - 1) + np.arange(256) / 4  # the last place kept is that of the ones
    rounded = quarters.astype(np.float32)
    rounds(rounded)
    np.testing.assert_array_equal(rounded, np.round(quarters))
    specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    again = specials.copy()
    rounds(again)
    np.testing.assert_array_equal(again, specials)


def test_halves_are_rounded_when_they_are_stored():
    phase = Phase(Fabric(runtime_wafer(2, 2)), "p")
    half, full = phase.buffer("h", "f16", 3), phase.buffer("f", "f32", 3)
    phase.load({})
    full.memory.array[...] = 1 / 3
    copy(half, full, on=phase.where(phase.core.x == phase.core.y))
    assert half.memory.array.dtype == np.float32
    np.testing.assert_array_equal(half.memory.array[0], np.float32(np.float16(1 / 3)))
    np.testing.assert_array_equal(half.memory.array[1], 0)


def test_the_state_of_one_request_is_forgotten_alone():
    phase = Phase(Fabric(runtime_wafer(ROWS, COLUMNS)), "decode")
    kept = phase.buffer("kept", "f32", 2, 3, 4, role="state", requests=1)
    phase.runs(lambda: None).load({})
    kept.memory.array[...] = np.nan
    phase.reset(1)
    assert (kept.memory.array[:, :, 1] == 0).all() and np.isnan(
        kept.memory.array[:, :, [0, 2]]
    ).all()
    phase.reset()
    assert (kept.memory.array == 0).all()
    shared = Phase(Fabric(runtime_wafer(ROWS, COLUMNS)), "decode")
    shared.buffer("kept", "f32", 4, role="state")
    shared.runs(lambda: None).load({})
    with pytest.raises(ValueError, match="not kept by request"):
        shared.reset(1)

"""Every microkernel of the catalogue against the interpreter's, on all, some and odd cores."""

import math

import numpy as np
import pytest
from meshes import runtime_wafer

from meshc.backends.python.runtime import Fabric, Phase, span
from meshc.backends.python.runtime import kernels as runtime_kernels
from meshc.interp.kernels import MICROKERNELS
from meshc.ir.kernels import KERNELS

ROWS, COLUMNS = 5, 6
F, N = "f32", "i32"

PLAIN_CHOICE = {
    "count": 3,
    "groups": 1,
    "kept_groups": 1,
    "group_top": 1,
    "normalise": False,
    "biased": False,
}

# shapes (and types) of the operands, and parameters; a string is a per-core parameter
CASES = [
    ("fill", [(F, 2, 3)], {"value": 1.5}),
    ("copy", [(F, 2, 3)] * 2, {}),
    ("add", [(F, 2, 3)] * 3, {}),
    ("add", [(F, 2, 3), (F, 2, 3), (F, 3)], {}),
    ("mul", [(F, 2, 3)] * 3, {}),
    ("mul", [(F, 2, 3), (F, 2, 3), (F, 3)], {}),
    ("div", [(F, 2, 3)] * 3, {}),
    ("div", [(F, 2, 3), (F, 2, 3), (F, 2)], {}),
    ("scale", [(F, 2, 3)] * 2, {"factor": 0.3}),
    ("silu", [(F, 2, 3)] * 2, {}),
    ("gelu", [(F, 2, 3)] * 2, {"form": "erf"}),
    ("gelu", [(F, 2, 3)] * 2, {"form": "tanh"}),
    ("quick_gelu", [(F, 2, 3)] * 2, {}),
    ("relu2", [(F, 2, 3)] * 2, {}),
    ("sigmoid", [(F, 2, 3)] * 2, {}),
    ("tanh", [(F, 2, 3)] * 2, {}),
    ("exp", [(F, 2, 3)] * 2, {}),
    ("clamp", [(F, 2, 3)] * 2, {"least": -0.5, "most": 1.25}),
    ("larger", [(F, 2, 3), (F, 2, 3), (F, 3)], {}),
    ("gemm", [(F, 2, 4), (F, 2, 3), (F, 3, 4)], {"accumulate": False, "transposed": False}),
    ("gemm", [(F, 2, 4), (F, 2, 3), (F, 4, 3)], {"accumulate": True, "transposed": True}),
    (
        "gemm",
        [(F, 2, 3, 1, 4), (F, 2, 3, 1, 5), (F, 2, 1, 5, 4)],
        {"accumulate": True, "transposed": False},
    ),
    ("gemm", [(F, 3, 1, 4), (F, 3, 1, 5), (F, 5, 4)], {"accumulate": False, "transposed": False}),
    (
        "gemm",
        [(F, 1, 2, 4), (F, 3, 2, 5), (F, 3, 5, 4)],
        {"accumulate": False, "transposed": False},
    ),
    ("gemm", [(F, 1, 2, 4), (F, 3, 2, 5), (F, 3, 4, 5)], {"accumulate": True, "transposed": True}),
    (
        "dequantise",
        [(F, 4, 3), ("u4", 4, 3), (F, 2, 3)],
        {"group": 2, "zero": 8, "lifted": False},
    ),
    (
        "dequantise",
        [(F, 2, 6, 3), ("u8", 2, 6, 3), (F, 2, 2, 3), (F, 2, 2, 3)],
        {"group": 3, "zero": 0, "lifted": True},
    ),
    ("square_sum", [(F, 2), (F, 2, 3)], {}),
    ("square_sum", [(F, 2), (F, 2, 3, 2)], {}),
    ("rms_scale", [(F, 2, 5), (F, 2, 5), (F, 2), (F, 5)], {"count": 9, "eps": 1e-5}),
    ("inverse_rms", [(F, 2, 3), (F, 2, 3)], {"count": 9, "eps": 1e-5}),
    ("rope", [(F, 3, 2, 4), (F, 3, 2, 4), (F, 2)], {"position": 7, "step": 3}),
    ("rope", [(F, 2, 4), (F, 2, 4), (F, 2)], {"position": "place", "step": 1}),
    ("row_max", [(F, 2), (F, 2, 3)], {}),
    ("row_sum", [(F, 2), (F, 2, 3, 2)], {}),
    ("first_at", [(F, 2), (F, 2, 3), (F, 2)], {"rank": "place", "block": 3, "limit": 8}),
    ("exp_sub", [(F, 2, 3), (F, 2, 3), (F, 2)], {}),
    ("at_least", [(F, 2, 3), (F, 2, 3)], {"value": -0.5}),
    ("top_k", [(F, 2, 5), (F, 2, 5)], PLAIN_CHOICE),
    ("top_k", [(F, 6), (F, 6)], {**PLAIN_CHOICE, "count": 6}),
    ("top_k", [(F, 2, 3, 5), (F, 2, 3, 5), (F, 5)], {**PLAIN_CHOICE, "biased": True}),
    (
        "top_k",
        [(F, 4, 12), (F, 4, 12), (F, 12)],
        {**PLAIN_CHOICE, "groups": 4, "kept_groups": 2, "group_top": 2, "biased": True},
    ),
    ("dispatch", [(F, 2, 3, 4), (F, 2, 4), (F, 2, 3)], {}),
    ("dispatch", [(F, 3, 4), (F, 4), (F, 3)], {}),
    ("expert_gemm", [(F, 2, 3, 5), (F, 2, 3, 4), (F, 4, 3, 5), (F, 2, 3)], {}),
    ("expert_gemm", [(F, 3, 5), (F, 3, 4), (F, 4, 3, 5), (F, 3)], {}),
    ("combine", [(F, 2, 4), (F, 2, 3, 4), (F, 2, 3)], {}),
    ("merge_softmax", [(F, 2, 12), (F, 2, 12)], {"count": 3}),
    ("merge_softmax", [(F, 5), (F, 5)], {"count": 1}),
    (
        "mask_causal",
        [(F, 2, 3, 4)],
        {"query": "place", "query_step": 1, "key": 1, "key_step": 2, "limit": 6},
    ),
    (
        "mask_causal",
        [(F, 3, 4)],
        {"query": 2, "query_step": 0, "key": "place", "key_step": 1, "limit": "place"},
    ),
    (
        "mask_window",
        [(F, 2, 3, 4)],
        {"window": 2, "query": "place", "query_step": 1, "key": 1, "key_step": 2, "limit": 6},
    ),
    (
        "mask_window",
        [(F, 3, 4)],
        {"window": 1, "query": 2, "query_step": 0, "key": "place", "key_step": 1, "limit": "place"},
    ),
    ("mask_slots", [(F, 2, 5), (N, 2)], {}),
    ("ring_set", [(N, 2)], {"count": "place"}),
    ("ring_push", [(F, 2, 5, 3), (F, 2, 3), (N, 2)], {}),
    ("ring_grow", [(N, 2)], {}),
    ("ring_oldest", [(F, 2, 3), (F, 2, 5, 3), (N, 2)], {}),
    ("ring_drop", [(N, 2)], {"capacity": 5}),
    ("rotate", [(F, 4, 2)], {"by": "place"}),
    ("rotate", [(F, 4)], {"by": 6}),
    ("select_lanes", [(F, 4), (F, 6)], {"shift": "place"}),
    ("select_lanes", [(F, 4), (F, 3)], {"shift": -2}),
]
WHERE = {
    "all": lambda core: core.x >= 0,
    "a row": lambda core: core.y == 1,
    "odd columns": lambda core: core.x % 2 == 1,
    "a few": lambda core: core.x + core.y == 3,
    "none": lambda core: core.x < 0,
}


OF_TASKS = {"likelihood", "draw", "e4m3_rows"}
"""Kernels of tasks alone, which no emitted Python has."""


def test_the_catalogue_is_complete_here_and_in_the_runtime():
    own = KERNELS.keys() - OF_TASKS
    assert {name for name, *_ in CASES} == own
    assert all(hasattr(runtime_kernels, name) for name in own)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("name", "operands", "params"), CASES)
def test_kernel_means_what_the_interpreter_says(name, operands, params, where):
    rng = np.random.default_rng(len(name))
    phase = Phase(Fabric(runtime_wafer(ROWS, COLUMNS)), "p")
    place = phase.core.x - phase.core.y
    buffers = [
        phase.buffer(f"b{n}", kind, *shape, role="state")
        for n, (kind, *shape) in enumerate(operands)
    ]
    phase.load({})
    for buffer in buffers:
        memory = buffer.memory.array
        if memory.dtype.kind in "iu":
            memory[...] = rng.integers(0, 5, memory.shape)
        else:
            memory[...] = rng.standard_normal(memory.shape) * 2
    squares = {"rms_scale": 2, "inverse_rms": 1}.get(name)
    if squares is not None:
        np.abs(buffers[squares].memory.array, out=buffers[squares].memory.array)
    if name in ("dispatch", "expert_gemm", "combine"):  # gates that send some rows only
        np.maximum(buffers[-1].memory.array, 0, out=buffers[-1].memory.array)
    before = [buffer.memory.array.copy() for buffer in buffers]
    given = {key: place if value == "place" else value for key, value in params.items()}
    on = None if where == "all" else phase.where(WHERE[where](phase.core))
    getattr(runtime_kernels, name)(*buffers, on=on, **given)
    lanes = range(ROWS * COLUMNS) if on is None else on.lanes
    for core in range(ROWS * COLUMNS):
        y, x = divmod(core, COLUMNS)
        old = [array[core] for array in before]
        expected = old[0]
        if core in lanes:
            now = {key: x - y if value == "place" else value for key, value in params.items()}
            expected = MICROKERNELS[name](old[0].copy(), old[1:], now)
        got = buffers[0].memory.array[core]
        np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-6)
    for buffer, array in zip(buffers[1:], before[1:], strict=True):
        np.testing.assert_array_equal(buffer.memory.array, array)


def test_results_may_lie_over_operands():
    phase = Phase(Fabric(runtime_wafer(2, 2)), "p")
    v, w = (phase.buffer(name, "f32", 2, 4, role="state") for name in "vw")
    freq = phase.buffer("freq", "f32", 2, role="state")
    phase.load({})
    freq.memory.array[...] = [0.5, 1.5]
    for name, others, params in (
        ("rope", [freq], {"position": 3, "step": 2}),
        ("silu", [], {}),
        ("add", [v], {}),
        ("exp_sub", [v], {}),
    ):
        v.memory.array[...] = np.arange(32.0).reshape(4, 2, 4) / 7
        getattr(runtime_kernels, name)(w, v, *others, **params)
        getattr(runtime_kernels, name)(v, v, *others, **params)
        np.testing.assert_array_equal(v.memory.array, w.memory.array)


OF_ELEMENTS = {
    "silu": {},
    "gelu": {"form": "tanh"},
    "quick_gelu": {},
    "relu2": {},
    "sigmoid": {},
    "tanh": {},
    "exp": {},
    "clamp": {"least": -0.5, "most": 0.5},
    "scale": {"factor": 0.5},
    "at_least": {"value": 0.0},
}


@pytest.mark.parametrize("width", range(1, 10))
@pytest.mark.parametrize("name", OF_ELEMENTS)
def test_one_lane_of_several_is_computed_in_place(name, width):
    """Elements that lie ``width`` apart, core by core: ``numpy.negative`` of NumPy 2 is wrong for
    elements that lie 16 bytes apart when its results do not lie side by side."""
    phase = Phase(Fabric(runtime_wafer(3, 1)), "p")
    one, all_of_it = (phase.buffer(n, "f32", w, role="state") for n, w in (("o", width), ("a", 1)))
    phase.load({})
    given = np.linspace(-2, 2, 3, dtype=np.float32).reshape(3, 1)
    one.memory.array[...], all_of_it.memory.array[...] = np.nan, given
    one.memory.array[:, :1] = given
    for view in (one[:1], all_of_it):
        getattr(runtime_kernels, name)(view, view, **OF_ELEMENTS[name])
    np.testing.assert_array_equal(one.memory.array[:, :1], all_of_it.memory.array)


@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_gelu_is_exact_over_its_whole_range(form):
    phase = Phase(Fabric(runtime_wafer(1, 1)), "p")
    v = phase.buffer("v", "f32", 4001, role="state")
    phase.load({})
    a = np.linspace(-10, 10, 4001, dtype=np.float32)
    v.memory.array[...] = a
    runtime_kernels.gelu(v, v, form=form)
    if form == "erf":
        wanted = [x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in a.astype(float)]
    else:
        inner = math.sqrt(2 / math.pi) * (a.astype(float) + 0.044715 * a.astype(float) ** 3)
        wanted = 0.5 * a * (1 + np.tanh(inner))
    np.testing.assert_allclose(v.memory.array[0], wanted, rtol=2e-6, atol=2e-7)


def test_turns_are_remembered_for_constants_only():
    phase = Phase(Fabric(runtime_wafer(1, 2)), "p")
    v = phase.buffer("v", "f32", 1, 2, role="state")
    table = phase.buffer("table", "f32", 1, role="weight")
    phase.load({})
    table.memory.allocate()[...] = 1.0
    for constant, expected in ((True, 1.0), (False, 2.0)):
        table.memory.constant = True
        table.memory.array[...] = 1.0
        runtime_kernels.rope(v, v, table, position=1, step=1)
        table.memory.array[...] = 2.0
        table.memory.constant = constant
        v.memory.array[...] = [1.0, 0.0]
        runtime_kernels.rope(v, v, table, position=1, step=1)
        np.testing.assert_allclose(v.memory.array[0, 0], [np.cos(expected), np.sin(expected)], 1e-6)
        runtime_kernels.rope(v, v, table, position=2, step=1)
        angle = expected + 4.0
        np.testing.assert_allclose(v.memory.array[1, 0], [np.cos(angle), np.sin(angle)], 1e-5)


def test_large_products_use_threads_and_stay_the_same(monkeypatch):
    phase = Phase(Fabric(runtime_wafer(3, 3)), "p")
    out = phase.buffer("out", "f32", 1, 16, role="state")
    a, b = phase.buffer("a", "f32", 1, 8), phase.buffer("b", "f32", 8, 16)
    phase.load({})
    rng = np.random.default_rng(0)
    for buffer in (a, b):
        buffer.memory.array[...] = rng.standard_normal(buffer.memory.array.shape)
    runtime_kernels.gemm(out, a, b)
    alone = out.memory.array.copy()
    monkeypatch.setattr(runtime_kernels, "_THREADED_BYTES", 0)
    out.memory.poison()
    runtime_kernels.gemm(out, a, b)
    np.testing.assert_array_equal(out.memory.array, alone)


def test_scattered_results_are_put_back():
    phase = Phase(Fabric(runtime_wafer(2, 2)), "p")
    v = phase.buffer("v", "f32", 3, 4, role="state")
    one = phase.buffer("one", "f32", 2, role="state")
    phase.load({})
    one.memory.array[...] = [1.0, 2.0]
    runtime_kernels.add(v[phase.core.x + phase.core.y, span(2 * phase.core.x, 2)], one, one)
    for core in range(4):
        y, x = divmod(core, 2)
        expected = np.zeros((3, 4))
        expected[x + y, 2 * x : 2 * x + 2] = [2.0, 4.0]
        np.testing.assert_array_equal(v.memory.array[core], expected)
    with pytest.raises(IndexError, match="leaves its extent 3"):
        runtime_kernels.fill(v[phase.core.x + 2], value=0.0)

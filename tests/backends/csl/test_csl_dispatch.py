"""Rows that go to the cores of their experts and come back as sums, on the fabric simulator."""

import json

import numpy as np
import pytest
from csl_runs import compiled, emit, run_files
from dispatch_programs import ROUTINGS, Routing, expected, product_tensors, products, routing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ARCHS = ("wse2", "wse3")
WAYS = ("multicast", "ring", "gather")


def simulate(case, chosen, arch, way, folder, monkeypatch, seed=0):
    """Compare a run with NumPy; the facts of the program and the cycles of the run."""
    algo = () if way == "auto" else (f"dispatch={way}",)
    files = emit(compiled(case.text, folder, "dispatch.meshir", device=arch, algo=algo))
    tensors = case.tensors(chosen, seed)
    found, cycles = run_files(files, tensors, folder, monkeypatch)
    (result,) = found.values()
    wanted, bound = expected(tensors, case.dtype)
    assert np.all(np.abs(result - wanted) <= bound)
    return json.loads(files["report.json"]), cycles


@pytest.mark.parametrize("way", WAYS)
def test_all_rows_to_one_expert(way, tmp_path, monkeypatch):
    case = Routing(1, 4, "x", 7, 5, 6)
    simulate(case, routing("one", 7, 6, 1, 3), "wse3", way, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("columns", "kind", "total", "arch", "route"),
    [
        (1, "f32", "f32", "wse2", "random"),
        (3, "f16", "f32", "wse3", "one"),
        (4, "f16", "f16", "wse2", "random"),
    ],
)
def test_products_of_the_rows_that_experts_are_sent(
    columns, kind, total, arch, route, tmp_path, monkeypatch
):
    """What the other experts have is no number."""
    text = products(columns, kind, total)
    files = emit(compiled(text, tmp_path, "products.meshir", device=arch))
    tensors, wanted = product_tensors(routing(route, 5, 6, 2, 7), kind)
    found, _ = run_files(files, tensors, tmp_path, monkeypatch)
    unit = 2.0**-9 if "f16" in (kind, total) else 2.0**-20
    np.testing.assert_allclose(found["all"], wanted, rtol=unit, atol=8 * unit)


HELD_OUT = [
    (Routing(1, 5, "x", 10, 12, 10), "wse2"),
    (Routing(3, 1, "y", 9, 20, 6, "f16"), "wse3"),
    (Routing(2, 4, "x", 7, 9, 11), "wse3"),
    (Routing(1, 7, "x", 14, 40, 14, "f16"), "wse2"),
]


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))]
)
def test_predicted_cycles(number, tmp_path, monkeypatch):
    """Those of every row at every expert, within a tenth; with fewer rows a run takes less."""
    case, arch = HELD_OUT[number]
    way, cycles = WAYS[number % 3], {}
    for kind in ("all", "random", "none"):
        folder = tmp_path / kind
        folder.mkdir()
        chosen = routing(kind, case.tokens, case.experts, 2, 1)
        facts, cycles[kind] = simulate(case, chosen, arch, way, folder, monkeypatch)
    assert facts["predicted_cycles"] == pytest.approx(cycles["all"], rel=0.1)
    assert cycles["none"] < cycles["random"] < cycles["all"]


@st.composite
def cases(draw):
    rows, columns = draw(st.sampled_from([(1, 3), (2, 2), (3, 2), (4, 1), (2, 5), (1, 6)]))
    axis = draw(st.sampled_from("xy"))
    tokens, experts = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    case = Routing(
        rows,
        columns,
        axis,
        tokens,
        draw(st.integers(1, 6)),
        experts,
        draw(st.sampled_from(["f16", "f32"])),
        draw(st.sampled_from(["T", "T", "E", ""])),
        draw(st.sampled_from(["reduce_scatter", "all_reduce", "reduce"])),
    )
    kind, top = draw(st.sampled_from(ROUTINGS)), draw(st.integers(1, experts))
    chosen = routing(kind, tokens, experts, top, draw(st.integers(0, 99)))
    return case, chosen, draw(st.sampled_from(ARCHS)), draw(st.sampled_from(["auto", *WAYS]))


def check_drawn(drawn, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        simulate(*drawn, tmp_path_factory.mktemp("drawn"), patch)


@given(drawn=cases())
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_drawn_routings(drawn, tmp_path_factory):
    check_drawn(drawn, tmp_path_factory)


@pytest.mark.slow
@given(drawn=cases())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_drawn_routings(drawn, tmp_path_factory):
    check_drawn(drawn, tmp_path_factory)

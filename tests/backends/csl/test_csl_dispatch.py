"""Rows that go to the cores of their experts and come back as sums, on the fabric simulator."""

import json

import numpy as np
import pytest
from csl_runs import compiled, emit, run_files
from dispatch_programs import ROUTINGS, Routing, expected, routing
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
    max_examples=12,
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

"""The search's cycles of a program, which know no program, beside the clock of what is emitted.

Both price single kernels alike, so what is held here is that ops become the kernels, shapes,
messages and rounds that the search takes them for.
"""

import pytest

from meshc.driver import CompileRequest, load_any
from meshc.driver.planning.wafers import MeshPhase, phase_on_mesh
from meshc.support.diagnostics import Diagnostics


def both(name, phase, mesh, **fields):
    """The predictions of the search and of the clock."""
    request = CompileRequest(mesh=mesh, **{"device": "wse2", "dtype": "f16", **fields})
    one = MeshPhase(load_any(name, Diagnostics()), phase, request)
    return [phase_on_mesh(one, clock).prediction for clock in (False, True)]


@pytest.mark.parametrize(
    "name, mesh, layers, tokens",
    [
        ("smollm2-135m", "96x96", 2, 1024),
        ("smollm2-135m", "41x97", 1, 4096),
        pytest.param("llama-2-7b", "256x256", 1, 1024, marks=pytest.mark.slow),
        ("llama-3-8b", "420x420", 2, 4096),
    ],
)
def test_steps_are_within_six_percent_of_the_clock(name, mesh, layers, tokens):
    search, clock = both(name, "decode", mesh, layers=layers, seq=tokens)
    assert search.total == pytest.approx(clock.total, rel=0.06)
    assert search.cost.compute == pytest.approx(clock.cost.compute, rel=0.06)


@pytest.mark.parametrize(
    "mesh, tokens",
    [("24x24", 64), pytest.param("46x46", 64, marks=pytest.mark.slow), ("64x64", 256)],
)
def test_prompts_are_within_four_percent_of_the_clock(mesh, tokens):
    search, clock = both("smollm2-135m", "prefill", mesh, layers=1, seq=tokens)
    assert search.total == pytest.approx(clock.total, rel=0.04)
    assert search.cost.compute == pytest.approx(clock.cost.compute, rel=0.04)


@pytest.mark.slow
def test_heads_that_share_a_key_head_are_counted_as_one_product():
    fields = {"layers": 1, "seq": 1024, "device": "wse3"}
    search, clock = both("smollm2-135m", "prefill", "252x252", **fields)
    assert search.total == pytest.approx(clock.total, rel=0.08)


@pytest.mark.parametrize(
    "name, mesh, fields",
    [
        pytest.param("gpt-oss-20b", "512x512", {"layers": 1, "seq": 64}, marks=pytest.mark.slow),
        ("mixtral-8x7b", "456x456", {"layers": 1, "seq": 1024}),
        ("smollm2-135m", "78x78", {"layers": 1, "seq": 1024, "dtype": "f32"}),
    ],
)
def test_experts_and_types_without_vector_forms_are_within_fifteen_percent(name, mesh, fields):
    search, clock = both(name, "decode", mesh, **fields)
    assert search.total == pytest.approx(clock.total, rel=0.15)


def test_devices_without_csl_are_counted_by_the_numbers_of_their_file():
    request = CompileRequest(device="ideal", mesh="16x16", seq=64, layers=1)
    one = MeshPhase(load_any("smollm2-135m", Diagnostics()), "decode", request)
    prediction = phase_on_mesh(one).prediction
    assert "op_cycles" in {each.name for each in prediction.inputs}
    assert all("emitted" not in each.source for each in prediction.inputs)

"""What decode finds where prefill left it: by a fact, and by ``--check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshc.driver import Check, CompileRequest, compile_loaded, load_any
from meshc.interp.check import Session, random_trace
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.mesh import place_interleave
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.support.diagnostics import Diagnostics, InternalError, MeshcError
from meshc.verify.shared_state import check_shared_state

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"


def compiled(check: Check | None = None, level: str = "") -> dict[str, Module]:
    request = CompileRequest(mesh="4x4", seq=12, layers=1, compile_to=level, dtype="f32")
    loaded = load_any(str(MODEL), Diagnostics())
    return compile_loaded(loaded, request, [check] if check else []).modules


def order_by_phase(module: Module) -> bool:
    """A placement that looks at one phase alone."""
    return module.option("phase", "") == "prefill"


def test_decode_begins_where_prefill_ended_at_each_pass() -> None:
    check = Check()
    compiled(check, "mesh")
    assert check.compared == 18 and len(check.prefill) == len(check.stages) == 10
    _, keys = next(iter(check.prefill[0].outcome.state.kept.values()))
    rows = (keys != 0).any((0, 1, 3, 4)).sum()
    assert check.trace.steps[0][1]["pos"] == rows > 1


def test_a_phase_that_looks_for_the_cache_elsewhere_fails_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place_interleave, "natural_order", order_by_phase)
    with pytest.raises(InternalError, match=r"place-interleave.*interp-state.*cache_k"):
        compiled(Check(), "mesh")


def test_a_session_takes_no_state_of_cores_that_are_placed_otherwise() -> None:
    prefill, decode = compiled(None, "mesh").values()
    left = Session(prefill, random_trace(prefill, 1).constant).left()
    Session(decode, random_trace(decode, 1).constant).adopt(left)
    natural = PassManager([PlaceInterleave("none")]).run(decode)
    with pytest.raises(MeshcError, match=r"interp-state.*elements of 'cache_k'") as caught:
        Session(natural, random_trace(natural, 1).constant).adopt(left)
    assert "y = 4 interleaved" in caught.value.diagnostics[0].notes[0]


@pytest.mark.parametrize("level", ["mesh", "tile"])
def test_a_phase_that_looks_for_the_cache_elsewhere_is_not_emitted(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    modules = compiled(None, level)
    check_shared_state(modules)
    monkeypatch.setattr(place_interleave, "natural_order", order_by_phase)
    with pytest.raises(InternalError, match=r"state-differs.*prefill and decode disagree"):
        compiled(None, level)


def test_another_layout_of_a_cache_is_found() -> None:
    modules = compiled(None, "tile")
    decode = modules["decode"]
    decode.buffers = [b for b in decode.buffers if b.role != "state"]
    check_shared_state(modules)
    other = compiled(None, "tile")["prefill"]
    for buffer in other.buffers:
        if buffer.role == "state":
            buffer.value.type = decode.buffers[0].value.type
    with pytest.raises(MeshcError, match="state-differs"):
        check_shared_state({"prefill": modules["prefill"], "decode": other})

"""``--check`` of programs whose weights stay quantised: passes behind the one that quantises are
held against what it leaves, by codes of their own."""

from pathlib import Path

import pytest

from meshc.driver import Check, CompileRequest, compile_loaded, load_any
from meshc.interp.inputs import wanted_inputs
from meshc.support.diagnostics import Diagnostics

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"


@pytest.mark.parametrize("target", ["python", "csl", "cuda"])
def test_passes_behind_kept_weights_are_checked(target):
    request = CompileRequest(
        target=target,
        phase="decode",
        seq=32,
        layers=1,
        keep_quantised=("all=int4_32",),
        **({} if target == "cuda" else {"mesh": "2x2"}),
    )
    check = Check()
    compile_loaded(load_any(str(MODEL), Diagnostics()), request, [check])
    names = {want.name for want in wanted_inputs(check.stages[0].module)}
    assert "w_down.int4_32.codes" in names
    assert len(check.stages) >= 4

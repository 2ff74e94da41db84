"""Prefill and decode of a program agree on how caches take new rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.ops import mesh
from meshc.support.diagnostics import Diagnostics

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"


def policies(**options: str) -> dict[str, set[str]]:
    """The policies of each phase's appends."""
    request = CompileRequest(seq=16, layers=2, compile_to="mesh", **options)  # type: ignore[arg-type]
    found = compile_loaded(load_any(str(MODEL), Diagnostics()), request).modules
    return {
        phase: {op.policy for op in module.walk() if isinstance(op, mesh.Append)}
        for phase, module in found.items()
    }


@pytest.mark.parametrize(("shape", "wanted"), [("2x3", "cyclic"), ("3x1", "shift")])
def test_by_cost_that_of_the_decode_step_holds_for_both(shape: str, wanted: str) -> None:
    assert policies(mesh=shape) == {"prefill": {wanted}, "decode": {wanted}}
    assert policies(mesh=shape, phase="prefill") == {"prefill": {wanted}}


def test_what_is_asked_for_is_taken() -> None:
    for policy in ("shift", "concat"):
        assert policies(mesh="2x3", kv=policy) == {"prefill": {policy}, "decode": {policy}}

"""What is wrong is said of all phases at once, and at its place in the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshc.backends.csl.kernels import expressible
from meshc.backends.csl.kernels.expressible import check_expressible
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError

EXAMPLES = Path(__file__).parents[2] / "examples"


def errors(model: Path, **options: object) -> tuple[Diagnostic, ...]:
    report = Diagnostics()
    request = CompileRequest(**{"seq": 16} | options)  # type: ignore[arg-type]
    with pytest.raises(MeshcError) as caught:
        compile_loaded(load_any(str(model), report), request, (), report)
    return caught.value.diagnostics


def test_kernels_that_csl_lacks_are_named_with_their_place() -> None:
    request = CompileRequest(mesh="8x8", seq=16, device="wse2", phase="prefill", compile_to="tile")
    loaded = load_any(str(EXAMPLES / "tiny_llama.mesh"), Diagnostics())
    module = compile_loaded(loaded, request).modules["prefill"]
    known = {op.kernel for op in module.walk() if isinstance(op, Compute)}
    check_expressible(module, known)
    with pytest.raises(MeshcError) as caught:
        check_expressible(module, known - {"mask_causal"})
    (found,) = caught.value.diagnostics
    assert found.code == "csl-kernel" and "'mask_causal'" in found.message
    assert found.span is not None and "softmax(" in found.render()


def test_a_type_that_csl_lacks_is_said_once_at_its_first_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = CompileRequest(mesh="8x8", device="wse2", dtype="f16", compile_to="tile")
    loaded = load_any(str(EXAMPLES / "mlp.mesh"), Diagnostics())
    module = compile_loaded(loaded, request).modules["main"]
    known = {op.kernel for op in module.walk() if isinstance(op, Compute)}
    monkeypatch.setattr(expressible, "ELEMENTS", {DType.F32: "f32"})
    with pytest.raises(MeshcError) as caught:
        expressible.check_expressible(module, known)
    (found,) = caught.value.diagnostics
    assert found.code == "csl-dtype" and found.span is not None
    assert "elements of type f16" in found.message and "rms_norm(x, norm, eps)" in found.render()


def test_errors_of_passes_come_from_both_phases() -> None:
    found = errors(EXAMPLES / "tiny_llama.mesh", device="wse2", dtype="f16", mesh="1x1", seq=1024)
    assert [d.code for d in found] == ["does-not-fit", "does-not-fit"]
    assert ["in the phase prefill" in d.notes for d in found] == [True, False]


def test_a_refusal_of_cuda_quotes_why_nothing_was_fused() -> None:
    latents = Path(__file__).parents[1] / "data" / "tiny_cuda" / "deepseek-4h"
    (found,) = errors(latents, target="cuda", chunk=256)
    assert found.code == "cuda-graph" and found.help == "without --chunk prompts are read by tasks"
    assert any("an attention block stays: the scores" in note for note in found.notes)
    assert all(".mesh:" in note for note in found.notes)

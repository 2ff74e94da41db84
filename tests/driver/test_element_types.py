"""The element type of a program: --dtype, then the text, then the device's usual one."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

PRODUCT = """model product(M=4, K=6, N=5) {
  weights TYPE  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] { return x @ w }
}"""
UNTOLD = PRODUCT.replace("  weights TYPE  accumulate f32\n", "")


def compiled(text: str, folder: Path, **options: object) -> tuple[str, list[str]]:
    """The type of the weights on the cores, and remarks on it."""
    path = folder / "product.mesh"
    path.write_text(text)
    report = Diagnostics()
    request = CompileRequest(mesh="2x2", **options)  # type: ignore[arg-type]
    module = compile_loaded(load_any(str(path), report), request, (), report).modules["main"]
    (kind,) = {str(b.type.dtype) for b in module.buffers if b.role == "weight"}
    return kind, [m.message for m in report.messages if m.code == "dtype"]


@pytest.mark.parametrize("declared", ["f32", "f16", "bf16"])
def test_what_the_text_says_holds_on_a_device(declared: str, tmp_path: Path) -> None:
    text = PRODUCT.replace("TYPE", declared)
    assert compiled(text, tmp_path, target="csl", device="wse2") == (declared, [])
    assert compiled(text, tmp_path, target="csl", device="wse2", dtype="f16") == ("f16", [])


def test_a_text_that_says_nothing_takes_the_usual_type_of_the_device(tmp_path: Path) -> None:
    assert compiled(UNTOLD, tmp_path, target="csl", device="wse2")[0] == "f16"


def test_what_a_device_lacks_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MeshcError, match=r"bad-dtype.*toy does not compute in bf16") as caught:
        compiled(PRODUCT.replace("TYPE", "bf16"), tmp_path, device="toy", compile_to="tile")
    (found,) = caught.value.diagnostics
    assert found.span is not None and (found.span.line, found.span.column) == (2, 11)


def test_emitted_numpy_computes_in_f32_and_says_so(tmp_path: Path) -> None:
    kind, remarks = compiled(PRODUCT.replace("TYPE", "f16"), tmp_path)
    assert kind == "f32" and len(remarks) == 1 and "f16 in the model and f32" in remarks[0]
    assert compiled(PRODUCT.replace("TYPE", "f32"), tmp_path) == ("f32", [])


def test_a_checkpoint_is_computed_in_the_usual_type_and_that_is_said() -> None:
    report = Diagnostics()
    request = CompileRequest(device="wse2", phase="decode", layers=1, seq=8, compile_to="graph")
    compiled = compile_loaded(load_any("llama-3-8b", report), request, (), report)
    assert str(compiled.modules["decode"].dtype()) == "f16"
    assert ["bf16 in the model and f16" in m.message for m in report.messages].count(True) == 1

"""Weights that stay quantised on the cores: results are those of decoded weights."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoints import METHODS, int4, rounded_by_ggml, save

import meshc
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.weights import AS_STORED, formats_to_keep
from meshc.frontend.checkpoints import find_packaged_weights
from meshc.ir.codes import CODE_FORMATS
from meshc.passes.tile.keep_quantised import KeepQuantised
from meshc.support.diagnostics import Diagnostics, MeshcError

TINY = Path(__file__).parents[1] / "data" / "tiny"
PROMPT = [3, 14, 15, 9, 26]


def _logits(
    model: str, mesh: str, kept: tuple[str, ...], dtype: str = "", layers: int | None = None
) -> tuple[np.ndarray, meshc.driver.Compiled]:
    """Of a few steps of the emitted Python program."""
    request = CompileRequest(
        mesh=mesh, seq=16, phase="decode", keep_quantised=kept, dtype=dtype, layers=layers
    )
    compiled = compile_loaded(load_any(model, Diagnostics()), request)
    with compiled.load() as program:
        return program.generate(PROMPT, 3, ignore_eos=True).logits, compiled


def _kept(model: str, layers: int | None = None) -> tuple[str, ...]:
    loaded = load_any(model, Diagnostics())
    place = loaded.weights or find_packaged_weights(model)
    return formats_to_keep(AS_STORED, place, loaded.config, layers)


@pytest.mark.parametrize(
    ("method", "group", "mesh", "dtype"),
    [
        ("awq", 32, "2x4", "f16"),
        ("gptq", 64, "4x1", "f32"),
        pytest.param("awq", 128, "2x1", "f16", marks=pytest.mark.slow),
        pytest.param("gptq", 32, "1x2", "f32", marks=pytest.mark.slow),
        pytest.param("awq", 64, "2x2", "f32", marks=pytest.mark.slow),
        pytest.param("gptq", 128, "1x1", "bf16", marks=pytest.mark.slow),
    ],
)
def test_int4_gives_the_same_logits(
    tmp_path: Path, method: str, group: int, mesh: str, dtype: str
) -> None:
    random = np.random.default_rng(group)
    folder = save(tmp_path, int4(random, method, group), {**METHODS[method], "group_size": group})
    kept = _kept(str(folder))
    names = {"wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"}
    whole_heads = {"wo"} if group > 64 else set()
    assert {*kept} == {f"{name}=int4_{group}" for name in names - whole_heads}
    if mesh in ("2x2", "4x1"):  # where a core has 32 lanes of a head
        kept = tuple(text for text in kept if not text.startswith("wo"))
    found, compiled = _logits(str(folder), mesh, kept, dtype)
    wanted, plain = _logits(str(folder), mesh, (), dtype)
    _same(found, wanted, dtype)
    assert _weight_bytes(compiled) < 0.65 * _weight_bytes(plain)


def _same(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    """The numbers are equal; NumPy adds the terms of a product in an order that depends on how they
    lie in memory."""
    bound = {"f32": 2e-6, "f16": 4e-3, "bf16": 3e-2, "": 2e-6}[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)
    np.testing.assert_array_equal(found.argmax(-1), wanted.argmax(-1))


def _weight_bytes(compiled: meshc.driver.Compiled) -> int:
    buffers = compiled.modules["decode"].buffers
    return sum(b.type.bytes for b in buffers if b.role == "weight" and len(b.type.shape) == 3)


def test_rows_that_cut_groups_are_refused(tmp_path: Path) -> None:
    folder = save(
        tmp_path,
        int4(np.random.default_rng(1), "awq", 64),
        {**METHODS["awq"], "group_size": 64},
    )
    with pytest.raises(MeshcError, match="a core has 32 of its rows, which cut groups of 64"):
        _logits(str(folder), "2x4", _kept(str(folder)))


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"phase": "prefill"}, "--phase is prefill"), ({"chunk": 8, "target": "csl"}, "--chunk is 8")],
)
def test_prompts_in_one_piece_are_refused(asked: dict[str, Any], words: str) -> None:
    """Their products move weights from core to core."""
    with pytest.raises(MeshcError, match=f"{words}, but products of many tokens move weights"):
        CompileRequest(keep_quantised=("all=q4_0",), **asked).check()


@pytest.mark.parametrize("target", ["python", "csl"])
def test_decode_steps_read_prompts_where_nobody_asks_for_one_phase(target: str) -> None:
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    asked = CompileRequest(target=target, mesh="2x1", seq=6, keep_quantised=("all=q4_0",))
    report = Diagnostics()
    found = compile_loaded(loaded, asked, report=report)
    (warned,) = [one for one in report.messages if one.severity == "warning"]
    assert warned.code == "prompt-by-steps" and "move weights" in warned.message
    alone = compile_loaded(loaded, replace(asked, phase="decode"))
    assert found.files == alone.files


def test_a_model_without_steps_keeps_nothing_quantised() -> None:
    loaded = load_any(str(TINY.parents[2] / "examples" / "matmul.mesh"), Diagnostics())
    with pytest.raises(MeshcError, match="has no decode step, and products of many tokens"):
        compile_loaded(loaded, CompileRequest(mesh="2x2", keep_quantised=("all=q4_0",)))


def test_codes_of_another_format_are_not_taken(tmp_path: Path) -> None:
    folder = save(
        tmp_path,
        int4(np.random.default_rng(1), "awq", 32),
        {**METHODS["awq"], "group_size": 32},
    )
    with pytest.raises(MeshcError, match=r"no weights for 'wq\.q4_0\.codes'"):
        _logits(str(folder), "2x2", ("all=q4_0",))


@pytest.mark.parametrize(("form", "mesh"), [("q8_0", "2x4"), ("q4_0", "1x2"), ("q4_1", "2x1")])
def test_numbers_are_quantised_where_a_format_is_asked_for(
    tmp_path: Path, form: str, mesh: str
) -> None:
    """The logits are those of a checkpoint whose numbers another quantiser has rounded."""
    pytest.importorskip("gguf")
    folders = rounded_by_ggml(form, tmp_path)
    found, compiled = _logits(str(folders[0]), mesh, (f"all={form}",), "f32")
    wanted, decoded = _logits(str(folders[1]), mesh, (), "f32")
    _same(found, wanted, "f32")
    assert _weight_bytes(compiled) < 0.4 * _weight_bytes(decoded)


def test_kernels_that_decode_nothing_are_refused() -> None:
    request = CompileRequest(target="cuda", keep_quantised=("all=q4_0",), chunk=64)
    words = "--chunk is 64, and kernels of many tokens read decoded weights"
    with pytest.raises(MeshcError, match=words):
        request.check()


def test_weights_that_have_no_codes_are_refused() -> None:
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    with pytest.raises(MeshcError, match="has no weights that can stay quantised"):
        formats_to_keep(AS_STORED, loaded.weights, loaded.config, None)
    with pytest.raises(MeshcError, match="--keep-quantised cannot be 'q3_k'"):
        formats_to_keep("q3_k", None, None, None)


PROGRAM = """
module @m level(tile) {
  dims N = 2, K = 64, F = 3, K_by_32 = 2
  mesh y = 2, x = 1
  buffer %x : f32[1, 32] {role = in}
  buffer %w.codes : u4[2, 32, 3] {role = weight}
  buffer %w.scales : f16[2, 1, 3] {role = weight}
  buffer %w.least : f32[2, 1, 3] {role = weight}
  buffer %w.numbers : f32[32, 3]
  buffer %y : f32[32, 3] {role = out}
  port @w.codes in u4[N, K, F] : %w.codes {lanes = [n, k, f], element = [n, "k + 32*y", f]}
  port @w.scales in f16[N, K_by_32, F] : %w.scales {lanes = [n, k, f], element = [n, "k + y", f]}
  port @w.least in f32[N, K_by_32, F] : %w.least {lanes = [n, k, f], element = [n, "k + y", f]}
  port @y out f32[K, F] : %y {lanes = [k, f], element = ["k + 32*y", f]}
  program @main {
    tile.dequantise %y, %w.codes[1], %w.scales[1], %w.least[1] {group = 32, zero = 3, lifted = true}
  }
}
"""


@pytest.mark.parametrize(
    ("was", "would", "words"),
    [
        ("%w.codes[1], %w.scales[1]", "%w.scales[1], %w.scales[1]", "'codes' has elements of f16"),
        ("%y, %w.codes", "%w.codes[0], %w.codes", "'b' has elements of u4"),
        ("group = 32", "group = 16", "32 rows are not 1 groups of 16"),
        ("@w.codes in u4[N, K, F]", "@w.codes in f32[N, K, F]", "f32 for a buffer of u4"),
        ("%w.least : f32", "%w.least : u4", "f32 for a buffer of u4"),
    ],
)
def test_codes_are_read_by_dequantise_alone(was: str, would: str, words: str) -> None:
    with pytest.raises(MeshcError, match=re.escape(words)):
        meshc.parse(PROGRAM.replace(was, would), "m.meshir")


def test_graphs_have_no_codes() -> None:
    text = """module @m level(graph) {
  dims E = 4
  func @f(in %x: u4[E]) -> (u4[E]) {
    graph.return %x
  }
}
"""
    with pytest.raises(MeshcError, match=r"u4\[E\] belongs to the tile level"):
        meshc.parse(text, "m.meshir")


def test_the_meaning_of_dequantise_in_both_judges(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    codes = random.integers(0, 16, (2, 64, 3)).astype(np.uint8)
    scales = random.standard_normal((2, 2, 3)).astype(np.float16).astype(np.float32)
    least = random.standard_normal((2, 2, 3)).astype(np.float32)
    wanted = np.empty((64, 3), np.float32)
    for k in range(64):
        for f in range(3):
            number = np.float32(int(codes[1, k, f]) - 3) * scales[1, k // 32, f]
            wanted[k, f] = number + least[1, k // 32, f]
    arrays = {"w.codes": codes, "w.scales": scales, "w.least": least}
    module = meshc.parse(PROGRAM, "m.meshir")
    np.testing.assert_array_equal(meshc.run(module, arrays)[0], wanted)
    file = tmp_path / "m.meshir"
    file.write_text(PROGRAM)
    compiled = compile_loaded(load_any(str(file), Diagnostics()), CompileRequest())
    with compiled.load(arrays) as program:
        np.testing.assert_array_equal(program.run()["y"], wanted)


PRODUCT = """
module @m level(tile) {
  dims N = 2, K = 64, F = 7
  mesh y = 2, x = 1
  buffer %x : f32[32] {role = in}
  buffer %w : f32[2, 32, 7] {role = weight}
  buffer %out : f32[9] {role = out}
  port @x in f32[K] : %x {lanes = [k], element = ["k + 32*y"]}
  port @w in f32[N, K, F] : %w {lanes = [n, k, f], element = [n, "k + 32*y", f]}
  port @out out f32[F] : %out {lanes = [f], element = ["f - 1"], where = "y = 1 and f >= 1"}
  program @main {
    tile.fill %out {value = 0.0}
    tile.for {var = block, count = 2} {
      tile.gemm %out[1 +: 7] as [1, 7], %x as [1, 32], %w[block] {accumulate = true,
        transposed = false}
    }
  }
}
"""


@pytest.mark.parametrize(
    ("block_bytes", "columns"), [(1, 1), (300, 2), (400, 3), (512, 4), (900, 7)]
)
def test_columns_are_decoded_in_blocks(block_bytes: int, columns: int) -> None:
    """Of which the last one may be smaller."""
    random = np.random.default_rng(7)
    x = random.standard_normal(64).astype(np.float32)
    codes = random.integers(0, 16, (2, 64, 7)).astype(np.uint8)
    scales = random.standard_normal((2, 2, 7)).astype(np.float16).astype(np.float32)
    decoded = (codes.astype(np.float32) - 8) * scales.repeat(32, axis=1)
    before = meshc.parse(PRODUCT, "m.meshir")
    wanted = meshc.run(before, {"x": x, "w": decoded})[0]
    step = KeepQuantised(("w=q4_0",), block_bytes)
    after = meshc.PassManager([step]).run(meshc.parse(PRODUCT, "m.meshir"), Diagnostics())
    (numbers,) = (b for b in after.buffers if b.value.name == "w.numbers")
    assert numbers.type.shape == (32, columns)
    found = meshc.run(after, {"x": x, "w.q4_0.codes": codes, "w.q4_0.scales": scales})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.smollm2
def test_smollm2_as_its_file_has_it() -> None:
    """Two layers of the published file: Q4_1, and Q8_0 for the head."""
    kept = _kept("smollm2-135m", layers=2)
    assert {text.split("=")[1] for text in kept} == {"q4_1", "q8_0"}
    found, _ = _logits("smollm2-135m", "2x2", kept, layers=2)
    wanted, _ = _logits("smollm2-135m", "2x2", (), layers=2)
    _same(found, wanted, "")


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.smollm2
@pytest.mark.parametrize(("mesh", "dtype"), [("3x2", "f32"), ("1x6", "f16"), ("3x6", "bf16")])
def test_the_whole_of_smollm2(mesh: str, dtype: str) -> None:
    found, _ = _logits("smollm2-135m", mesh, _kept("smollm2-135m"), dtype)
    wanted, _ = _logits("smollm2-135m", mesh, (), dtype)
    _same(found, wanted, dtype)


def test_formats_are_whole() -> None:
    assert {form.group for form in CODE_FORMATS.values() if form.on_cores} == {32, 64, 128}

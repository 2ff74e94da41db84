"""Weights that stay quantised in the memory of a GPU: logits are those of decoded weights.

Kernels for CUDA in the executor are held against emitted Python in f32, which decodes weights when
they are loaded. Caches hold 16 bits, which is what is left between the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoints import (
    METHODS,
    MIXTURE,
    fp8,
    fp8_mixture,
    int4,
    rounded_by_ggml,
    save,
)

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.executor import CXX
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.weights import AS_STORED, IF_POSSIBLE, formats_to_keep
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 46, 26, 43, 38, 32]
BOUNDS = {"f16": 2e-3, "bf16": 1.5e-2}
PROJECTIONS = {"wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"}


def kept(folder: Path, asked: str = AS_STORED, streamed: bool = True) -> tuple[str, ...]:
    loaded = load_any(str(folder), Diagnostics())
    return formats_to_keep(asked, loaded.weights, loaded.config, None, streamed)


def logits(folder: Path, **asked: Any) -> tuple[np.ndarray, meshc.driver.Compiled, Diagnostics]:
    report = Diagnostics()
    request = CompileRequest(seq=32, **asked)
    compiled = compile_loaded(load_any(str(folder), report), request, (), report)
    with compiled.load(backend="cuda-cpu" if request.target == "cuda" else "") as program:
        return program.generate(PROMPT, 3, ignore_eos=True).logits, compiled, report


def same(folder: Path, formats: tuple[str, ...], dtype: str, of: Path | None = None) -> dict:
    """The weights of the manifest of a program that keeps ``formats`` of the checkpoint, whose
    logits are those of the checkpoint ``of``."""
    wanted, _, _ = logits(of or folder, mesh="1x1", dtype="f32")
    found, compiled, _ = logits(folder, target="cuda", dtype=dtype, keep_quantised=formats)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUNDS[dtype] * np.abs(wanted).max())
    np.testing.assert_array_equal(found.argmax(-1), wanted.argmax(-1))
    return json.loads(compiled.files["manifest.json"])["weights"]


@pytest.mark.parametrize(
    ("method", "group", "dtype"),
    [
        ("awq", 32, "f16"),
        ("gptq", 64, "bf16"),
        pytest.param("awq", 64, "bf16", marks=pytest.mark.slow),
        pytest.param("gptq", 32, "f16", marks=pytest.mark.slow),
    ],
)
def test_int4(tmp_path: Path, method: str, group: int, dtype: str) -> None:
    random = np.random.default_rng(group)
    folder = save(tmp_path, int4(random, method, group), {**METHODS[method], "group_size": group})
    formats = kept(folder)
    assert {*formats} == {f"{name}=int4_{group}" for name in PROJECTIONS}
    held = same(folder, formats, dtype)
    assert [w["codes"] for w in held.values()].count(f"int4_{group}") == 6  # gates beside values


@pytest.mark.parametrize(
    ("scales", "dtype"),
    [("tensor", "f16"), ("channel", "bf16"), ("block", "f16")],
)
def test_fp8(tmp_path: Path, scales: str, dtype: str) -> None:
    quantization: dict[str, Any] = {"quant_method": "fp8"}
    if scales == "block":
        quantization["weight_block_size"] = [128, 128]
    folder = save(tmp_path, fp8(np.random.default_rng(8), scales), quantization)
    formats = kept(folder)
    assert {*formats} == {f"{name}=e4m3_128" for name in PROJECTIONS}
    same(folder, formats, dtype)


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("q8_0", "bf16"),
        ("q4_0", "f16"),
        pytest.param("q4_1", "bf16", marks=pytest.mark.slow),
        ("q5_1", "bf16"),
        pytest.param("q5_0", "f16", marks=pytest.mark.slow),
        pytest.param("mxfp4", "bf16", marks=pytest.mark.slow),
    ],
)
def test_numbers_are_quantised_where_a_format_is_asked_for(
    tmp_path: Path, form: str, dtype: str
) -> None:
    pytest.importorskip("gguf")
    plain, rounded = rounded_by_ggml(form, tmp_path)
    same(plain, (f"all={form}",), dtype, of=rounded)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", pytest.param("bf16", marks=pytest.mark.slow)])
def test_experts(tmp_path: Path, dtype: str) -> None:
    tensors = fp8_mixture(np.random.default_rng(8))
    folder = save(tmp_path, tensors, {"quant_method": "fp8"}, MIXTURE)
    formats = kept(folder)
    assert {text.split("=")[0] for text in formats} >= {"w_gate", "w_up", "w_down", "wq"}, formats
    held = same(folder, formats, dtype)
    assert sum("w_" in name and bool(w["codes"]) for name, w in held.items()) == 2


def test_what_kernels_do_not_decode_is_refused_by_name(tmp_path: Path) -> None:
    """Elements of a group that do not lie side by side; the others stay quantised."""
    tensors = int4(np.random.default_rng(1), "gptq", 128)
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.o_proj.g_idx"] = np.arange(256, dtype=np.int32) % 2
    folder = save(tmp_path, tensors, {**METHODS["gptq"], "group_size": 128})
    words = "'wo' cannot stay quantised: files have it as I32 words of 4 bits, as kernels do not"
    with pytest.raises(MeshcError, match=words):
        logits(folder, target="cuda", keep_quantised=kept(folder))
    _, compiled, report = logits(folder, target="cuda", keep_quantised=kept(folder, IF_POSSIBLE))
    said = [one.message for one in report.messages if one.code == "keep-quantised"]
    assert any(text.startswith("'wo' is decoded: files have it as I32 words") for text in said)
    weights = json.loads(compiled.files["manifest.json"])["weights"]
    assert {weight["codes"] for weight in weights.values()} == {"", "int4_128"}


def test_cores_of_other_targets_decode_no_floats(tmp_path: Path) -> None:
    folder = save(tmp_path, fp8(np.random.default_rng(8), "tensor"), {"quant_method": "fp8"})
    with pytest.raises(MeshcError, match="has no weights that can stay quantised"):
        kept(folder, streamed=False)
    with pytest.raises(MeshcError, match="cannot be 'e4m3_64'"):
        kept(folder, "e4m3_64", False)
    request = CompileRequest(mesh="1x1", seq=8, phase="decode", keep_quantised=("all=e4m3_64",))
    with pytest.raises(MeshcError, match="cores of a mesh do not decode e4m3_64"):
        compile_loaded(load_any(str(folder), Diagnostics()), request)


def test_floats_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    tensors = fp8(np.random.default_rng(8), "tensor")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = 0xFF
    folder = save(tmp_path, tensors, {"quant_method": "fp8"})
    with pytest.raises(MeshcError, match="values that e4m3_128 has no code for"):
        logits(folder, target="cuda", keep_quantised=kept(folder))


def test_memory_is_that_of_codes(tmp_path: Path) -> None:
    """4 bits and 16 for 32 of them, of weights of 16 bits; tables and norms as they were."""
    pytest.importorskip("gguf")
    plain, _ = rounded_by_ggml("q4_0", tmp_path)
    report = Diagnostics()
    request = CompileRequest(seq=32, target="cuda", keep_quantised=("all=q4_0",))
    compiled = compile_loaded(load_any(str(plain), report), request, (), report)
    numbers = 2 * 2 * (128 * 512 + 256 * 128 + 3 * 128 * 256) + 2 * 64 * 128
    taken = numbers // 2 * 9 // 16
    said = {one.message for one in report.messages if one.code == "keep-quantised"}
    words = f"weights that stay quantised take {taken} bytes of the GPU instead of {numbers}"
    assert words in said
    program = from_json(str(compiled.files["manifest.json"]))
    assert sum(weight.bytes for weight in program.weights.values() if weight.codes) == taken

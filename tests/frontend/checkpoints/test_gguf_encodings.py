"""Every encoding of GGUF files: values, blocks by the format's formulas, and hostile files."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from dense_reference import DenseDecoder
from ggml_blocks import DECODERS, GRIDS, HALVES
from model_files import (
    diagnosed,
    gguf_bytes,
    gguf_model_bytes,
    gguf_pairs,
    gguf_tensors,
    hf_tensors,
    model_config,
)
from reduced import only

import meshc
from meshc.backends.cuda.executor import CXX
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.weights import AS_STORED, formats_to_keep
from meshc.frontend.checkpoints import (
    ModelConfig,
    catalogue_config,
    config_from_gguf,
    find_packaged_weights,
    open_checkpoint,
)
from meshc.frontend.checkpoints.gguf.blocks import CODES_OF
from meshc.frontend.checkpoints.gguf.encodings import ENCODINGS, Encoding
from meshc.frontend.checkpoints.gguf.gguf_weights import GgufWeights
from meshc.frontend.checkpoints.gguf.parts import read_gguf_header
from meshc.ir.codes import CODE_FORMATS, CODES, LEAST, LEAST_UNITS, SCALES, UNITS
from meshc.ir.stored import floats
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.models

QUANTISED = {e.name: number for number, e in ENCODINGS.items() if e.elements > 1}
RECORDED = Path(__file__).parents[2] / "data" / "ggml_blocks.json"
WRITTEN_BY_THE_PACKAGE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def _random_blocks(name: str, count: int, seed: int, scale: float = 1.0) -> np.ndarray:
    """Blocks of random codes with random scales of about ``scale``: uint8 [count, bytes]."""
    random = np.random.default_rng(seed)
    encoding = ENCODINGS[QUANTISED[name]]
    blocks = random.integers(0, 256, (count, encoding.block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = 127 + int(np.log2(scale)) - blocks[:, 0] % 8
    if name == "IQ1_M":  # four bits of its float are the highest ones of each of four words
        words = np.array(scale, "<f2").view("<u2") >> np.arange(0, 16, 4) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | (words << 4).astype(np.uint8)
    for at in HALVES[name]:
        scales = scale * random.standard_normal((count, 1))
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8)
    return blocks


def _dequantised(blocks: np.ndarray, number: int) -> np.ndarray:
    """What the ``gguf`` package makes of rows of blocks."""
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    return np.asarray(quants.dequantize(blocks, constants.GGMLQuantizationType(number)))


def _weights(folder: Path, name: str, shape: tuple[int, ...], raw: bytes) -> GgufWeights:
    file = folder / "x.gguf"
    file.write_bytes(gguf_bytes([], [("t", shape, QUANTISED[name], raw)]))
    return GgufWeights(read_gguf_header(file))


def test_all_encodings_are_tested() -> None:
    assert set(DECODERS) | set(GRIDS) == set(QUANTISED) == set(HALVES)


def test_blocks_are_as_large_as_the_package_says() -> None:
    constants = pytest.importorskip("gguf.constants")
    for number, encoding in ENCODINGS.items():
        kind = constants.GGMLQuantizationType(number)
        sizes = constants.GGML_QUANT_SIZES[kind]
        assert Encoding(kind.name, *sizes) == encoding


@pytest.mark.parametrize("name", DECODERS)
def test_blocks_by_the_formulas_of_the_format(tmp_path: Path, name: str) -> None:
    blocks = _random_blocks(name, 6, seed=3)
    per_row = ENCODINGS[QUANTISED[name]].elements * 2
    found = _weights(tmp_path, name, (3, per_row), blocks.tobytes()).read("t")
    wanted = np.array([DECODERS[name](bytes(block)) for block in blocks], np.float32)
    np.testing.assert_array_equal(found, wanted.reshape(3, per_row))


@pytest.mark.parametrize("name", GRIDS)
def test_points_of_grids_are_those_of_ggml(tmp_path: Path, name: str) -> None:
    recorded = json.loads(RECORDED.read_text())[name]
    blocks = bytes.fromhex(recorded["blocks"])
    wanted = np.frombuffer(base64.b64decode(recorded["numbers"]), "<f4").reshape(-1, 256)
    found = _weights(tmp_path, name, wanted.shape, blocks).read("t")
    np.testing.assert_array_equal(found, wanted)


def test_scales_of_mxfp4_at_their_ends(tmp_path: Path) -> None:
    """Those below the smallest normal number, and the largest that does not overflow."""
    blocks = _random_blocks("MXFP4", 5, seed=4)
    blocks[:, 0] = (0, 1, 2, 3, 252)
    found = _weights(tmp_path, "MXFP4", (5, 32), blocks.tobytes()).read("t")
    wanted = np.array([DECODERS["MXFP4"](bytes(block)) for block in blocks], np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert found[0].any()


@pytest.mark.parametrize("name", QUANTISED)
def test_values_are_those_of_the_package(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in chunks of a few rows, the last one shorter."""
    monkeypatch.setattr("meshc.frontend.checkpoints.tensor_source._CHUNK_BYTES", 1 << 14)
    encoding = ENCODINGS[QUANTISED[name]]
    rows, columns = 67, 4 * 256
    blocks = _random_blocks(name, rows * columns // encoding.elements, seed=5)
    stored = blocks.reshape(rows, -1)
    found = _weights(tmp_path, name, (rows, columns), stored.tobytes()).read("t")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, _dequantised(stored, QUANTISED[name]))


@pytest.mark.parametrize("number", CODES_OF)
def test_codes_and_scales_make_the_same_numbers(tmp_path: Path, number: int) -> None:
    """What kernels decode: by the words of docs/weights.md, in f32 as the formulas of ggml."""
    name, form = ENCODINGS[number].name, CODE_FORMATS[ENCODINGS[number].name.lower()]
    blocks = _random_blocks(name, 12 * 256 // ENCODINGS[number].elements, seed=6)
    weights = _weights(tmp_path, name, (3, 2, 2 * 256), blocks.tobytes())
    assert weights.tensors["t"].kept == (form.name,)
    found = weights.read_encoded("t", form)

    def of_elements(part: str) -> np.ndarray:
        values = floats(found.part(part)).astype(np.float32)
        assert values.shape == (3, 2, 2 * 256 // form.elements(part))
        return np.repeat(values, form.elements(part), -1)

    scales = of_elements(SCALES)
    if form.block:
        scales = (scales - np.float32(form.scale_zero)) * of_elements(UNITS)
    numbers = (of_elements(CODES) - np.float32(form.zero)) * scales
    if form.least:
        least = of_elements(LEAST)
        numbers = numbers + (least * of_elements(LEAST_UNITS) if form.block else least)
    np.testing.assert_array_equal(numbers, weights.read("t"))


@pytest.mark.every_case
@pytest.mark.parametrize("name", QUANTISED)
def test_rows_that_cut_blocks_are_refused(tmp_path: Path, name: str) -> None:
    encoding = ENCODINGS[QUANTISED[name]]
    raw = b"\0" * encoding.block_bytes * 8
    columns = encoding.elements + encoding.elements // 2
    call = lambda: _weights(tmp_path, name, (2, columns), raw)  # noqa: E731
    (found,) = diagnosed("gguf-invalid", call)
    assert f"whole blocks of {encoding.elements}, as {name} has" in found.message


@pytest.mark.every_case
@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_that_are_not_there_are_refused(tmp_path: Path, name: str) -> None:
    encoding = ENCODINGS[QUANTISED[name]]
    raw = b"\0" * encoding.block_bytes * 16
    call = lambda: _weights(tmp_path, name, (17, encoding.elements), raw)  # noqa: E731
    (found,) = diagnosed("gguf-invalid", call)
    assert "ends at byte" in found.message
    source = _weights(tmp_path, name, (16, encoding.elements), raw)
    file = tmp_path / "x.gguf"
    file.write_bytes(file.read_bytes()[: source.header.tensors["t"].place + len(raw) - 1])
    (found,) = diagnosed("gguf-invalid", lambda: source.read("t"))
    assert "inside tensor 't'" in found.message


@pytest.mark.parametrize(("number", "shown"), [(15, "Q8_K"), (28, "F64"), (99, "type 99")])
def test_other_types_are_refused_by_name(tmp_path: Path, number: int, shown: str) -> None:
    config = model_config()
    stored = [
        (name, t.shape, number if "attn_q" in name else 0, t.tobytes())
        for name, t in gguf_tensors(config, hf_tensors(config))
    ]
    file = tmp_path / "small.gguf"
    file.write_bytes(gguf_bytes(gguf_pairs(config), stored))
    found, *_ = diagnosed("weights-unsupported-dtype", lambda: open_checkpoint(file, config))
    assert f"has type {shown}, which meshc does not read" in found.message


def _encoded(value: np.ndarray, name: str, seed: int) -> np.ndarray:
    """Rows of blocks: of ``value`` where the package can write the encoding, else random ones."""
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    number = QUANTISED[name]
    if name in WRITTEN_BY_THE_PACKAGE:
        blocks = quants.quantize(value, constants.GGMLQuantizationType(number))
    else:
        blocks = _random_blocks(name, value.size // ENCODINGS[number].elements, seed, 1e-4)
    return np.asarray(blocks).reshape(value.shape[0], -1)


def _encoded_model(
    folder: Path, config: ModelConfig, tensors: Sequence[tuple[str, np.ndarray]], name: str
) -> list[Path]:
    """Two files of one model: its matrices in the encoding ``name``, and what the package decodes
    of that, as float32."""
    encoded, plain = [], []
    for seed, (tensor, value) in enumerate(tensors):
        number, raw, decoded = 0, value, value
        if value.ndim == 2:
            number, raw = QUANTISED[name], _encoded(value, name, seed)
            decoded = _dequantised(raw, number)
        encoded.append((tensor, value.shape, number, raw.tobytes()))
        plain.append((tensor, value.shape, 0, decoded.astype("<f4").tobytes()))
    files = [folder / f"{name}.gguf", folder / f"{name}-plain.gguf"]
    for file, stored in zip(files, (encoded, plain), strict=True):
        file.write_bytes(gguf_bytes(gguf_pairs(config), stored))
    return files


@pytest.mark.parametrize("name", QUANTISED)
def test_tokens_are_those_of_the_dequantised_weights(tmp_path: Path, name: str) -> None:
    config = model_config(hidden=256, ffn=256, head_dim=64, layers=1, tied_embeddings=True)
    files = _encoded_model(tmp_path, config, gguf_tensors(config, hf_tensors(config)), name)
    assert config_from_gguf(files[0]).dtype == name.lower()
    checkpoints = [open_checkpoint(file, config) for file in files]
    for tensor in checkpoints[0].names():
        np.testing.assert_array_equal(*(c.read(tensor) for c in checkpoints))
    prompt = [3, 14, 15, 9]
    tokens = [DenseDecoder(checkpoint).greedy(prompt, 6) for checkpoint in checkpoints]
    assert tokens[0] == tokens[1]


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("name", WRITTEN_BY_THE_PACKAGE)
def test_smollm2_in_another_encoding(tmp_path: Path, name: str) -> None:
    """The published model, through the emitted program: its Q4_1 weights encoded once more."""
    config = catalogue_config("smollm2-135m")
    stored = GgufWeights(read_gguf_header(find_packaged_weights("smollm2-135m")))
    tensors = [(tensor, stored.read(tensor)) for tensor in stored.tensors]
    compiled = meshc.compile("smollm2-135m", mesh="2x2", seq=24)
    found = []
    for file in _encoded_model(tmp_path, config, tensors, name):
        checkpoint = open_checkpoint(file, config)
        weights = {tensor: checkpoint.read(tensor) for tensor in checkpoint.names()}
        with compiled.load(weights) as model:
            found.append(model.generate([504, 3575, 282, 4649, 314], 12, ignore_eos=True).tokens)
    assert len(found[0]) == 12
    assert found[0] == found[1]


def test_a_file_of_several_encodings(tmp_path: Path) -> None:
    """As most files are: llama.cpp keeps some tensors at more bits."""
    config = model_config(hidden=256, ffn=256, head_dim=64, layers=1, tied_embeddings=True)
    kinds = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q5_0"}
    stored, wanted = [], {}
    for at, (name, value) in enumerate(gguf_tensors(config, hf_tensors(config))):
        kind = next((k for part, k in kinds.items() if part in name), "Q4_K")
        if value.ndim < 2:
            stored.append((name, value.shape, 0, value.tobytes()))
            continue
        number = QUANTISED[kind]
        count = value.size // ENCODINGS[number].elements
        blocks = _random_blocks(kind, count, at).reshape(value.shape[0], -1)
        stored.append((name, value.shape, number, blocks.tobytes()))
        wanted[name] = _dequantised(blocks, number)
    file = tmp_path / "small.gguf"
    file.write_bytes(gguf_bytes(gguf_pairs(config), stored))
    found = open_checkpoint(file, config)
    np.testing.assert_array_equal(found.read("w_down")[0], wanted["blk.0.ffn_down.weight"].T)
    np.testing.assert_array_equal(found.read("w_gate")[0], wanted["blk.0.ffn_gate.weight"].T)
    np.testing.assert_array_equal(found.read("embedding"), wanted["token_embd.weight"])


OF_A_MODEL = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1")


@pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("name", only(OF_A_MODEL, "Q4_K", "Q3_K"))
def test_encodings_stay_as_they_are_on_a_gpu(tmp_path: Path, name: str) -> None:
    """Beside the decoded file in f32, which rounds neither embeddings nor gains nor caches; what
    kernels make of codes has tighter bounds in ``tests/e2e/test_task_steps_quantised.py``.
    Matrices keep the size of a vector: scores of thousands would make gains in f16 alone move
    logits by hundredths."""
    config = model_config(hidden=256, ffn=256, head_dim=64, layers=1, tied_embeddings=False)
    tensors = [
        (tensor, value / np.float32(16) if value.ndim == 2 else value)
        for tensor, value in gguf_tensors(config, hf_tensors(config))
    ]
    files, answers = _encoded_model(tmp_path, config, tensors, name), []
    kept = formats_to_keep(AS_STORED, files[0], config, None, "cuda")
    assert {f"{weight}={name.lower()}" for weight in ("wo", "w_down")} <= {*kept}
    for file, asked in zip(
        files,
        (
            {"target": "cuda", "dtype": "f16", "keep_quantised": kept},
            {"mesh": "1x1", "dtype": "f32"},
        ),
        strict=True,
    ):
        request = CompileRequest(seq=40, **asked)
        compiled = compile_loaded(load_any(str(file), Diagnostics()), request)
        with compiled.load(backend="cuda-cpu" if request.target == "cuda" else "") as program:
            answers.append(program.generate([3, 14, 15, 9, 26, 5, 35], 4, ignore_eos=True).logits)
    found, wanted = answers
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())


def test_plain_files_are_unchanged(tmp_path: Path) -> None:
    config = model_config()
    file = tmp_path / "small.gguf"
    file.write_bytes(gguf_model_bytes(config, hf_tensors(config)))
    assert config_from_gguf(file).dtype == "f32"

"""Weights of files in fp8 as 16-bit words: codes are multiplied by their scales on the way."""

import json
import struct

import numpy as np
import pytest
from packing_reference import reference
from reduced import only
from test_cuda_packing import EXPERTS, LATENT, LLAMA

from meshc.backends.cuda import from_json
from meshc.backends.cuda.packing import fragments, packed, scaled, words
from meshc.backends.cuda.packing.fragments import Scales, fragments_at, fragments_of
from meshc.backends.cuda.ranks import RankTensors
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.frontend.checkpoints.logical import logical_tensors
from meshc.ir.stored import E4M3, Scaled
from meshc.support.diagnostics import Diagnostics

SCALES = [0.0, -0.0, 1.0, -0.37, 1e-45, 1e-38, 2.0**-126, 3.4e38, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("group", [16, 48, 256])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_code_by_any_scale_is_what_numpy_makes_of_it(dtype, group):
    """To the bit: what is no number, zeros of both signs, and what is too small or too large."""
    rng = np.random.default_rng(3)
    codes = np.stack([rng.permutation(256) for _ in range(64)]).astype(np.uint8)
    scales = np.exp2(rng.uniform(-60, 60, (64, -(-256 // group)))).astype(np.float32)
    scales.reshape(-1)[: len(SCALES)] = SCALES
    at, scales_at = (
        (of.ctypes.data + np.arange(64) * of.strides[0]).astype(np.uint64) for of in (codes, scales)
    )
    found = np.zeros(codes.size, np.uint16)
    if not fragments_at(at, 256, found, f"{dtype} of e4m3", Scales(scales_at, group)):
        pytest.skip("no compiler makes functions for this processor")
    wanted = np.zeros_like(found)
    with np.errstate(all="ignore"):
        numbers = np.asarray(Scaled(codes.view(E4M3), scales, group))
        fragments_of(words(numbers, dtype), wanted)
    assert (found == wanted).all()
    assert np.isnan(numbers).any() and (np.abs(numbers[numbers != 0]) < 2.0**-126).any()


def test_the_sign_of_what_is_no_number_is_kept_in_f16_as_numpy_keeps_it():
    codes = np.array([[0x7F, 0xFF] * 8] * 16, np.uint8).view(E4M3)
    for scale in (1, -1, np.inf, 0):
        source = Scaled(codes, np.full((16, 1), scale, np.float32), 16)
        here = np.arange(16)
        rows = scaled.ScaledRows([source], 0 * here, here, 0 * here, 16, 16)
        found, wanted = np.zeros(256, np.uint16), np.zeros(256, np.uint16)
        rows.fill("f16", found)
        fragments_of(words(np.asarray(source), "f16"), wanted)
        assert (found == wanted).all()


BLOCK = {"quant_method": "fp8", "weight_block_size": [32, 64]}
TENSOR = {"quant_method": "fp8"}
LARGER = LLAMA | {"hidden_size": 128, "intermediate_size": 192}
CASES = {
    "a scale of a tensor": (LARGER, TENSOR, "tensor", {"dtype": "bf16"}),
    "a scale of an output": (LARGER, {"quant_method": "fbgemm_fp8"}, "channel", {}),
    "a scale of a block": (LARGER, BLOCK, "block", {"dtype": "bf16"}),
    "kernels of chunks": (LARGER, BLOCK, "block", {"chunk": 16}),
    "experts": (EXPERTS | {"moe_intermediate_size": 64}, BLOCK, "block", {"dtype": "bf16"}),
    "latent attention": (LATENT, BLOCK, "block", {}),
    "a rank of two": (LARGER, BLOCK, "block", {"gpus": 2}),
    "blocks of 24 columns": (LARGER, TENSOR | {"weight_block_size": [8, 24]}, "block", {}),
    "odd sizes": (LLAMA, TENSOR, "tensor", {}),
}
DECODED = {"latent attention", "a rank of two", "blocks of 24 columns", "odd sizes"}
"""Those of which some rows cannot be taken as they are."""


def checkpoint(folder, config, quantization, form):
    """A file whose matrices of layers are in fp8, and the rest in float32."""
    (folder / "config.json").write_text(json.dumps(config))
    plain = load_any(str(folder), Diagnostics()).config
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    rng, header, body = np.random.default_rng(5), {}, b""
    rows, columns = quantization.get("weight_block_size", (1, 1))

    def add(name, kind, values):
        nonlocal body
        places = [len(body), len(body) + values.nbytes]
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": places}
        body += values.tobytes()

    for tensor in logical_tensors(plain):
        for layer in range(max(1, tensor.layers)):
            for name in tensor.stored_names(layer):
                shape = tensor.layout.stored_shape()
                if not tensor.per_layer or len(shape) != 2:
                    add(name, "F32", rng.standard_normal(shape, np.float32))
                    continue
                codes = rng.integers(0, 255, shape).astype(np.uint8)
                codes[codes == 0x7F] = 0x80
                add(name, "F8_E4M3", codes)
                blocks = (-(-shape[0] // rows), -(-shape[1] // columns))
                counts = {"tensor": (), "channel": (shape[0],), "block": blocks}[form]
                name += "_scale_inv" if form == "block" else "_scale"
                add(name, "F32", (rng.random(counts) / 512).astype(np.float32))
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("compiled", only([True, False], True))
@pytest.mark.parametrize("name", CASES)
def test_files_in_fp8_are_packed_as_their_numbers_are(name, compiled, tmp_path, monkeypatch):
    config, quantization, form, options = CASES[name]
    checkpoint(tmp_path, config, quantization, form)
    if not compiled:
        monkeypatch.setattr(fragments, "_compiled", lambda: None)
    report = Diagnostics()
    loaded = load_any(str(tmp_path), report)
    request = CompileRequest(**{"target": "cuda", "dtype": "f16", "seq": 64} | options)
    text = compile_loaded(loaded, request, (), report).files["manifest.json"]
    program, stated = from_json(text), json.loads(text)["weights"]
    tensors = open_weights(tmp_path, loaded.config, None, report)
    numbers = {
        name: tensors[name] for weight in program.weights.values() for name in weight.sources
    }
    if program.ranks is not None:
        tensors, numbers = (RankTensors(program.ranks, each, 1) for each in (tensors, numbers))
    decoded = []
    monkeypatch.setattr(Scaled, "__array__", decoding(Scaled.__array__, decoded))
    for key, weight in program.weights.items():
        assert (packed(weight, tensors) == reference(stated[key], numbers)).all(), key
    assert bool(decoded) == (name in DECODED)


def decoding(original, decoded):
    """``__array__`` that lists who was decoded whole."""

    def array(self, *args, **kwargs):
        decoded.append(self)
        return original(self, *args, **kwargs)

    return array

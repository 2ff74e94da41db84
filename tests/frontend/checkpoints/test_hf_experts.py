"""Configs of models with experts: what is read and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_files import diagnosed

from meshc.frontend.checkpoints import read_config
from meshc.frontend.checkpoints.logical import logical_tensors

TINY = Path(__file__).parents[2] / "data" / "tiny_experts"
FOLDERS = {"mixtral": "mixtral-5x2", "qwen2_moe": "qwen2-moe-6x2", "qwen3_moe": "qwen3-moe-7x3"}


def changed(family: str, folder: Path, **changes: Any) -> Path:
    """The config of a tiny model with changes; ``...`` leaves a key out."""
    known = json.loads((TINY / FOLDERS[family] / "config.json").read_text()) | changes
    kept = {key: value for key, value in known.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("mixtral", {"X": 5, "K": 2}),
        ("qwen2_moe", {"X": 6, "K": 2, "F2": 13, "normalise": False}),
        ("qwen3_moe", {"X": 7, "K": 3, "normalise": True}),
    ],
)
def test_experts_are_read(family: str, own: dict[str, object], tmp_path: Path) -> None:
    config = read_config(changed(family, tmp_path))
    assert config.family == family and config.own == own


def test_older_files_name_the_number_of_experts_otherwise(tmp_path: Path) -> None:
    file = changed("qwen3_moe", tmp_path, num_local_experts=..., num_experts=16)
    assert read_config(file).own["X"] == 16


LEADING = [
    ({"mlp_only_layers": [0]}, 1),
    ({"mlp_only_layers": [1, 0, 9], "num_hidden_layers": 3}, 2),
    ({"mlp_only_layers": [-1, 2]}, 0),
    ({"mlp_only_layers": None, "decoder_sparse_step": 2}, 1),
    ({"mlp_only_layers": [2], "decoder_sparse_step": 4, "num_hidden_layers": 4}, 3),
]


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize(("changes", "count"), LEADING)
def test_the_first_layers_may_have_no_experts(
    family: str, changes: dict[str, Any], count: int, tmp_path: Path
) -> None:
    config = read_config(changed(family, tmp_path, intermediate_size=33, **changes))
    assert config.own.get("dense", 0) == count
    assert config.own.get("FD") == (33 if count else None)
    shapes = {tensor.name: tensor for tensor in logical_tensors(config)}
    assert shapes["router"].stored_names(0) == (f"model.layers.{count}.mlp.gate.weight",)
    assert ("dense_gate" in shapes) == bool(count)


REFUSED = [
    ({"decoder_sparse_step": 2, "num_hidden_layers": 4}, "behind some that have them"),
    ({"mlp_only_layers": [1]}, "behind some that have them"),
    ({"mlp_only_layers": [0, 1]}, "without any"),
    ({"decoder_sparse_step": 3}, "without any"),
]


@pytest.mark.every_case
@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_other_layers_without_experts_are_refused(
    family: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = changed(family, tmp_path, **changes)
    (found,) = diagnosed("config-unsupported", lambda: read_config(file))
    assert words in found.message


@pytest.mark.parametrize("listed", [True, ["0"], [0.0], 3])
def test_what_is_no_list_of_layers_is_refused(listed: Any, tmp_path: Path) -> None:
    file = changed("qwen3_moe", tmp_path, mlp_only_layers=listed)
    (found,) = diagnosed("config-bad-value", lambda: read_config(file))
    assert "numbers of layers" in found.message


def test_windows_of_some_layers_and_layers_without_experts_are_refused(tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ...}
    file = changed("qwen2_moe", tmp_path, mlp_only_layers=[0], max_window_layers=1, **windows)
    (found,) = diagnosed("config-unsupported", lambda: read_config(file))
    assert "only some layers have windows" in found.message


def test_more_experts_than_there_are_cannot_be_chosen(tmp_path: Path) -> None:
    file = changed("mixtral", tmp_path, num_experts_per_tok=6)
    (found,) = diagnosed("config-bad-value", lambda: read_config(file))
    assert "'num_experts_per_tok' is 6" in found.message and "all experts, 5" in found.message

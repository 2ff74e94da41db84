"""Configs of gpt_oss: what is read and refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed

from meshc.frontend.checkpoints import model_parameters, read_config
from meshc.frontend.checkpoints.stored_layout import stored_layout

TINY = Path(__file__).parents[2] / "data" / "tiny_gpt_oss" / "gpt-oss-5x2-yarn"


def changed(folder: Path, **changes: Any) -> Path:
    """The config of the tiny model with changes; ``...`` leaves a key out."""
    known = json.loads((TINY / "config.json").read_text()) | changes
    kept = {key: value for key, value in known.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def test_what_is_read() -> None:
    config = read_config(TINY)
    assert config.family == "gpt_oss"
    assert config.own == {"X": 5, "K": 2, "limit": 1.25, "alpha": 1.5, "W": 5}
    given = model_parameters(config)
    assert (given["scaling"], given["truncate"], given["theta"]) == ("yarn", False, 10000.0)
    assert given["scale"] == pytest.approx((0.1 * math.log(8.0) + 1) ** 2)


def test_absent_keys_stand_for_what_transformers_takes(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    names = ("swiglu_limit", "swiglu_alpha", "sliding_window", "layer_types", "rope_parameters")
    file = changed(tmp_path, **dict.fromkeys(names, ...), rope_scaling=rope)
    config = read_config(file)
    assert config.own == {"X": 5, "K": 2, "limit": 7.0, "alpha": 1.702, "W": 128}
    assert config.rope_theta == 150000.0 and model_parameters(config)["truncate"] is True


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"rope_parameters": ...}, "config-missing-key", "rope_scaling"),
        ({"layer_types": ["full_attention"] * 3}, "config-unsupported", "windows in other layers"),
        ({"layer_types": "sliding"}, "config-unsupported", "windows in other layers"),
        ({"sliding_window": None}, "config-bad-value", "a number is wanted"),
        ({"sliding_window": 0}, "config-bad-value", "sliding_window"),
        ({"swiglu_limit": -1.0}, "config-bad-value", "swiglu_limit"),
        ({"attention_bias": False}, "config-unsupported", "without biases"),
        ({"hidden_act": "gelu"}, "config-unsupported", "another activation"),
        ({"num_experts_per_tok": 6}, "config-bad-value", "all experts, 5"),
        (
            {"quantization_config": {"quant_method": "nvfp4"}},
            "config-unsupported",
            "quantization_config",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], code: str, words: str, tmp_path: Path) -> None:
    file = changed(tmp_path, **changes)
    (found,) = diagnosed(code, lambda: read_config(file))
    assert words in found.message


def test_lanes_that_take_turns() -> None:
    stored = np.arange(12).reshape(2, 6)
    for part in (0, 1):
        layout = stored_layout(["X", "F (1 | 1)"], ("X", "F"), {"X": 2, "F": 3}, part)
        assert layout.stored_shape() == (2, 6)
        np.testing.assert_array_equal(layout.read(stored), stored[:, part::2])

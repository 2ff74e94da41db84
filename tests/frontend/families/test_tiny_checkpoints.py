"""Checkpoints at the graph level, token by token, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from meshc.frontend.checkpoints import model_of, open_checkpoint, read_config
from meshc.frontend.language import elaborate
from meshc.interp.check import Session

DATA = Path(__file__).parents[2] / "data"
PLACES = ("tiny_cuda", "tiny_experts", "tiny_latent_experts")
FOLDERS = sorted(folder for place in PLACES for folder in (DATA / place).iterdir())


@pytest.mark.every_case
@pytest.mark.models
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_logits_of_the_prompt_are_those_of_transformers(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    config = read_config(folder)
    checkpoint = open_checkpoint(folder, config)
    module = elaborate(model_of(config), "decode", seq=len(expected["prompt_ids"]))
    session = Session(module, {name: checkpoint.read(name) for name in checkpoint.names()})
    for step, token in enumerate(expected["prompt_ids"]):
        (logits,) = session.step({"tokens": np.array([[token]])}, {"pos": step})
    wanted = np.array(expected["prompt_logits"])
    np.testing.assert_allclose(logits[0, 0], wanted, atol=2e-4 * np.abs(wanted).max())

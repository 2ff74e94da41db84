"""The family that docs/families.md adds: its files alone, in a package of their own, make meshc
read and run a checkpoint."""

import json

import numpy as np
import pytest
from added_family import FILES
from offered import offer
from pages import ROOT, blocks

import meshc
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.frontend.families import brought_families, family_names
from meshc.support.diagnostics import MeshcError

TINY = ROOT / "tests" / "data" / "tiny_unshipped" / "glm-6h2"
PAGE = "docs/families.md"
PACKAGE = ROOT / "examples" / "own_family"


@pytest.fixture
def glm(monkeypatch):
    """meshc with the family of the page."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    offer(monkeypatch, "meshc.families", ("glm", "own_family:FOLDER"))


@pytest.mark.parametrize("file", FILES)
def test_the_page_shows_the_files_of_the_package(file):
    shown = [*blocks(PAGE, "mesh"), *blocks(PAGE, "toml")]
    assert (PACKAGE / "own_family" / file).read_text() in shown


@pytest.mark.models
@pytest.mark.usefixtures("glm")
def test_tokens_and_logits_are_those_of_transformers():
    assert "glm" in brought_families()
    expected = json.loads((TINY / "expected.json").read_text())
    ids, tokens = expected["prompt_ids"], expected["tokens"]
    compiled = meshc.compile(TINY, mesh="2x3", seq=len(ids) + len(tokens), dtype="f32")
    weights = open_checkpoint(TINY, read_config(TINY))
    given = {name: weights.read(name) for name in weights.names()}
    found = compiled.load(given).generate(ids, len(tokens))
    assert found.tokens == tokens
    wanted = np.array(expected["prompt_logits"])
    np.testing.assert_allclose(found.logits[0], wanted, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.models
@pytest.mark.usefixtures("glm")
def test_what_its_config_refuses(tmp_path):
    config = json.loads((TINY / "config.json").read_text()) | {"mlp_bias": True}
    config["rope_parameters"] |= {"partial_rotary_factor": 0.4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": 64}))
    with pytest.raises(MeshcError) as caught:
        read_config(tmp_path)
    said = [found.message for found in caught.value.diagnostics]
    assert any("glm has no bias in its MLP" in message for message in said)
    assert any("sliding-window attention is not supported" in message for message in said)
    assert any("3 of 8 lanes of a head are to turn" in message for message in said)


def test_the_family_is_not_shipped():
    assert "glm" not in family_names()

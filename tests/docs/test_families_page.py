"""The family that docs/families.md adds: its files alone make meshc read and run a checkpoint."""

import json

import numpy as np
import pytest
from added_family import FILES, added_family
from pages import ROOT, blocks

import meshc
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.frontend.families import family_names
from meshc.support.diagnostics import MeshcError

TINY = ROOT / "tests" / "data" / "tiny" / "llama-3h1"
PAGE = "docs/families.md"


@pytest.fixture
def phi3(tmp_path):
    """meshc with the family of the page."""
    texts = [*blocks(PAGE, "mesh"), *blocks(PAGE, "toml")]
    with added_family("phi3", dict(zip(FILES, texts, strict=True)), tmp_path):
        yield


def stored_as_phi3(folder, **changes):
    """The tiny llama with q, k and v in one matrix, and gate and up in another."""
    from_numpy = pytest.importorskip("safetensors.numpy")
    tensors = from_numpy.load_file(TINY / "model.safetensors")
    config = json.loads((TINY / "config.json").read_text())
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for joined, kinds in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
            block = joined.split(".")[0]
            parts = [tensors.pop(f"{prefix}.{block}.{kind}_proj.weight") for kind in kinds]
            tensors[f"{prefix}.{joined}_proj.weight"] = np.concatenate(parts)
    folder.mkdir()
    from_numpy.save_file(tensors, folder / "model.safetensors")
    config |= {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.models
@pytest.mark.usefixtures("phi3")
def test_tokens_are_those_of_transformers(tmp_path):
    assert "phi3" in family_names()
    folder = stored_as_phi3(tmp_path / "checkpoint")
    expected = json.loads((TINY / "expected.json").read_text())
    ids, tokens = expected["prompt_ids"], expected["tokens"]
    compiled = meshc.compile(folder, mesh="2x3", seq=len(ids) + len(tokens))
    weights = open_checkpoint(folder, read_config(folder))
    given = {name: weights.read(name) for name in weights.names()}
    assert compiled.load(given).generate(ids, len(tokens)).tokens == tokens


@pytest.mark.models
@pytest.mark.usefixtures("phi3")
def test_what_its_config_refuses(tmp_path):
    folder = stored_as_phi3(tmp_path / "checkpoint", attention_bias=True, sliding_window=64)
    with pytest.raises(MeshcError) as caught:
        read_config(folder)
    said = [found.message for found in caught.value.diagnostics]
    assert any("phi3 has no biases" in message for message in said)
    assert any("sliding-window attention is not supported" in message for message in said)


def test_the_family_is_not_shipped():
    assert "phi3" not in family_names()

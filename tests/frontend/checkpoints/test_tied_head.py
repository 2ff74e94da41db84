"""Heads of models whose configs say that the head is the embedding: where the weights have another
one, it is used, as Hugging Face transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import diagnosed, safetensors_bytes
from safetensors.numpy import load_file

from meshc.driver import load_any
from meshc.frontend.checkpoints import checkpoint_config, open_checkpoint, read_config
from meshc.frontend.families import family_named
from meshc.support.diagnostics import Diagnostics

pytest.importorskip("safetensors")
pytestmark = pytest.mark.models

DATA = Path(__file__).parents[2] / "data"
# One checkpoint of each family whose head may be tied.
FAMILIES = (
    *(
        "tiny/llama-3h1",
        "tiny/qwen2-7h1",
        "tiny_families/gemma-6h2",
        "tiny_scaled/granite-6h2-biased",
    ),
    *("tiny_families/gemma2-6h2-window", "tiny_families/gemma3-6h2-window"),
    *("tiny_families/gpt2-5h-tied", "tiny_families/gpt_neox-5h-parallel"),
    *("tiny_families/internlm2-6h2", "tiny_families/olmo2-6h2", "tiny_families/phi3-5h1-window"),
    *("tiny_families/stablelm-6h2-biased", "tiny_families/starcoder2-5h1-window"),
    *("tiny_experts/mixtral-5x2", "tiny_experts/qwen2-moe-6x2", "tiny_experts/qwen3-moe-7x3"),
    "tiny_gpt_oss/gpt-oss-5x2-yarn",
)
INDEX = "model.safetensors.index.json"


def written(name: str, folder: Path, own: bool, shards: int = 1) -> Path:
    """The checkpoint ``name`` with a config that ties the head, and a head that is its ``own`` or
    the embedding."""
    config = json.loads((DATA / name / "config.json").read_text()) | {"tie_word_embeddings": True}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    params = family_named(read_config(folder).family).params
    tensors = load_file(DATA / name / "model.safetensors")
    table = tensors[params["embedding"].hf]
    head = table.copy()
    head[-1, -1] += head.dtype.type(1) if own else head.dtype.type(0)
    tensors[params["lm_head"].hf] = head
    plain = {key: tensor.astype(np.float32) for key, tensor in tensors.items()}
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(plain))
        return folder
    places: dict[str, Any] = {}
    for shard in range(shards):
        file, names = f"model-{shard}.safetensors", sorted(plain)[shard::shards]
        (folder / file).write_bytes(safetensors_bytes({key: plain[key] for key in names}))
        places |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_that_differs_is_used(name: str, tmp_path: Path) -> None:
    folder, report = written(name, tmp_path / "own", own=True), Diagnostics()
    assert read_config(folder).tied_embeddings
    config = checkpoint_config(folder, report)
    assert not config.tied_embeddings
    assert "weights-own-head" in [message.code for message in report.messages]
    checkpoint = open_checkpoint(folder, config)
    head, table = checkpoint.read("lm_head"), checkpoint.read("embedding")
    assert (head != table.T).sum() == 1
    assert load_any(str(folder), Diagnostics()).config == config


@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_that_is_the_embedding_is_not_read(name: str, tmp_path: Path) -> None:
    folder, report = written(name, tmp_path / "same", own=False), Diagnostics()
    config = checkpoint_config(folder, report)
    assert config.tied_embeddings
    checkpoint = open_checkpoint(folder, config, diagnostics=report)
    assert "weights-unused-tensor" in [message.code for message in report.messages]
    np.testing.assert_array_equal(checkpoint.read("lm_head"), checkpoint.read("embedding").T)


@pytest.mark.parametrize("own", [True, False])
def test_shards(own: bool, tmp_path: Path) -> None:
    folder = written("tiny/llama-3h1", tmp_path / "sharded", own, shards=3)
    assert checkpoint_config(folder).tied_embeddings != own
    (folder / "model-1.safetensors").unlink()
    assert checkpoint_config(folder).tied_embeddings  # nothing is known of weights in part


def test_weights_of_another_place_with_a_head_of_their_own_are_refused(tmp_path: Path) -> None:
    folder = written("tiny/llama-3h1", tmp_path / "own", own=True)
    tied = read_config(folder)
    diagnosed("weights-surplus-tensor", lambda: open_checkpoint(folder, tied))
    (folder / "config.json").unlink()
    diagnosed("weights-surplus-tensor", lambda: open_checkpoint(folder, tied))

"""Tensors read piece by piece: what the pieces are, and what they take of memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import (
    TINY,
    TINY_NAMES,
    gguf_model_bytes,
    hf_tensors,
    model_config,
    safetensors_bytes,
)

from meshc.driver.weights import CheckpointTensors, weight_files
from meshc.frontend.checkpoints import Checkpoint, ModelConfig, open_checkpoint, read_config
from meshc.frontend.checkpoints.safetensors_reader import INDEX_NAME

LIMIT = "meshc.frontend.checkpoints.weights._PIECE_BYTES"
CHUNK = "meshc.frontend.checkpoints.tensor_source._CHUNK_BYTES"


def _sharded(folder: Path, config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> Checkpoint:
    """A checkpoint of two shards, in bf16."""
    names, weight_map = list(tensors), {}
    for at in range(2):
        own = {name: tensors[name] for name in names[at::2]}
        file = folder / f"model-{at + 1}-of-2.safetensors"
        file.write_bytes(safetensors_bytes(own, "BF16"))
        weight_map |= dict.fromkeys(own, file.name)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return open_checkpoint(folder, config)


def _check(checkpoint: Checkpoint, most: int) -> int:
    """Pieces are the tensors, each at most ``most`` bytes where it is not a single lane; how many
    there are."""
    count = 0
    for name in checkpoint.names():
        pieces = list(checkpoint.pieces(name))
        assert all(p.flags.c_contiguous and p.dtype == np.float32 for p in pieces)
        whole = np.concatenate([piece.ravel() for piece in pieces])
        np.testing.assert_array_equal(whole, checkpoint.read(name).ravel(), err_msg=name)
        assert all(piece.nbytes <= max(most, piece[0].nbytes) for piece in pieces), name
        count += len(pieces)
    return count


@pytest.mark.parametrize("most", [700, 4096])
@pytest.mark.parametrize("changes", [{}, {"tied_embeddings": True}, {"attention_bias": True}])
def test_pieces_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, changes: dict[str, Any]
) -> None:
    config = model_config(family="qwen2" if changes.get("attention_bias") else "llama", **changes)
    checkpoint = _sharded(tmp_path, config, hf_tensors(config))
    monkeypatch.setattr(LIMIT, most)
    monkeypatch.setattr(CHUNK, 700)
    layers = sum(checkpoint.shape(n)[0] for n in checkpoint.names() if checkpoint.is_per_layer(n))
    assert _check(checkpoint, most) > layers + 3


@pytest.mark.models
def test_pieces_of_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where lanes are stored in pairs."""
    pytest.importorskip("gguf")
    config = model_config()
    (tmp_path / "x.gguf").write_bytes(gguf_model_bytes(config, hf_tensors(config)))
    monkeypatch.setattr(LIMIT, 1000)
    _check(open_checkpoint(tmp_path / "x.gguf", config), 1000)


@pytest.mark.every_case
@pytest.mark.parametrize("name", TINY_NAMES)
def test_pieces_of_other_families(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, 2000)
    checkpoint = open_checkpoint(TINY / name, read_config(TINY / name))
    assert _check(checkpoint, 2000) > len(checkpoint.names())


def _packed(checkpoint: Checkpoint, folder: Path) -> int:
    """Write all weights as `meshc compile` does; the most memory that took, in bytes."""
    tensors = CheckpointTensors(checkpoint)
    (folder / "weights").mkdir()
    tracemalloc.start()
    for name, write in weight_files(checkpoint.names(), tensors).items():
        assert callable(write)
        write(folder / name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_packing_takes_less_than_the_largest_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reduced form of the checkpoint of 16 GB: heads and stacks of layers of 4 MiB as float32."""
    config = model_config(hidden=256, vocab=4096, ffn=1024, layers=4, head_dim=64)
    checkpoint = _sharded(tmp_path, config, hf_tensors(config))
    monkeypatch.setattr(LIMIT, 1 << 18)
    monkeypatch.setattr(CHUNK, 1 << 17)
    largest = max(4 * int(np.prod(checkpoint.shape(n))) for n in checkpoint.names())
    assert largest == 4 << 20
    assert _packed(checkpoint, tmp_path) < 5 << 18
    for name in ("lm_head", "w_gate", "wq"):
        np.save(tmp_path / "whole.npy", checkpoint.read(name))
        written = (tmp_path / "weights" / f"{name}.npy").read_bytes()
        assert written == (tmp_path / "whole.npy").read_bytes()


def test_progress_says_how_far(tmp_path: Path) -> None:
    config = model_config()
    told: list[str] = []
    tensors = CheckpointTensors(_sharded(tmp_path, config, hf_tensors(config)), told.append)
    tensors.save("w_up", tmp_path / "w_up.npy")
    assert told == ["w_up, 0 %", "w_up, 50 %"]

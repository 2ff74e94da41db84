"""Weights as their files hold them are those that are read; their stamps tell files apart."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from model_files import TINY, hf_tensors, model_config, safetensors_bytes

from meshc.driver.weights import open_weights
from meshc.frontend.checkpoints import (
    Checkpoint,
    config_from_gguf,
    open_checkpoint,
    read_config,
)
from meshc.ir.stored import BF16, Layers, StoredWeights, floats
from meshc.support.diagnostics import Diagnostics

FOLDERS = sorted(
    path.parent
    for path in TINY.parent.glob("tiny*/*/config.json")
    if path.parts[-3] != "tiny_unshipped"
)
KINDS = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": BF16}


def stored(checkpoint: Checkpoint, name: str) -> tuple[np.ndarray, set[object]]:
    """The tensor ``name`` layer by layer, as numbers, and the types in which it is held."""
    found = checkpoint.stored(name)
    if not isinstance(found, Layers):
        return floats(np.asarray(found)), {np.asarray(found).dtype}
    layers = [found[layer] for layer in range(found.shape[0])]
    assert found.shape == checkpoint.shape(name)
    return np.stack([floats(layer) for layer in layers]), {layer.dtype for layer in layers}


@pytest.mark.every_case
@pytest.mark.parametrize("folder", [pytest.param(f, id=f.name) for f in FOLDERS])
def test_weights_of_every_family(folder: Path) -> None:
    checkpoint, kinds = open_checkpoint(folder, read_config(folder)), set()
    for name in checkpoint.names():
        found, held = stored(checkpoint, name)
        np.testing.assert_array_equal(found, checkpoint.read(name), name)
        kinds |= held
    of_files = {KINDS.get(entry.dtype) for entry in checkpoint.source.tensors.values()}
    logical = [checkpoint._logical[name] for name in checkpoint.names()]
    made = any(one.layout.offset or not one.stored for one in logical)
    assert kinds <= of_files | ({KINDS["F32"]} if made else set())


def test_what_is_stored_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(model_config())))
    checkpoint = open_checkpoint(tmp_path, model_config())
    for name in ("embedding", "wq", "w_down"):
        found = checkpoint.stored(name)
        one: object = found[0] if isinstance(found, Layers) else found
        while isinstance(one, np.ndarray) and not isinstance(one, np.memmap):
            one = one.base
        assert isinstance(one, np.memmap)


@pytest.mark.models
@pytest.mark.parametrize("encoding", ["F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("name", ["tiny_families/internlm2-6h2", "tiny_experts/mixtral-5x2"])
def test_weights_of_gguf_files(name: str, encoding: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("safetensors")
    checkpoints = pytest.importorskip("gguf_checkpoints")
    files = pytest.importorskip("llama_cpp_files")
    file = files.write_gguf(tmp_path / "m.gguf", *checkpoints.recorded(name), encoding)
    checkpoint, kinds = open_checkpoint(file, config_from_gguf(file)), set()
    for tensor in checkpoint.names():
        found, held = stored(checkpoint, tensor)
        np.testing.assert_array_equal(found, checkpoint.read(tensor), tensor)
        kinds |= held
    assert kinds & {np.dtype(np.float16), BF16} if encoding != "Q8_0" else len(kinds) == 1


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(TINY / "llama-9h3-tied", folder))


def test_stamps_tell_checkpoints_apart(tmp_path: Path) -> None:
    """Also one of the same size and date, which is written into the file that is there."""
    folder = copied(tmp_path / "model")
    file, config = folder / "model.safetensors", read_config(folder)
    first = open_checkpoint(folder, config).stamp()
    assert open_checkpoint(folder, config).stamp() == first
    assert open_checkpoint(folder, config, layers=1).stamp() != first
    assert open_checkpoint(copied(tmp_path / "other"), config).stamp() != first
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(b"\0\0\0\0")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert open_checkpoint(folder, config).stamp() != first


def test_folders_of_arrays_have_stamps(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(6, dtype=np.float32))
    tensors = open_weights(tmp_path, None, None, Diagnostics())
    assert isinstance(tensors, StoredWeights)
    first = tensors.stamp()
    assert tensors.stamp() == first and np.asarray(tensors.stored("a")).tolist() == list(range(6))
    np.save(tmp_path / "b.npy", np.arange(6, dtype=np.float32) + 1)
    assert tensors.stamp() != first

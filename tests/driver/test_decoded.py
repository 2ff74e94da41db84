"""Weights that were decoded once are mapped from the cache, proved, and never others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.cli import main
from meshc.driver import decoded
from meshc.driver.decoded import KeptTensors, kept
from meshc.driver.weights import CheckpointTensors, check_present, open_weights
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.support.diagnostics import Diagnostics

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny" / "qwen2-7h1"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which small weights are kept as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "meshc" / "weights"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((TINY / name).read_bytes())
    return folder


def opened(folder: Path) -> tuple[Mapping[str, Any], list[str]]:
    """The tensors at ``folder`` from the cache, and the names of those that were decoded."""
    told: list[str] = []
    tensors = open_weights(folder, read_config(folder), None, Diagnostics(), told.append)
    return kept(tensors), told


def assert_right(tensors: Mapping[str, Any], folder: Path) -> None:
    checkpoint = open_checkpoint(folder, read_config(folder))
    for name in checkpoint.names():
        np.testing.assert_array_equal(tensors[name], checkpoint.read(name), strict=True)


def test_whether_a_tensor_is_there_reads_nothing() -> None:
    told: list[str] = []
    tensors = CheckpointTensors(open_checkpoint(TINY, read_config(TINY)), told.append)
    check_present(tensors.checkpoint.names(), tensors)
    assert "wq" in tensors and "wx" not in tensors
    assert told == []


def test_what_was_decoded_once_is_mapped(model: Path) -> None:
    first, told = opened(model)
    assert_right(first, model)
    assert sorted(told) == sorted(open_checkpoint(model, read_config(model)).names())
    again, told = opened(model)
    assert_right(again, model)
    assert told == []
    assert isinstance(again["wq"].base, np.memmap)


def test_a_tensor_is_decoded_once_where_it_is_asked_for_twice(model: Path) -> None:
    tensors, told = opened(model)
    assert tensors["wq"] is tensors["wq"]
    assert told == ["wq"]


@pytest.mark.parametrize("at", [0, 70, -1])
def test_damaged_files_are_made_again(at: int, model: Path, own_cache: Path) -> None:
    assert_right(opened(model)[0], model)
    (file,) = own_cache.glob("*/wq.*.npy")
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    tensors, told = opened(model)
    assert_right(tensors, model)
    assert told == ["wq"]
    assert opened(model)[1] == []


def test_a_file_that_was_cut_is_made_again(model: Path, own_cache: Path) -> None:
    assert_right(opened(model)[0], model)
    (file,) = own_cache.glob("*/w_up.*.npy")
    os.truncate(file, 200)
    assert_right(opened(model)[0], model)


def test_other_weights_under_the_same_name_are_others(model: Path) -> None:
    opened(model)[0]["wq"]
    file = model / "model.safetensors"
    data, times = bytearray(file.read_bytes()), file.stat()
    data[-2] ^= 0x40
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    tensors, told = opened(model)
    assert_right(tensors, model)
    assert "wq" in told


def test_another_model_of_the_same_files_is_another(model: Path) -> None:
    folders = set()
    for eps in (1e-5, 1e-6):
        facts = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**facts, "rms_norm_eps": eps}))
        tensors, _ = opened(model)
        assert isinstance(tensors, KeptTensors)
        folders.add(tensors.folder)
    assert len(folders) == 2


def test_what_was_not_used_for_longest_goes_first(
    model: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for used in (1.0, 2.0, 3.0):
        facts = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**facts, "rms_norm_eps": used / 1e6}))
        tensors, _ = opened(model)
        assert isinstance(tensors, KeptTensors)
        folders.append(tensors.folder)
        assert_right(tensors, model)
        os.utime(folders[-1], (used, used))
        size = sum(path.stat().st_size for path in folders[-1].iterdir())
        monkeypatch.setattr(decoded, "MOST_BYTES", 5 * size // 2)
    assert sorted(own_cache.iterdir()) == sorted(folders[1:])


def test_weights_of_more_than_half_of_the_room_are_not_kept(
    model: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded, "MOST_BYTES", 1000)
    assert isinstance(opened(model)[0], CheckpointTensors)


def test_a_cache_that_cannot_be_used_costs_time_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert_right(opened(model)[0], model)


@pytest.mark.parametrize("flags", [[], ["--no-cache"]])
def test_the_command_keeps_weights_unless_it_is_told_not_to(
    flags: list[str], model: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["run", str(model), "--mesh", "2x2", "--seq", "32", "--max-tokens", "2", "--prompt-ids"]
    said = []
    for _ in range(2):
        assert main([*line, "3,7,11", *flags]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    assert own_cache.exists() == (not flags)

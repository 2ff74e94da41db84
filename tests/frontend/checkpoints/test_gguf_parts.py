"""GGUF models that are split into several files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import (
    BPE_VOCABULARY,
    diagnosed,
    gguf_bytes,
    gguf_model_bytes,
    gguf_pairs,
    gguf_tensors,
    hf_tensors,
    model_config,
)

from meshc.frontend.checkpoints import config_from_gguf, load_tokenizer, open_checkpoint
from meshc.frontend.checkpoints.gguf.parts import read_gguf_header

CONFIG = model_config(vocab=257)
TENSORS = gguf_tensors(CONFIG, hf_tensors(CONFIG))


def split(
    folder: Path, count: int, changes: Mapping[int, Mapping[str, Any]] | None = None
) -> list[Path]:
    """A model in ``count`` parts, tensors dealt round; ``changes`` are keys of parts."""
    files = []
    for number in range(count):
        own = {
            "split.no": ("u16", number),
            "split.count": ("u16", count),
            "split.tensors.count": ("i32", len(TENSORS)),
            **(changes or {}).get(number, {}),
        }
        pairs = [(key, *value) for key, value in own.items() if value]
        if number == 0:
            pairs = [*gguf_pairs(CONFIG), *BPE_VOCABULARY, *pairs]
        held = [
            (name, tensor.shape, 0, tensor.astype("<f4").tobytes())
            for name, tensor in TENSORS[number::count]
        ]
        files.append(folder / f"model-{number + 1:05}-of-{count:05}.gguf")
        files[-1].write_bytes(gguf_bytes(pairs, held))
    return files


@pytest.mark.parametrize("count", [2, 3, 7])
def test_parts_are_one_model(count: int, tmp_path: Path) -> None:
    """Whether the first part is named or the folder that has nothing else."""
    pytest.importorskip("gguf")
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(gguf_model_bytes(CONFIG, hf_tensors(CONFIG)))
    wanted = open_checkpoint(whole, config_from_gguf(whole))
    folder = tmp_path / "parts"
    folder.mkdir()
    first = split(folder, count)[0]
    config = config_from_gguf(first)
    for path in (first, folder):
        found = open_checkpoint(path, config)
        for name in wanted.names():
            np.testing.assert_array_equal(found.read(name), wanted.read(name))
    pytest.importorskip("tokenizers")
    assert load_tokenizer(folder, config).encode("ab") == [256]


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    (found,) = diagnosed("config-unsupported", lambda: config_from_gguf(split(tmp_path, 3)[1]))
    assert "part 2 of 3" in found.message and "model-00001-of-00003.gguf" in str(found.help)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    files = split(tmp_path, 3)
    files[1].unlink()
    (found,) = diagnosed("checkpoint-unreadable", lambda: read_gguf_header(files[0]))
    assert "model-00002-of-00003.gguf" in found.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({1: {"split.no": ("u16", 2)}}, "not part 2 of 3"),
        ({1: {"split.count": ("u16", 4)}}, "not part 2 of 3"),
        ({1: {"split.no": None}}, "not part 2 of 3"),
        ({0: {"split.tensors.count": ("i32", 3)}}, "'split.tensors.count' is 3"),
        ({0: {"split.count": ("str", "3")}}, "'split.count' is"),
        ({0: {"split.count": ("u32", 1 << 31)}}, "'split.count' is"),
        ({0: {"split.count": ("u32", 5)}}, "its name does not say which"),
    ],
)
def test_parts_of_which_one_lies(
    changes: Mapping[int, Mapping[str, Any]], words: str, tmp_path: Path
) -> None:
    first = split(tmp_path, 3, changes)[0]
    (found,) = diagnosed("gguf-invalid", lambda: read_gguf_header(first))
    assert words in found.message


def test_a_tensor_of_two_parts(tmp_path: Path) -> None:
    files = split(tmp_path, 2)
    keys = [("split.no", "u16", 1), ("split.count", "u16", 2)]
    name, tensor = TENSORS[0]
    raw = gguf_bytes(keys, [(name, tensor.shape, 0, tensor.astype("<f4").tobytes())])
    files[1].write_bytes(raw)
    (found,) = diagnosed("gguf-invalid", lambda: read_gguf_header(files[0]))
    assert "in another part as well" in found.message


def test_parts_beside_another_file_are_not_guessed(tmp_path: Path) -> None:
    first = split(tmp_path, 2)[0]
    (tmp_path / "other.gguf").write_bytes(first.read_bytes())
    config = config_from_gguf(first)
    diagnosed("weights-not-found", lambda: open_checkpoint(tmp_path, config))

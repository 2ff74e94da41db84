"""Models in memory are read as their files are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from model_files import TINY, TINY_NAMES

from meshc.frontend.checkpoints import (
    TensorsInMemory,
    checkpoint_config,
    checkpoint_in_memory,
    config_in_memory,
    open_checkpoint,
)
from meshc.frontend.checkpoints.tensor_source import Part
from meshc.support.diagnostics import Diagnostics, MeshcError


def in_memory(folder):
    """The tensors of a directory, and the text of its config."""
    files = open_checkpoint(folder, checkpoint_config(folder)).source
    described = {name: (each.shape, each.dtype) for name, each in files.tensors.items()}
    tensors = {name: np.array(files.mapped(name)) for name in files.tensors}
    source = TensorsInMemory("memory", described, tensors.__getitem__)
    return source, (folder / "config.json").read_text()


@pytest.mark.parametrize("name", TINY_NAMES)
def test_models_in_memory_are_those_of_their_files(name):
    source, text = in_memory(TINY / name)
    config = config_in_memory(text, "told", source, Diagnostics())
    files = open_checkpoint(TINY / name, checkpoint_config(TINY / name))
    assert config == replace(files.config, name="told", eos_ids=config.eos_ids)
    found = checkpoint_in_memory(source, config)
    assert found.names() == files.names()
    for tensor in files.names():
        assert (found.read(tensor) == files.read(tensor)).all()
        joined = np.concatenate([piece.ravel() for piece in found.pieces(tensor)])
        assert (joined == files.read(tensor).ravel()).all()
    assert found.stamp() is None and files.stamp() is not None


@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_is_what_the_file_has_there(axis):
    folder = TINY / TINY_NAMES[0]
    source, _ = in_memory(folder)
    name = next(name for name, each in source.tensors.items() if len(each.shape) == 2)
    part, files = Part(axis, 3, 7), open_checkpoint(folder, checkpoint_config(folder)).source
    assert (source.read(name, part) == files.read(name, part)).all()
    assert source.read(name, part).shape[axis] == 4


def test_a_tensor_that_is_missing_or_of_another_type_is_told():
    source, text = in_memory(TINY / TINY_NAMES[0])
    config = config_in_memory(text, "told", source, Diagnostics())
    name = next(iter(source.described))
    fewer = {key: each for key, each in source.described.items() if key != name}
    other = source.described | {name: (source.described[name][0], "float64")}
    for described, words in ((fewer, "lacks 1 of"), (other, "float64")):
        with pytest.raises(MeshcError, match=words):
            checkpoint_in_memory(replace(source, described=described), config)

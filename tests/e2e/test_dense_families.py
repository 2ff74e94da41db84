"""Dense models with windows, mistral: CSL and CUDA refuse them unless the window holds all that the
cache does. ``test_families.py`` has their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshc
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.models

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "tiny_dense").iterdir())


@pytest.mark.parametrize(
    ("target", "phase", "words"),
    [
        ("csl", "prefill", "'mask_window'"),
        ("csl", "decode", "'mask_window'"),
        ("cuda", "decode", "has a window"),
    ],
)
def test_other_targets_refuse_windows(target: str, phase: str, words: str) -> None:
    options = {"mesh": "4x4"} if target == "csl" else {}
    with pytest.raises(MeshcError, match=words):
        meshc.compile(str(FOLDERS[1]), target=target, phase=phase, seq=8, **options)


@pytest.mark.parametrize("seq", [2, 3])
def test_a_window_as_long_as_the_cache_is_none(seq: int) -> None:
    found = meshc.compile(str(FOLDERS[0]), target="csl", mesh="3x3", phase="decode", seq=seq)
    assert found.files
    with pytest.raises(MeshcError, match="'mask_window'"):
        meshc.compile(str(FOLDERS[0]), target="csl", mesh="3x3", phase="decode", seq=4)

"""Dense models with windows, mistral: tiny checkpoints on the Python target against transformers,
beyond their windows; other targets refuse them unless the window holds all that the cache does."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_models import check, check_batch

import meshc
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.models

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "tiny_dense").iterdir())
MESHES = ("2x2", "3x2", "1x1", "2x5", "1x4", "5x1", "3x3", "4x6")


def name_of(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize(
    ("folder", "mesh"),
    [
        pytest.param(folder, mesh, id=f"{folder.name}-{mesh}", marks=marks)
        for number, folder in enumerate(FOLDERS)
        for mesh in MESHES
        for marks in [() if mesh == MESHES[number % 2] else pytest.mark.slow]
    ],
)
def test_tokens_and_logits_equal_those_of_transformers(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    check(folder, mesh, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["2x2", "3x2"])
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_batch_gives_each_prompt_what_it_gets_alone(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    check_batch(folder, 5, mesh, tmp_path)


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

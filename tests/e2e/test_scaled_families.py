"""Models with constants at embeddings, scores, residuals and logits (granite): tiny checkpoints
against transformers on the Python target and through CSL on the simulator; CUDA refuses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_models import check, check_batch, facts

import meshc
from meshc.cli import main
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.models

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "tiny_scaled").iterdir())
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


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_cuda_refuses_scaled_embeddings(folder: Path) -> None:
    with pytest.raises(MeshcError, match=r"graph\.embed is part of no kernel"):
        meshc.compile(str(folder), target="cuda", phase="decode", seq=8)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_tokens_of_emitted_csl_on_the_simulator(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = facts(folder)
    prompt = ",".join(str(int(i)) for i in wanted["prompt_ids"])
    words = [
        "run",
        str(folder),
        "--target",
        "csl",
        "--mesh",
        "2x2",
        "--seq",
        "12",
        "--dtype",
        "f32",
    ]
    assert (
        main([*words, "--prompt-ids", prompt, "--max-tokens", "4", "--ignore-eos", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["tokens"] == wanted["tokens"][:4]

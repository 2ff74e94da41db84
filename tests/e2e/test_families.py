"""Families that are no llamas, or llamas with windows or constants: tiny checkpoints on the Python
target against transformers, on square and other meshes, whole prompts and chunks, beyond windows;
through CSL on the simulator; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mesh_programs import load_program, write
from recorded_models import check, check_batch, facts

import meshc
from meshc.cli import main
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.ir.printer import print_module
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[1] / "data"
FOLDERS = [
    folder
    for kind in ("tiny_families", "tiny_dense", "tiny_scaled")
    for folder in sorted((DATA / kind).iterdir())
]
BY_NAME = {folder.name: folder for folder in FOLDERS}
MESHES = ("2x2", "3x2", "1x1", "2x5", "1x4", "5x1", "3x3", "4x6")
# Whose features others of CI have: of their own family, or of llama.
OF_OTHERS = {
    "gemma-6h2", "gemma3-3h1-capped-bf16", "granite-3h1-tied-bf16", "mistral-6h2",
    "olmo2-5h1-tied-bf16", "olmo2-6h2", "starcoder2-5h1-window", "cohere2-3h3-f16",
    "exaone4-5h1-llama3-f16", "falcon3-3h1-f16", "falcon3-4h4-bf16", "falcon3-6h2",
    "glm4-3h3-whole-f16", "nemotron-5h5-quarter-f16",
}  # fmt: skip


def name_of(folder: Path) -> str:
    return folder.name


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("folder", "mesh"),
    [
        pytest.param(folder, mesh, id=f"{folder.name}-{mesh}", marks=marks)
        for number, folder in enumerate(FOLDERS)
        for mesh in MESHES
        for in_ci in [mesh == MESHES[number % 2] and folder.name not in OF_OTHERS]
        for marks in [() if in_ci else pytest.mark.slow]
    ],
)
def test_tokens_and_logits_equal_those_of_transformers(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    check(folder, mesh, tmp_path)


def test_a_norm_of_all_heads_is_one_sum_over_columns(tmp_path: Path) -> None:
    """Two groups of columns have a key head each, of which both columns of a group have lanes."""
    program = check(BY_NAME["olmo2-4h2-biased"], "4x2", tmp_path)
    assert "(xh = 2, xd = 2 interleaved)" in print_module(program.modules["decode"])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["2x2", "3x2"])
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_prompt_in_chunks_gives_what_transformers_gives(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    """The prompt read in chunks of as many tokens as the mesh has rows, then step by step."""
    if "long" in folder.name:
        pytest.skip("servers refuse it")
    wanted = facts(folder)
    ids, tokens = [int(i) for i in wanted["prompt_ids"]], wanted["tokens"]
    loaded = load_any(str(folder), Diagnostics())
    asked = CompileRequest(
        mesh=mesh, seq=len(ids) + len(tokens), dtype="f32", batch=2, serving="chunks"
    )
    write(tmp_path, compile_loaded(loaded, asked).files)
    model = load_program(tmp_path).load(weights_of(folder))
    rows = int(mesh.split("x")[1])
    for start in range(0, len(ids) - 1, rows):
        part = ids[start : min(start + rows, len(ids) - 1)]
        model.read(1, model.embedded(part, start), start)
    found: list[int] = []
    for position in range(len(ids) - 1, len(ids) - 1 + len(tokens)):
        logits = model.step({1: ((found or ids)[-1], position)})[1]
        if not found:
            first = np.array(wanted["prompt_logits"])
            np.testing.assert_allclose(logits, first, atol=2e-4 * np.abs(first).max())
        found.append(int(logits.argmax()))
    assert found == tokens


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["2x2", "3x2"])
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_batch_gives_each_prompt_what_it_gets_alone(
    folder: Path, mesh: str, tmp_path: Path
) -> None:
    if "long" in folder.name:
        pytest.skip("some prompts of the batch are too short for it")
    check_batch(folder, 5, mesh, tmp_path)


def test_a_layer_that_is_read_by_groups_turns_as_in_chunks(tmp_path: Path) -> None:
    """One layer of a kind that every fourth is not of: steps have a table of frequencies less."""
    folder, found = BY_NAME["exaone4-6h2-window"], []
    weights = open_weights(folder, read_config(folder), 1, Diagnostics())
    for serving in ("chunks", "layers!"):
        how = {"mesh": "1x2", "dtype": "f32", "batch": 1, "layers": 1, "seq": 8}
        compiled = meshc.compile(str(folder), serving=serving, **how)
        write(tmp_path / serving, compiled.files)
        model = load_program(tmp_path / serving).load(weights)
        model.read(0, model.embedded([3, 9, 4, 1], 0), 0)
        found.append([model.step({0: (token, 4 + n)})[0].copy() for n, token in enumerate((7, 8))])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    weights = open_checkpoint(folder, read_config(folder))
    return {name: weights.read(name) for name in weights.names()}


def test_prompts_that_longrope_turns_otherwise_are_refused() -> None:
    """Its context is 5 tokens; a program with room for more is right for prompts of more."""
    folder = BY_NAME["phi3-4h2-long-bf16"]
    program = meshc.compile(folder, mesh="2x2", seq=8, dtype="f32").load(weights_of(folder))
    with pytest.raises(MeshcError, match="5 prompt tokens, but the program is for sequences of 6"):
        program.generate([3, 4, 5, 6, 7], 2)
    assert len(program.generate([3, 4, 5, 6, 7, 8], 2).tokens) == 2


@pytest.mark.parametrize("target", ["cuda", "csl"])
def test_hosts_that_do_not_look_have_no_programs_of_long_contexts(target: str) -> None:
    options = {"mesh": "2x2"} if target == "csl" else {}
    folder = str(BY_NAME["phi3-4h2-long-bf16"])
    with pytest.raises(MeshcError, match="other frequencies from 6 tokens on"):
        meshc.compile(folder, target=target, phase="decode", seq=8, **options)


def refused_words(folder: Path, target: str) -> str | None:
    """What a target says that does not take the model, or None."""
    options = {"mesh": "2x2"} if target == "csl" else {}
    try:
        meshc.compile(str(folder), target=target, phase="decode", seq=12, **options)
    except MeshcError as refusal:
        return refusal.diagnostics[0].message
    return None


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_emitted_csl_gives_these_tokens_or_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "long" in folder.name:
        assert "other frequencies" in (refused_words(folder, "csl") or "")
        return
    wanted = facts(folder)
    prompt = ",".join(str(int(i)) for i in wanted["prompt_ids"])
    words = ["--target", "csl", "--mesh", "2x2", "--seq", "16", "--dtype", "f32", "--ignore-eos"]
    asked = ["--prompt-ids", prompt, "--max-tokens", "4", "--json"]
    assert main(["run", str(folder), *words, *asked]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == wanted["tokens"][:4]


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_cuda_takes_all_sizes(folder: Path) -> None:
    """They are made of tasks; what these compute is judged by families (docs/families.md), and by
    drawn decoders."""
    words = refused_words(folder, "cuda")
    assert "other frequencies" in (words or "") if "long" in folder.name else words is None

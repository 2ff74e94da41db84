"""Tiny random checkpoints of Hugging Face transformers: both executors give its greedy tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mesh_programs import MeshProgram, mesh_program
from reduced import crossed, only

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny"
FIXTURES = sorted(folder.name for folder in TINY.iterdir())
MESHES = ("1x1", "2x2", "3x5")
MORE_MESHES = ("1x7", "6x1", "4x4", "5x3", "7x8")
SETTINGS = {
    "shift": {"shift-kv-cache": "shift-kv-cache{policy=shift}"},
    "concat": {"shift-kv-cache": "shift-kv-cache{policy=concat}"},
    "cyclic": {"shift-kv-cache": "shift-kv-cache{policy=cyclic}"},
    "pipeline": {"select-collective": "select-collective{algo=pipeline}"},
    "ring": {"select-collective": "select-collective{algo=ring}"},
    "1-tree": {"select-collective": "select-collective{algo=k_tree,k=1}"},
    "2-tree": {"select-collective": "select-collective{algo=k_tree,k=2}"},
    "regions": {"split-regions": "split-regions{regions=2}"},
    "natural": {"place-interleave": 'place-interleave{axes=""}'},
}


def expected(name: str) -> tuple[list[int], list[int]]:
    """Prompt ids and the tokens that transformers gives."""
    facts = json.loads((TINY / name / "expected.json").read_text())
    return facts["prompt_ids"], facts["tokens"]


def compiled(name: str, mesh: str, passes: dict[str, str] | None = None) -> MeshProgram:
    ids, tokens = expected(name)
    return mesh_program(str(TINY / name), mesh, len(ids) + len(tokens), passes=passes)


def check(name: str, mesh: str, folder: Path, passes: dict[str, str] | None = None) -> None:
    """Interpreter and emitted program against transformers."""
    ids, tokens = expected(name)
    program = compiled(name, mesh, passes)
    assert program.run(folder, ids, len(tokens))[0] == tokens
    # The second step reads what the first one cached.
    assert program.interpret(ids, 2) == tokens[:2]


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "mesh"), crossed(FIXTURES, MESHES))
def test_tokens_equal_those_of_transformers(name: str, mesh: str, tmp_path: Path) -> None:
    check(name, mesh, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MORE_MESHES)
@pytest.mark.parametrize("name", FIXTURES)
def test_tokens_on_more_meshes(name: str, mesh: str, tmp_path: Path) -> None:
    check(name, mesh, tmp_path)


@pytest.mark.parametrize("setting", only(SETTINGS, "shift", "pipeline", "regions"))
def test_no_option_of_a_pass_changes_the_tokens(setting: str, tmp_path: Path) -> None:
    name = FIXTURES[list(SETTINGS).index(setting) % len(FIXTURES)]
    check(name, "4x6", tmp_path, SETTINGS[setting])


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", FIXTURES)
def test_options_of_passes_on_every_model(name: str, setting: str, tmp_path: Path) -> None:
    check(name, "3x4", tmp_path, SETTINGS[setting])

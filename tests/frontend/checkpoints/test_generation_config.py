"""``generation_config.json`` beside a checkpoint: tokens that end a text, and how others come."""

import json
import shutil
from pathlib import Path

import pytest

from meshc.cli import main
from meshc.driver.running import RunRequest
from meshc.frontend.checkpoints import read_config, read_generation
from meshc.serving.sampling import GREEDY, Sampling
from meshc.support.diagnostics import MeshcError

TINY = Path(__file__).parents[2] / "data" / "tiny" / "llama-3h1"


@pytest.fixture
def checkpoint(tmp_path):
    """Writes the file beside a tiny model; the folder."""

    def write(**settings):
        folder = tmp_path / "model"
        shutil.copytree(TINY, folder, dirs_exist_ok=True)
        (folder / "generation_config.json").write_text(json.dumps(settings))
        return folder

    return write


def test_tokens_that_end_a_text_are_those_of_the_file(checkpoint):
    assert read_config(checkpoint(eos_token_id=[7, 9])).eos_ids == (7, 9)
    assert read_config(checkpoint(eos_token_id=3)).eos_ids == (3,)
    assert read_config(checkpoint(top_p=0.5)).eos_ids == read_config(TINY).eos_ids
    with pytest.raises(MeshcError, match="lie below the vocabulary size"):
        read_config(checkpoint(eos_token_id=[7, 10**6]))


def test_settings_that_are_absent_are_those_of_transformers(checkpoint):
    found = read_generation(checkpoint())
    assert (found.temperature, found.top_k, found.top_p) == (1.0, 50, 1.0)
    found = read_generation(checkpoint(temperature=0.6, top_k=20, top_p=0.95))
    assert (found.temperature, found.top_k, found.top_p) == (0.6, 20, 0.95)
    assert read_generation(TINY) == read_generation(TINY / "config.json")


@pytest.mark.oracle
def test_transformers_has_these_settings(checkpoint):
    kind = pytest.importorskip("transformers").GenerationConfig
    usual, found = kind()._get_default_generation_params(), read_generation(checkpoint())
    for name in ("temperature", "top_k", "top_p"):
        assert getattr(found, name) == usual[name]


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"top_k": 1.5}, {"top_p": 2}, {"eos_token_id": "x"}, {"top_k": -1}],
    ids=str,
)
def test_settings_that_are_none_are_refused(checkpoint, settings):
    with pytest.raises(MeshcError) as error:
        read_generation(checkpoint(**settings))
    assert error.value.diagnostics[0].code == "config-bad-value"


def test_flags_stand_before_the_file_which_counts_only_if_asked(checkpoint):
    usual = read_generation(checkpoint(temperature=0.6, top_k=20))
    cases = (
        ({}, GREEDY),
        ({"sample": True}, Sampling(0.6, 20, 1.0)),
        ({"sample": True, "top_k": 3, "top_p": 0.5}, Sampling(0.6, 3, 0.5)),
        ({"top_p": 0.5}, Sampling(1.0, 0, 0.5)),
        ({"temperature": 2.0}, Sampling(2.0)),
    )
    for given, wanted in cases:
        assert RunRequest(("a",), **given).continuation(None, usual).sampling == wanted


@pytest.mark.models
def test_what_is_not_computed_is_refused_where_the_file_counts(checkpoint, capsys):
    folder = checkpoint(repetition_penalty=1.1, min_p=0.05, num_beams=1)
    words = ["run", str(folder), "--prompt-ids", "5", "--max-tokens", "1", "--mesh", "1x1"]
    assert main([*words, "--sample"]) == 1
    said = capsys.readouterr().err
    assert "error[config-unsupported]" in said and "asks for repetition_penalty, min_p," in said
    assert main([*words, "--temperature", "1"]) == 0

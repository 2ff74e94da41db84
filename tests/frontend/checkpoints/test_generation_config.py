"""``generation_config.json`` beside a checkpoint: tokens that end a text, and how others come."""

import json
import shutil
from pathlib import Path

import pytest
from model_files import gguf_bytes

from meshc.cli import main
from meshc.driver.running import RunRequest
from meshc.frontend.checkpoints import read_config, read_generation
from meshc.frontend.checkpoints.hf.generation import INERT, NEUTRAL
from meshc.serving.sampling import GREEDY, Sampling
from meshc.support.diagnostics import MeshcError

READ = ("temperature", "top_k", "top_p", "min_p", "eos_token_id")
PRIVATE = {"_commit_hash", "_original_object_hash"}
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
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (1.0, 50, 1.0, 0.0)
    found = read_generation(checkpoint(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1))
    assert (found.temperature, found.top_k, found.top_p, found.min_p) == (0.6, 20, 0.95, 0.1)
    assert read_generation(checkpoint(min_p=None)).min_p == 0
    assert read_generation(TINY) == read_generation(TINY / "config.json")


@pytest.mark.oracle
def test_transformers_has_these_settings(checkpoint):
    kind = pytest.importorskip("transformers").GenerationConfig
    usual, found = kind()._get_default_generation_params(), read_generation(checkpoint())
    for name in READ[:-1]:
        assert getattr(found, name) == (usual.get(name) or 0)
    for name, neutral in NEUTRAL.items():
        assert usual.get(name) in (None, *neutral)


@pytest.mark.oracle
def test_every_setting_of_transformers_is_read_refused_or_known_to_change_nothing():
    kind = pytest.importorskip("transformers").GenerationConfig
    assert set(kind().to_dict()) | set(vars(kind())) - PRIVATE <= {*NEUTRAL, *INERT, *READ}


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1}, {"top_k": 1.5}, {"top_p": 2}, {"eos_token_id": "x"}, {"min_p": -1}],
    ids=str,
)
def test_settings_that_are_none_are_refused(checkpoint, settings):
    with pytest.raises(MeshcError) as error:
        read_generation(checkpoint(**settings))
    assert error.value.diagnostics[0].code == "config-bad-value"


def test_flags_stand_before_the_file_which_counts_only_if_asked(checkpoint):
    usual = read_generation(checkpoint(temperature=0.6, top_k=20, min_p=0.1))
    cases = (
        ({}, GREEDY),
        ({"sample": True}, Sampling(0.6, 20, 1.0, 0.1)),
        ({"sample": True, "top_k": 3, "top_p": 0.5}, Sampling(0.6, 3, 0.5, 0.1)),
        ({"top_p": 0.5}, Sampling(1.0, 0, 0.5)),
        ({"temperature": 2.0}, Sampling(2.0)),
        ({"min_p": 0.2}, Sampling(1.0, 0, 1.0, 0.2)),
    )
    for given, wanted in cases:
        assert RunRequest(("a",), **given).continuation(None, usual).sampling == wanted


@pytest.mark.models
def test_what_is_not_computed_is_refused_where_the_file_counts(checkpoint, capsys):
    folder = checkpoint(repetition_penalty=1.1, typical_p=0.5, num_beams=1)
    words = ["run", str(folder), "--prompt-ids", "5", "--max-tokens", "1", "--mesh", "1x1"]
    assert main([*words, "--sample"]) == 1
    said = capsys.readouterr().err
    assert "error[config-unsupported]" in said and "asks for repetition_penalty, typical_p," in said
    assert main([*words, "--temperature", "1"]) == 0


@pytest.mark.every_case
@pytest.mark.parametrize(
    "settings",
    [
        {"min_new_tokens": 5},
        {"min_length": 3},
        {"top_h": 0.4},
        {"stop_strings": ["a"]},
        {"forced_eos_token_id": 3},
        {"exponential_decay_length_penalty": [5, 1.2]},
        {"suppress_tokens": [4]},
        {"no_repeat_ngram_size": 2},
        {"typical_p": 0.9},
        {"watermarking_config": {"bias": 2.0}},
    ],
    ids=str,
)
def test_settings_that_change_which_tokens_come_are_refused(checkpoint, settings):
    with pytest.raises(MeshcError, match=next(iter(settings))):
        read_generation(checkpoint(**settings)).check_drawing()
    neutral = {name: NEUTRAL[name][0] if NEUTRAL[name] else None for name in settings}
    for known in (neutral, dict.fromkeys(INERT, 3), dict.fromkeys(NEUTRAL)):
        read_generation(checkpoint(**known)).check_drawing()


def test_a_config_counts_where_there_is_no_file_for_it(checkpoint):
    folder = checkpoint()
    (folder / "generation_config.json").unlink()
    assert read_generation(folder).top_k == 50
    config = json.loads((folder / "config.json").read_text())
    asked = {"temperature": 0.5, "top_k": 7, "repetition_penalty": 1.2}
    (folder / "config.json").write_text(json.dumps(config | asked))
    found = read_generation(folder)
    assert (found.temperature, found.top_k, found.unread) == (0.5, 7, ("repetition_penalty",))
    with pytest.raises(MeshcError, match=r"config\.json asks for repetition_penalty"):
        found.check_drawing()


def test_what_a_gguf_file_says_of_drawing_is_refused(tmp_path):
    file = tmp_path / "x.gguf"
    neutral = [
        ("general.sampling.min_p", "f32", 0.0),
        ("general.sampling.mirostat_eta", "f32", 1.0),
    ]
    file.write_bytes(gguf_bytes(neutral))
    read_generation(file).check_drawing()
    file.write_bytes(gguf_bytes([*neutral, ("general.sampling.temp", "f32", 0.5)]))
    with pytest.raises(MeshcError, match=r"x\.gguf asks for general\.sampling\.temp,"):
        read_generation(file).check_drawing()

"""``meshc run`` with several prompts: one batch, whose answers are listed in order."""

import json
from pathlib import Path

import numpy as np
import pytest

from meshc.cli import main

pytestmark = pytest.mark.models

MODEL = str(Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1")
PROMPTS = ("5,17,42", "9", "3,3,3,3,3")
HOW = ("--max-tokens", "5", "--ignore-eos")
MESH = ("--mesh", "2x3")


def said(capsys, *words):
    """What a run prints, once it has ended well."""
    capsys.readouterr()
    assert main(["run", *map(str, words), *HOW]) == 0
    return capsys.readouterr().out


def ids(*prompts):
    return [word for prompt in prompts for word in ("--prompt-ids", prompt)]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A directory with a program for four requests."""
    out = tmp_path_factory.mktemp("batch") / "out"
    words = ["--mesh", "2x3", "--seq", "16", "--batch", "4", "--weights", MODEL, "-o", str(out)]
    assert main(["compile", MODEL, *words]) == 0
    return out


def test_each_prompt_gets_the_answer_that_it_gets_alone(capsys, program):
    alone = [said(capsys, MODEL, *ids(prompt), *MESH) for prompt in PROMPTS]
    numbered = "".join(f"[{n}] {text}" for n, text in enumerate(alone, 1))
    assert said(capsys, MODEL, *ids(*PROMPTS), *MESH) == numbered
    assert said(capsys, program, *ids(*PROMPTS)) == numbered
    assert said(capsys, program, *ids(PROMPTS[1])) == alone[1]


def test_json_lists_requests_only_where_there_are_several(capsys, program, tmp_path):
    one = json.loads(said(capsys, program, *ids(PROMPTS[0]), "--json"))
    common = ["seconds_per_token", "mesh", "backend"]
    assert list(one) == ["prompt_ids", "tokens", "text", *common]
    logits = tmp_path / "logits.npy"
    found = json.loads(said(capsys, program, *ids(*PROMPTS), "--json", "--logits", logits))
    assert list(found) == ["requests", *common]
    assert [list(request) for request in found["requests"]] == [
        ["prompt_ids", "tokens", "text"]
    ] * 3
    assert found["requests"][0] == {name: one[name] for name in ("prompt_ids", "tokens", "text")}
    tokens = [request["tokens"] for request in found["requests"]]
    assert np.load(logits).argmax(-1).tolist() == tokens
    assert found["seconds_per_token"] > 0


def test_logits_behind_the_end_of_a_text_are_nothing(capsys, program, tmp_path):
    """The first token of the first prompt ends its text; the others go on."""
    words = (*ids(*PROMPTS), "--json", "--logits", tmp_path / "logits.npy")
    capsys.readouterr()
    assert main(["run", str(program), *map(str, words), *HOW[:-1]]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    lengths = [len(request["tokens"]) for request in requests]
    assert lengths[0] < max(lengths) == 5
    logits = np.load(tmp_path / "logits.npy")
    assert logits.shape[:2] == (3, 5)
    assert (~np.isnan(logits)).all(-1).sum(1).tolist() == lengths


def test_more_prompts_than_the_program_takes_are_refused(capsys, program):
    words = ["run", str(program), *ids(*PROMPTS, "1", "2"), *HOW]
    assert main(words) == 1
    assert "run-refused]: 5 prompts, but the program takes 1 to 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        (("--mesh", "3x3"), "--mesh"),
        (("--batch", "2"), "--batch"),
        (("--chunk", "8"), "--chunk"),
        (("--keep-quantised", "stored"), "--keep-quantised"),
        (("--phase", "decode"), "--phase"),
        (("--target", "cuda"), "--target"),
    ],
)
def test_a_compiled_program_takes_no_flags_of_compiling(given, flag, capsys, program):
    assert main(["run", str(program), *ids(PROMPTS[0]), *given]) == 1
    assert f"bad-argument]: {flag} says what to compile" in capsys.readouterr().err

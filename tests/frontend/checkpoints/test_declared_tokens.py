"""Tokens that files beside a ``tokenizer.json`` declare, with their flags."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from model_files import diagnosed, model_config

from meshc.frontend.checkpoints import Tokenizer, load_tokenizer
from meshc.support.diagnostics import MeshcError

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.models

LETTERS = {letter: number for number, letter in enumerate("abcdefgh <>|/st")}
SIZE = len(LETTERS)
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, **dict.fromkeys(FLAGS, False), **flags}


def written(folder: Path, files: dict[str, Any], own: Any = (), **parts: Any) -> Path:
    """A folder with a tokenizer of letters and its ``own`` added tokens, and other ``files``."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {"type": "BPE", "vocab": LETTERS, "merges": []}
    added = [{"id": SIZE + number, **facts} for number, facts in enumerate(own)]
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": added, "model": model, **parts})
    )
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def loaded(folder: Path, files: dict[str, Any], own: Any = (), **parts: Any) -> Tokenizer:
    return load_tokenizer(written(folder, files, own, **parts), model_config(vocab=SIZE + 20))


def spelled(tokenizer: Tokenizer, text: str) -> list[int | str]:
    """The ids of ``text``, letters as themselves."""
    letters = {number: letter for letter, number in LETTERS.items()}
    return [letters.get(number, number) for number in tokenizer.encode(text)]


@pytest.mark.parametrize(
    "files",
    [
        {CONFIG: {**CLASS, "added_tokens_decoder": {str(SIZE): token("<t>", special=True)}}},
        {ADDED: {"<t>": SIZE}},
        {CONFIG: CLASS | {"eos_token": "<t>"}, ADDED: {"<t>": SIZE}},
        {CONFIG: CLASS | {"eos_token": "<t>"}},
        {CONFIG: CLASS | {"additional_special_tokens": ["<t>"]}},
        {CONFIG: CLASS | {"extra_special_tokens": {"tool_token": "<t>"}}},
        {CONFIG: CLASS | {"extra_special_tokens": {"tool": "<t>"}}},
        {CONFIG: CLASS | {"model_specific_special_tokens": {"tool": "<t>"}}},
        {MAP: {"pad_token": "<t>"}},
        {MAP: {"pad_token": token("<t>")}},
    ],
    ids=str,
)
def test_a_token_that_only_other_files_have(files: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, files)
    assert spelled(tokenizer, "a<t>b") == ["a", SIZE, "b"]
    special = files != {ADDED: {"<t>": SIZE}}
    assert tokenizer.control_text(SIZE) == ("<t>" if special else "")


@pytest.mark.parametrize(
    ("kind", "name", "cut"),
    [
        ("llama", "PreTrainedTokenizerFast", ["ab", "c"]),
        ("llama", "GPT2Tokenizer", ["a", "bc"]),
        ("starcoder2", "GPT2TokenizerFast", ["a", "bc"]),
        ("granite", "GPT2Tokenizer", ["ab", "c"]),
        ("cohere", None, ["a", "bc"]),
        ("llama", "NobodysTokenizer", ["ab", "c"]),
    ],
)
def test_steps_of_a_class_stand_before_those_of_the_file(
    kind: str, name: str | None, cut: list[str], tmp_path: Path
) -> None:
    """Which class transformers takes goes by the type of the model and by the name in its files."""
    split = {"type": "Split", "pattern": {"String": "ab"}, "behavior": "Isolated", "invert": False}
    model = {
        "type": "BPE", "vocab": {**LETTERS, "bc": SIZE, "ab": SIZE + 1},
        "merges": [["b", "c"], ["a", "b"]],
    }  # fmt: skip
    files = {"config.json": {"model_type": kind}, CONFIG: {"tokenizer_class": name}}
    tokenizer = loaded(tmp_path, files, model=model, pre_tokenizer=split)
    known = {number: letters for letters, number in model["vocab"].items()}
    assert [known[number] for number in tokenizer.encode("abc")] == cut


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({CONFIG: {"tokenizer_class": "T5TokenizerFast"}}, '"T5TokenizerFast", which cuts'),
        ({"config.json": {"tokenizer_class": "BertTokenizer"}}, '"BertTokenizer", which cuts'),
        ({CONFIG: {"clean_up_tokenization_spaces": True}}, "takes spaces out of texts"),
        ({CONFIG: {"tokenizer_class": "LlamaTokenizer"}}, "LlamaTokenizer, and has no byte pair"),
    ],
)
def test_what_code_of_its_own_would_do_is_refused(
    files: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = {"type": "WordLevel", "vocab": LETTERS, "unk_token": "a"}
    (found,) = diagnosed("tokenizer-unsupported", lambda: loaded(tmp_path, files, model=model))
    assert words in found.message


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2TokenizerFast"])
def test_a_space_before_a_text_goes_by_the_class(name: str, tmp_path: Path) -> None:
    words = {**LETTERS, "\u0120": SIZE}
    model = {"type": "BPE", "vocab": words, "merges": []}
    for wanted in (True, False):
        asks = {CONFIG: {"tokenizer_class": name, "add_prefix_space": wanted}}
        tokenizer = loaded(tmp_path / str(wanted), asks, model=model)
        assert tokenizer.encode("a") == [SIZE] * wanted + [0]


def test_a_class_gives_its_special_tokens_flags_of_its_own(tmp_path: Path) -> None:
    """Qwen2Tokenizer adds its named tokens once more, without any."""
    own = [token("<t>", rstrip=True, special=True)]
    model = {"type": "BPE", "vocab": {**LETTERS, "\u0120": SIZE}, "merges": []}
    for name, space in (("Qwen2Tokenizer", [SIZE]), ("GPT2Tokenizer", [])):
        files = {CONFIG: {"tokenizer_class": name, "eos_token": "<t>"}}
        found = loaded(tmp_path / name, files, own, model=model).encode("<t> a")
        assert found == [SIZE + 1, *space, 0]


@pytest.mark.parametrize(
    ("flags", "text", "ids"),
    [
        ({}, "a <t> b<t>c", ["a", " ", SIZE, " ", "b", SIZE, "c"]),
        ({"lstrip": True}, "a  <t> b", ["a", SIZE, " ", "b"]),
        ({"rstrip": True}, "a <t>  b", ["a", " ", SIZE, "b"]),
        ({"single_word": True}, "a<t>b <t> c", [*"a<t>b ", SIZE, " ", "c"]),
    ],
)
def test_flags_given_there_stand_before_those_of_the_tokenizer(
    flags: dict[str, bool], text: str, ids: list[int | str], tmp_path: Path
) -> None:
    files = {CONFIG: {**CLASS, "added_tokens_decoder": {str(SIZE): token("<t>", **flags)}}}
    assert spelled(loaded(tmp_path / "new", files), text) == ids
    own = [token("<t>", special=True)]
    tokenizer = loaded(tmp_path / "changed", files, own)
    assert spelled(tokenizer, text) == ids
    assert tokenizer.control_text(SIZE) == ""


def test_older_files_leave_the_tokens_of_the_tokenizer_as_they_are(tmp_path: Path) -> None:
    own = [token("<t>", rstrip=True)]
    tokenizer = loaded(tmp_path, {ADDED: {"<t>": SIZE, "<s>": SIZE + 1}}, own)
    assert spelled(tokenizer, "<t>  a<s>") == [SIZE, "a", SIZE + 1]


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("tokenizer-mismatch", {CONFIG: {"added_tokens_decoder": {str(SIZE + 3): token("<t>")}}}),
        ("tokenizer-mismatch", {ADDED: {"<t>": 3}}),
        ("tokenizer-invalid", {CONFIG: {"added_tokens_decoder": []}}),
        ("tokenizer-invalid", {CONFIG: {"added_tokens_decoder": {"x": token("<t>")}}}),
        ("tokenizer-invalid", {CONFIG: {"added_tokens_decoder": {"3": "<t>"}}}),
        ("tokenizer-invalid", {ADDED: {"<t>": "3"}}),
        ("tokenizer-unsupported", {CONFIG: {"split_special_tokens": True}}),
        ("json-invalid", {CONFIG: 3}),
    ],
)
def test_files_that_are_none(code: str, files: dict[str, Any], tmp_path: Path) -> None:
    diagnosed(code, lambda: loaded(tmp_path, files))


PIECES = ("<t>", "<t", "<s>", "</s>", "<|", "a<t>", "a", "b", " ", "  ", "<", "|")


def drawn(chance: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Files beside a tokenizer, and its own added tokens."""
    texts = chance.sample(PIECES[:6], chance.randint(1, 5))
    own = [token(text, **flags(chance)) for text in texts[: chance.randint(0, 3)]]
    later = texts[len(own) :]
    files: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name in chance.sample(["bos_token", "eos_token", "pad_token", "tool_token"], 2):
        if chance.random() < 0.6:
            named[name] = chance.choice(texts)
    if chance.random() < 0.3:
        named["additional_special_tokens"] = chance.sample(texts, 1)
    if chance.random() < 0.4:
        named["add_bos_token"] = chance.random() < 0.5
    if chance.random() < 0.3:
        named["add_eos_token"] = chance.random() < 0.5
    if chance.random() < 0.5:
        declared = [token(one["content"], **flags(chance)) for one in own]
        declared += [token(text, **flags(chance)) for text in later]
        named["added_tokens_decoder"] = {str(SIZE + n): one for n, one in enumerate(declared)}
    elif chance.random() < 0.6:
        files[ADDED] = {text: SIZE + len(own) + number for number, text in enumerate(later)}
    if chance.random() < 0.4:
        files[MAP] = {chance.choice(("unk_token", "bos_token")): chance.choice(texts)}
    return {CONFIG: {**CLASS, **named}, **files}, own


def flags(chance: random.Random) -> dict[str, bool]:
    return {flag: chance.random() < 0.3 for flag in FLAGS}


@pytest.mark.every_case
@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("seed", range(25))
def test_ids_and_texts_are_those_of_transformers(seed: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    chance = random.Random(seed)
    files, own = drawn(chance)
    normalizer = {"type": "Lowercase"} if chance.random() < 0.5 else None
    folder = written(tmp_path, files, own, normalizer=normalizer)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    try:
        tokenizer = load_tokenizer(folder, model_config(vocab=SIZE + 20))
    except MeshcError as error:
        # Where transformers gives a token another id than the files say, meshc refuses.
        assert [one.code for one in error.diagnostics] == ["tokenizer-mismatch"]
        declared = files[CONFIG].get("added_tokens_decoder", {}).items()
        ids = {one["content"]: int(number) for number, one in declared} | files.get(ADDED, {})
        assert any(theirs.get_vocab().get(text) != number for text, number in ids.items())
        return
    for _ in range(40):
        text = "".join(chance.choices(PIECES, k=chance.randint(0, 8)))
        ids = theirs(text)["input_ids"]
        assert tokenizer.encode(text) == ids, text
        assert (
            tokenizer.encode_rendered(text) == theirs(text, add_special_tokens=False)["input_ids"]
        )
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)

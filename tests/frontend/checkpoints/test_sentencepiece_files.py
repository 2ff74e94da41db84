"""Tokenizers that are a ``tokenizer.model`` alone, against the ids and texts that transformers and
SentencePiece gave (``tools/oracle/sentencepiece_models.py``)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from model_files import config_file, diagnosed, model_config

from meshc.frontend.checkpoints.tokenizer import Tokenizer, has_vocabulary, load_tokenizer
from meshc.frontend.checkpoints.tokenizing.sentencepiece_file import read_model

pytestmark = pytest.mark.models

RECORD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "sentencepiece_models.json").read_text()
)
SIZE = 396


def model_of(name: str) -> bytes:
    return base64.b64decode(RECORD[name]["model"])


def written(folder: Path, name: str, model: bytes | None = None, **config: object) -> Path:
    """The files of a case, with other settings of its tokenizer."""
    case = RECORD[name]
    kind = config.pop("model_type", case["model_type"])
    place = config_file(folder, {"model_type": kind}).parent
    (place / "tokenizer.model").write_bytes(model_of(name) if model is None else model)
    settings = {**case["tokenizer_config"], **config}
    kept = {key: value for key, value in settings.items() if value is not ...}
    (place / "tokenizer_config.json").write_text(json.dumps(kept))
    return place


def opened(place: Path) -> Tokenizer:
    return load_tokenizer(place, model_config(vocab=SIZE + 1))


@pytest.mark.every_case
@pytest.mark.parametrize("name", RECORD)
def test_ids_and_texts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    place = written(tmp_path, name)
    assert has_vocabulary(place)
    tokenizer, plain = opened(place), 0
    config = RECORD[name]["tokenizer_config"]
    front, behind = int(config["add_bos_token"]), int(config.get("add_eos_token", False))
    for found in RECORD[name]["texts"]:
        ids = tokenizer.encode(found["text"])
        assert ids == found["ids"], found
        assert tokenizer.decode(ids) == found["decoded"], found
        if found["text"][:1].isalpha() and "<" not in found["text"]:
            assert ids[front : len(ids) - behind] == found["plain"], found
            plain += 1
    assert plain > 8


REFUSED = [
    ("llama", {"tokenizer_class": ...}, "of the class null"),
    ("llama", {"tokenizer_class": "T5Tokenizer"}, "not read for llama"),
    ("llama", {"model_type": "t5"}, 'of a model of type "t5"'),
    ("gemma", {"tokenizer_class": "LlamaTokenizer"}, "not read for gemma2"),
    ("llama", {"add_bos_token": ...}, "no 'add_bos_token'"),
    ("llama", {"bos_token": "<begin>"}, "that it does not have"),
    ("llama", {"additional_special_tokens": ["<x>"]}, "only the files beside it name"),
    ("llama", {"add_prefix_space": False}, "'add_prefix_space'"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "config", "words"), REFUSED)
def test_what_transformers_reads_otherwise_is_refused(
    name: str, config: dict[str, object], words: str, tmp_path: Path
) -> None:
    place = written(tmp_path, name, **config)
    (found,) = diagnosed("tokenizer-unsupported", lambda: opened(place))
    assert words in found.message


def message(number: int, *fields: bytes) -> bytes:
    """A message of less than 128 bytes as the field ``number``, whose numbers are varints."""
    data = b"".join(fields)
    return bytes((number << 3 | 2, len(data))) + data


def varint(number: int, value: int) -> bytes:
    tag = number << 3
    return bytes((tag & 0x7F | 0x80, tag >> 7, value) if tag > 127 else (tag, value))


TRAINER, NORMALIZER = 2, 3
CHANGES = [
    ("llama", TRAINER, varint(3, 1), "no byte pair encoding"),
    ("llama", TRAINER, varint(35, 0), "no bytes for characters"),
    ("llama", TRAINER, varint(24, 1), "behind words"),
    ("llama", NORMALIZER, message(2, b"table"), "by a table"),
    ("llama", NORMALIZER, varint(4, 1), "drops spaces"),
    ("llama", NORMALIZER, varint(5, 0), "keeps spaces"),
    ("llama", NORMALIZER, varint(3, 0), "no space in front"),
    ("gemma", NORMALIZER, varint(3, 1), "a space in front"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "part", "fields", "words"), CHANGES)
def test_what_the_model_asks_for_and_transformers_passes_over_is_refused(
    name: str, part: int, fields: bytes, words: str, tmp_path: Path
) -> None:
    """A message that is there twice has the later ones of its fields."""
    place = written(tmp_path, name, model_of(name) + message(part, fields))
    (found,) = diagnosed("tokenizer-unsupported", lambda: opened(place))
    assert words in found.message


def test_pieces_whose_scores_do_not_fall_are_refused(tmp_path: Path) -> None:
    later = message(1, message(1, b"new") + b"\x15\x00\x00\x00\x00")
    place = written(tmp_path, "llama", model_of("llama") + later)
    (found,) = diagnosed("tokenizer-unsupported", lambda: opened(place))
    assert "otherwise than by their ids" in found.message


HARMS = {
    "cut": lambda data: data[:-3],
    "nothing": lambda data: b"",
    "text": lambda data: b"{}" + data,
    "a piece twice": lambda data: data + message(1, message(1, b"<s>")),
    "no text": lambda data: data + message(1, message(1, b"\xff")),
    "a kind that is none": lambda data: data + message(1, message(1, b"new") + varint(3, 9)),
    "a number without end": lambda data: data + b"\xff" * 12,
    "a score that is none": lambda data: (
        data + message(1, message(1, b"w") + b"\x15\x00\x00\xc0\x7f")
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("harm", HARMS)
def test_what_is_no_model_is_refused(harm: str, tmp_path: Path) -> None:
    place = written(tmp_path, "llama", HARMS[harm](model_of("llama")))
    diagnosed("tokenizer-invalid", lambda: opened(place))


def test_a_tokenizer_json_counts_where_there_is_one(tmp_path: Path) -> None:
    place = written(tmp_path, "llama", tokenizer_class=...)
    (place / "tokenizer.json").write_text("no json")
    diagnosed("tokenizer-invalid", lambda: opened(place))


def test_absent_fields_have_the_defaults_of_sentencepiece() -> None:
    found = read_model(message(1, message(1, b"a")))
    (piece,) = found.pieces
    assert (piece.text, piece.score, piece.kind) == ("a", 0.0, 1)
    assert (found.kind, found.falls_back, found.suffixes, found.has_table) == (
        1,
        False,
        False,
        False,
    )
    assert found.prefixes and found.strips and found.escapes and found.unknown == 0

"""Tokenizers that are spelled as ``vocab.json`` and ``merges.txt``. Texts are cut as GGUF
vocabularies of these classes are, of which there are recorded ids."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from model_files import byte_letters, config_file, diagnosed, model_config

pytest.importorskip("tokenizers")

from meshc.frontend.checkpoints import load_tokenizer
from meshc.frontend.checkpoints.tokenizer import Tokenizer, has_vocabulary

DATA = Path(__file__).parents[2] / "data" / "gguf_cuts.json"
RECORD: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
SIZE = 256 + len(RECORD["merges"])
END, START = SIZE, SIZE + 1


def written(folder: Path, kind: str = "gpt2", **config: object) -> Path:
    """The vocabulary of the record, an end token behind it, and the settings of a tokenizer."""
    place = config_file(folder, {"model_type": kind}).parent
    words = [*byte_letters(), *(line.replace(" ", "") for line in RECORD["merges"])]
    vocabulary = {word: number for number, word in enumerate([*words, "<|endoftext|>"])}
    (place / "vocab.json").write_text(json.dumps(vocabulary))
    (place / "merges.txt").write_text("#version: 0.2\n" + "\n".join(RECORD["merges"]) + "\n")
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place


def opened(folder: Path, kind: str = "gpt2", **config: object) -> Tokenizer:
    return load_tokenizer(written(folder, kind, **config), model_config(vocab=SIZE + 2))


@pytest.mark.parametrize(
    ("name", "kind", "cut"),
    [
        ("GPT2Tokenizer", "gpt2", "gpt-2"),
        ("GPT2TokenizerFast", "starcoder2", "gpt-2"),
        ("Qwen2Tokenizer", "qwen2", "qwen2"),
        ("Qwen2TokenizerFast", "llama", "qwen2"),
    ],
)
def test_ids_are_those_of_the_cut(name: str, kind: str, cut: str, tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, kind, tokenizer_class=name)
    wanted = RECORD["ids"][RECORD["names"][cut]]
    compared = 0
    for text, ids in zip(RECORD["texts"], wanted, strict=True):
        # qwen2 brings texts to NFC and takes the long s for one; llama.cpp does neither.
        if unicodedata.is_normalized("NFC", text) and "\u017f" not in text:
            assert tokenizer.encode(text) == ids
            assert tokenizer.decode(ids) == text
            compared += 1
    assert compared > 10
    composed, apart = tokenizer.encode("caf\u00e9"), tokenizer.encode("cafe\u0301")
    assert (composed == apart) == (cut == "qwen2")


def test_special_tokens_are_those_of_the_class_and_the_files(tmp_path: Path) -> None:
    start = {str(START): {"content": "<|im_start|>", "special": True}}
    tokenizer = opened(tmp_path, tokenizer_class="GPT2Tokenizer", added_tokens_decoder=start)
    assert tokenizer.encode("<|endoftext|><|im_start|>") == [END, START]
    assert tokenizer.decode([END, START]) == ""
    assert has_vocabulary(tmp_path / "small")


def test_a_space_in_front(tmp_path: Path) -> None:
    plain = opened(tmp_path, tokenizer_class="GPT2Tokenizer")
    spaced = opened(tmp_path, tokenizer_class="GPT2Tokenizer", add_prefix_space=True)
    assert spaced.encode("ab") == plain.encode(" ab") != plain.encode("ab")


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("llama", {}, "of the class null"),
        ("llama", {"tokenizer_class": "LlamaTokenizer"}, 'of the class "LlamaTokenizer"'),
        ("qwen2", {"tokenizer_class": "GPT2Tokenizer"}, "takes another for qwen2"),
        ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}, "around a text"),
    ],
)
def test_other_classes_are_refused(
    kind: str, config: dict[str, object], words: str, tmp_path: Path
) -> None:
    (found,) = diagnosed("tokenizer-unsupported", lambda: opened(tmp_path, kind, **config))
    assert words in found.message


def test_files_that_are_no_such_thing(tmp_path: Path) -> None:
    place = written(tmp_path, tokenizer_class="GPT2Tokenizer")
    config = model_config(vocab=SIZE + 2)
    (place / "merges.txt").write_bytes(b"\xff")
    diagnosed("tokenizer-invalid", lambda: load_tokenizer(place, config))
    (place / "merges.txt").write_text("a b c\n")
    diagnosed("tokenizer-invalid", lambda: load_tokenizer(place, config))
    (place / "merges.txt").write_text("")
    (place / "vocab.json").write_text('{"a": "b"}')
    diagnosed("tokenizer-invalid", lambda: load_tokenizer(place, config))
    (place / "vocab.json").write_text("[]")
    diagnosed("json-invalid", lambda: load_tokenizer(place, config))

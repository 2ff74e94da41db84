"""The tokenizer of a ``vocab.json`` and a ``merges.txt``, spelled as the ``tokenizers`` package has
it in JSON.

Such files lack how words are cut, which the class that ``tokenizer_config.json`` names says.
Source: ``GPT2Tokenizer`` and ``Qwen2Tokenizer`` of Hugging Face transformers (release 5.24).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.bounded_files import read_bounded
from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.support.diagnostics import fail

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_LIMIT_BYTES = 64 << 20
QWEN_2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"
USUAL: Mapping[str, Mapping[str, str]] = {
    "GPT2Tokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END},
    "Qwen2Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
}
"""Classes that are known, and the special tokens that they have where files name none."""


def class_of(config: Mapping[str, object], file: Path) -> str:
    """The class that the ``tokenizer_config.json`` of the vocabulary ``file`` names, which must be
    that of its model. Errors: ``tokenizer-unsupported``, ``json-invalid``,
    ``checkpoint-unreadable``."""
    given = config.get("tokenizer_class")
    name = given.removesuffix("Fast") if isinstance(given, str) else ""
    if name not in USUAL:
        _unsupported(file, f"is of the class {brief(given)} ({', '.join(USUAL)} are read)")
    model = file.with_name("config.json")
    kind = read_json_object(model, _LIMIT_BYTES, "model config").value.get("model_type")
    if name == "GPT2Tokenizer" and isinstance(kind, str) and kind.startswith("qwen"):
        _unsupported(file, f"is of the class {name}, but transformers takes another for {kind}")
    if config.get("add_bos_token") or config.get("add_eos_token"):
        _unsupported(file, "puts tokens around a text ('add_bos_token' or 'add_eos_token')")
    return name


def json_of_files(file: Path, config: Mapping[str, object]) -> str:
    """The JSON of the tokenizer whose vocabulary is ``file``, with the merges beside it.

    Errors: ``tokenizer-unsupported``, ``tokenizer-invalid``, ``json-invalid``,
    ``checkpoint-unreadable``.
    """
    name, prefix = class_of(config, file), config.get("add_prefix_space")
    step = {
        "type": "ByteLevel",
        "add_prefix_space": prefix is True,
        "trim_offsets": True,
        "use_regex": name == "GPT2Tokenizer",
    }
    split = {
        "type": "Split", "pattern": {"Regex": QWEN_2}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    steps = {"type": "Sequence", "pretokenizers": [split, step]}
    is_qwen = name == "Qwen2Tokenizer"
    vocabulary = read_json_object(file, _LIMIT_BYTES, "vocabulary").value
    model = {"type": "BPE", "vocab": vocabulary, "merges": _merges(file.with_name(MERGES))}
    return json.dumps(
        {
            "version": "1.0",
            "normalizer": {"type": "NFC"} if is_qwen else None,
            "pre_tokenizer": steps if is_qwen else step,
            "decoder": step,
            "model": model,
            "added_tokens": [],
        }
    )


def _merges(file: Path) -> list[str]:
    raw = read_bounded(file, _LIMIT_BYTES, "list of merges")
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        fail(
            "tokenizer-invalid",
            f"'{file}' is not valid: byte {error.start} is not UTF-8",
            help="get the file again",
        )
    first = 1 if lines[0].startswith("#version") else 0
    return [line.rstrip("\r") for line in lines[first:] if line.strip()]


def _unsupported(file: Path, reason: str) -> NoReturn:
    fail(
        "tokenizer-unsupported",
        f"the tokenizer of '{file}' {reason}",
        help="save it with a tokenizer.json, as newer tools do, or give the prompt as token ids",
    )

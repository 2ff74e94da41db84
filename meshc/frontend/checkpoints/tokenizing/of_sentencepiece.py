"""The tokenizer of a ``tokenizer.model`` of SentencePiece, spelled as the ``tokenizers`` package
has it in JSON.

Such a file may be without a ``tokenizer.json``; how texts are cut is said by it and by the class
that ``tokenizer_config.json`` names, or by the type of the model. SentencePiece and Hugging Face
transformers (release 5.24: ``LlamaTokenizer``, ``GemmaTokenizer``, and for other models
``build_tokenizer_from_spm_proto``) must read the file alike: one that asks for what transformers
passes over is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.bounded_files import read_bounded
from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.json_text import read_json_object
from meshc.frontend.checkpoints.tokenizing.declared_tokens import OF_MODEL
from meshc.frontend.checkpoints.tokenizing.sentencepiece_file import (
    BPE,
    CONTROL,
    NORMAL,
    USER,
    Piece,
    SentencePieceModel,
    read_model,
)
from meshc.support.diagnostics import fail

MODEL = "tokenizer.model"
_LIMIT_BYTES = 64 << 20
_MOST_PIECES, _LONGEST_PIECE = 1 << 19, 128
_SPACE = "\u2581"
_LLAMA, _GEMMA, _PLAIN = "LlamaTokenizer", "GemmaTokenizer", "TokenizersBackend"
_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
USUAL: Mapping[str, Mapping[str, str]] = {
    _LLAMA: _TOKENS,
    _PLAIN: _TOKENS,
    _GEMMA: {
        "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
}  # fmt: skip
"""Classes that are known, and the special tokens that they have where files name none."""
_KINDS = {
    "llama": _LLAMA,
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _GEMMA),
    **dict.fromkeys(("internlm2", "mistral", "mixtral", "phi3"), _PLAIN),
}
"""The class that transformers takes for each type of model."""


def class_of_model(config: Mapping[str, object], file: Path) -> str:
    """The class that transformers takes for the ``tokenizer.model`` ``file``, whose files must name
    it, or ``LlamaTokenizer`` in its place. Errors: ``tokenizer-unsupported``, ``json-invalid``,
    ``checkpoint-unreadable``."""
    given = config.get("tokenizer_class")
    named = given.removesuffix("Fast") if isinstance(given, str) else ""
    model = file.with_name("config.json")
    kind = read_json_object(model, _LIMIT_BYTES, "model config").value.get("model_type")
    name = _KINDS.get(kind, "") if isinstance(kind, str) else ""
    if not name:
        _unsupported(file, f"is of a model of type {brief(kind)} ({', '.join(_KINDS)} are read)")
    if named != (_GEMMA if name == _GEMMA else _LLAMA):
        _unsupported(file, f"is of the class {brief(given)}, which is not read for {kind}")
    extra = ("extra_special_tokens", "additional_special_tokens", OF_MODEL)
    if any(config.get(key) for key in extra):
        _unsupported(file, "has special tokens that only the files beside it name")
    if not isinstance(config.get("add_bos_token"), bool):
        _unsupported(file, "has no 'add_bos_token', without which releases of transformers differ")
    return name


def json_of_model(file: Path, config: Mapping[str, object]) -> tuple[str, list[dict[str, object]]]:
    """The JSON of the tokenizer in ``file``, which is of the class that ``config`` names, and the
    pieces that are found in a text before it is cut.

    Errors: ``tokenizer-unsupported``, ``tokenizer-invalid``, ``checkpoint-unreadable``.
    """
    name, model = class_of_model(config, file), _read(file)
    _check(file, name, model, config)
    usual = USUAL[name]
    bos, eos = (_text(config, key, usual) for key in ("bos_token", "eos_token"))
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    asked = ((bos, "add_bos_token"), (eos, "add_eos_token"))
    around = [token for token, key in asked if config.get(key)]
    if any(token not in ids for token in around):
        _unsupported(file, f"puts tokens around a text that it does not have: {around}")
    own = [piece.text for piece in model.pieces if piece.kind == USER]
    legacy = bool(config.get("legacy", name == _PLAIN))
    unknown = {_LLAMA: None, _GEMMA: _text(config, "unk_token", usual)}
    whole = {
        "version": "1.0",
        **(GEMMA_STEPS if name == _GEMMA else spaced(legacy, *([own] if name == _PLAIN else []))),
        "post_processor": _template(around, bos, ids),
        "model": {
            "type": "BPE",
            "vocab": ids,
            "merges": _merges(model.pieces, of_words=name == _PLAIN),
            "unk_token": unknown.get(name, model.pieces[model.unknown].text),
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": name == _PLAIN and bool(own),
        },
        "added_tokens": [],
    }
    found: list[dict[str, object]] = [
        {"content": piece.text, "normalized": False, "special": piece.kind == CONTROL}
        for piece in model.pieces
        if piece.kind == CONTROL or (piece.kind == USER and name != _PLAIN)
    ]
    return json.dumps(whole), found


def _read(file: Path) -> SentencePieceModel:
    try:
        model = read_model(read_bounded(file, _LIMIT_BYTES, "tokenizer"))
    except ValueError as error:
        _invalid(file, f"it is no SentencePiece model: {error}")
    texts = [piece.text for piece in model.pieces]
    if not 0 < len(texts) <= _MOST_PIECES or len({*texts}) != len(texts) or "" in texts:
        _invalid(file, f"it has {len(texts)} pieces, or one that is empty or there twice")
    longest = max(len(piece.text) for piece in model.pieces if piece.kind == NORMAL)
    if longest > _LONGEST_PIECE or not all(math.isfinite(piece.score) for piece in model.pieces):
        _invalid(file, f"a piece has {longest} characters, or a score that is no number")
    return model


def _check(file: Path, name: str, model: SentencePieceModel, config: Mapping[str, object]) -> None:
    """Refuse a model that SentencePiece and the class ``name`` of transformers read differently."""
    scores = [piece.score for piece in model.pieces if piece.kind == NORMAL]
    spaced = name != _GEMMA
    asked = {
        "is no byte pair encoding": model.kind != BPE,
        "has no bytes for characters that are no pieces": not model.falls_back,
        "normalizes texts by a table": model.has_table,
        "drops spaces": model.strips,
        "keeps spaces as they are, or behind words": not model.escapes or model.suffixes,
        "puts a space in front of a text": model.prefixes and not spaced,
        "puts no space in front of a text": not model.prefixes and spaced,
        "has other special tokens than usual": name == _PLAIN
        and not {*_TOKENS.values()} <= {piece.text for piece in model.pieces},
        "ranks pieces otherwise than by their ids": scores != sorted(scores, reverse=True),
        "is to put no space in front of a text ('add_prefix_space')": spaced
        and config.get("add_prefix_space") is False,
    }
    for words, is_so in asked.items():
        if is_so:
            _unsupported(file, f"{words}, which transformers reads otherwise for {name}")


def _merges(pieces: Sequence[Piece], of_words: bool) -> list[tuple[str, str]]:
    """Every way to cut a piece into two, the first piece first; of one the ways by lengths. Only
    ordinary pieces count where merges are ``of_words``."""
    taken = [piece for piece in pieces if piece.kind == NORMAL or not of_words]
    known = {piece.text for piece in taken}
    found = []
    for piece in taken:
        for cut in range(1, len(piece.text)):
            left, right = piece.text[:cut], piece.text[cut:]
            if left in known and right in known:
                found.append((left, right))
    return found


def spaced(legacy: bool, whole: Sequence[str] | None = None) -> dict[str, object]:
    """How a text with a space in front is cut, and put together again; if ``legacy`` the space is
    in front of what follows a control token, too. Pieces that are found ``whole`` are given where
    all is as SentencePiece has it, which puts a space in front of a text that has one."""
    scheme = "always" if legacy else "first"
    steps: list[dict[str, object]] = [
        {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": False}
    ]
    spaces: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    ]
    if legacy:
        first = {"Regex": rf"\A{_SPACE}"}
        spaces.append({"type": "Replace", "pattern": first, "content": _SPACE * 2})
    if whole:
        found = "|".join(map(re.escape, sorted(whole, key=len, reverse=True)))
        steps.append(
            {"type": "Split", "pattern": {"Regex": found}, "behavior": "Isolated", "invert": False}
        )
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "normalizer": None if whole is None else {"type": "Sequence", "normalizers": spaces},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "Sequence", "decoders": [*_DECODERS, strip]},
    }


_DECODERS: list[dict[str, object]] = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
GEMMA_STEPS: dict[str, object] = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    "pre_tokenizer": {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    },
    "decoder": {"type": "Sequence", "decoders": _DECODERS},
}


def _template(around: Sequence[str], bos: str, ids: Mapping[str, int]) -> dict[str, object] | None:
    """What puts tokens ``around`` a text: ``bos`` in front of it, another one behind it."""
    if not around:
        return None

    def special(token: str, kind: int) -> dict[str, object]:
        return {"SpecialToken": {"id": token, "type_id": kind}}

    def side(kind: int) -> list[dict[str, object]]:
        text: dict[str, object] = {"Sequence": {"id": "AB"[kind], "type_id": kind}}
        front = [special(token, kind) for token in around[:1] if token == bos]
        return [*front, text, *(special(token, kind) for token in around[len(front) :])]

    known = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in around}
    pair = [*side(0), *side(1)]
    return {
        "type": "TemplateProcessing", "single": side(0), "pair": pair, "special_tokens": known,
    }  # fmt: skip


def _text(config: Mapping[str, object], key: str, usual: Mapping[str, str]) -> str:
    """The text of the special token ``key``."""
    given = config.get(key, usual.get(key))
    found = given.get("content") if isinstance(given, dict) else given
    return found if isinstance(found, str) else ""


def _unsupported(file: Path, reason: str) -> NoReturn:
    fail(
        "tokenizer-unsupported",
        f"the tokenizer of '{file}' {reason}",
        help="save it with a tokenizer.json, as newer tools do, or give the prompt as token ids",
    )


def _invalid(file: Path, reason: str) -> NoReturn:
    fail(
        "tokenizer-invalid",
        f"'{file}' is not valid: {reason}",
        help="get the file again",
    )

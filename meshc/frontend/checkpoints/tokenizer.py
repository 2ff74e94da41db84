"""From text to token ids and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from meshc.frontend.checkpoints.bounded_files import list_directory, read_bounded
from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.gguf.parts import first_of_parts, read_gguf_header
from meshc.frontend.checkpoints.gguf.vocabulary import has_gguf_vocabulary, read_gguf_vocabulary
from meshc.frontend.checkpoints.model_config import ModelConfig
from meshc.frontend.checkpoints.tokenizing.declared_tokens import (
    read_declared,
    read_tokenizer_config,
)
from meshc.frontend.checkpoints.tokenizing.of_class import (
    as_its_class,
    class_of_json,
    parsed,
    tokens_of_class,
)
from meshc.frontend.checkpoints.tokenizing.of_files import (
    MERGES,
    USUAL,
    VOCABULARY,
    class_of,
    json_of_files,
)
from meshc.frontend.checkpoints.tokenizing.of_sentencepiece import (
    MODEL,
    class_of_model,
    json_of_model,
)
from meshc.frontend.checkpoints.tokenizing.of_sentencepiece import USUAL as OF_MODELS
from meshc.frontend.checkpoints.tokenizing.of_vocabulary import json_of_vocabulary
from meshc.frontend.checkpoints.tokenizing.process import Opening, TokenizerProcess
from meshc.support.diagnostics import fail

_SPACES = (
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
)
TOKENIZER_LIMIT_BYTES = 64 << 20
_MOST_BEYOND = 256
"""Tokens may be added to a tokenizer alone, and then no prompt can use them; one with more than so
many that the model does not have belongs to another model."""


class Tokenizer(Protocol):
    """Text to token ids and back, for one model.

    All of it is done by a process with limits: a text that is too much for the tokenizer is
    ``tokenizer-costly``, one that it fails on ``tokenizer-failed``. From any thread, one call at a
    time.
    """

    @property
    def bos_id(self) -> int | None:
        """The id that starts a text, when the model has one."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text."""

    def encode(self, text: str, room: int | None = None) -> list[int]:
        """The ids of ``text``, with bos in front where the model wants it.

        Raises ``prompt-not-text``, ``tokenizer-mismatch`` for a token that the model does not have,
        and ``prompt-too-long``, after the beginning of it, for a text that has at least twice as
        many tokens as there is ``room`` for.
        """

    def encode_rendered(self, text: str, room: int | None = None) -> list[int]:
        """The ids of ``text``, which says itself where bos and other control tokens stand. Raises
        what :meth:`encode` does."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` without control tokens."""

    def continuation(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """What ``ids`` add to the text of ``prompt``, leading space included."""

    def control_text(self, token: int) -> str:
        """The text of a control token, empty for any other."""

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of ``ids`` by itself, as it stands behind other ones; a part of a
        character is U+FFFD."""

    def described(self) -> str:
        """The tokenizer with all added tokens, in the JSON of the ``tokenizers`` package."""


@dataclass(frozen=True)
class _Tokenizer:
    """The tokenizer in ``process``, which lies at ``label``. ``prefix`` ids start every text, and
    ids are below ``vocab``."""

    process: TokenizerProcess
    label: str
    prefix: tuple[int, ...]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    vocab: int

    def encode(self, text: str, room: int | None = None) -> list[int]:
        return [*self.prefix, *self._ids(text, True, room)]

    def encode_rendered(self, text: str, room: int | None = None) -> list[int]:
        return self._ids(text, False, room)

    def _ids(self, text: str, around: bool, room: int | None) -> list[int]:
        _check_unicode(text)
        ids = self.process.encode(text, around, room)
        largest = max(ids, default=-1)
        if largest >= self.vocab:
            self.mismatch(f"makes the token {largest} of the prompt")
        return ids

    def mismatch(self, what: str) -> NoReturn:
        """Raise ``tokenizer-mismatch``."""
        fail(
            "tokenizer-mismatch",
            f"'{self.label}' {what}, and the model has only {self.vocab} tokens",
            help="the tokenizer belongs to another model, or tokens were added to it alone",
        )

    def decode(self, ids: Sequence[int]) -> str:
        (text,) = self.process.decode([ids])
        return text

    def continuation(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        # Some decoders drop the space in front of the first token, so ids alone would lose it.
        before, whole = self.process.decode([prompt, [*prompt, *ids]])
        return whole[len(before) :] if whole.startswith(before) else self.decode(ids)

    def control_text(self, token: int) -> str:
        return self.process.special.get(token, "")

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        # Some decoders drop the space in front of a text, so each stands behind itself.
        lists = [[token] * times for token in ids for times in (1, 2)]
        texts = self.process.decode(lists) if lists else []
        pairs = zip(ids, texts[::2], texts[1::2], strict=True)
        return [
            self.control_text(token) or (twice[len(once) :] if twice.startswith(once) else once)
            for token, once, twice in pairs
        ]

    def described(self) -> str:
        return self.process.described()


def _check_unicode(text: str) -> None:
    """Raise ``prompt-not-text`` for a text that is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        fail(
            "prompt-not-text",
            f"character {error.start} of the prompt is not valid Unicode",
            help="give the prompt as UTF-8 text",
        )


def load_tokenizer(path: str | Path, config: ModelConfig) -> Tokenizer:
    """The tokenizer at ``path``, checked against the vocabulary of ``config``.

    ``path`` is a GGUF file, a ``tokenizer.json``, a directory with one of these, or any file
    beside a ``tokenizer.json``; in its place there may be a ``vocab.json`` and a ``merges.txt``, or
    a ``tokenizer.model``.
    Errors: ``tokenizer-not-found``, ``tokenizer-invalid``, ``tokenizer-unsupported``,
    ``tokenizer-mismatch``, ``tokenizer-costly``, ``json-invalid``, ``gguf-invalid``,
    ``checkpoint-unreadable``, ``missing-extra``.
    """
    file = tokenizer_file(Path(path))
    opening, prefix = _from_gguf(file) if file.suffix.lower() == ".gguf" else (_from_json(file), ())
    process = TokenizerProcess(opening, str(file))
    for number, facts in opening.declared:
        _check_declared(file, process, str(facts["content"]), number)
    ids = config.bos_id, config.eos_ids
    tokenizer = _Tokenizer(process, str(file), prefix, *ids, config.vocab)
    if process.largest - config.vocab >= _MOST_BEYOND:
        tokenizer.mismatch(f"has a token of id {process.largest}")
    tokenizer.encode("")  # what it puts around every text
    return tokenizer


def has_vocabulary(path: Path) -> bool:
    """Whether there is a tokenizer at ``path``, as :func:`load_tokenizer` looks for it: beside a
    file of weights, or in a GGUF file that says which kind it has. Errors: ``gguf-invalid``,
    ``checkpoint-unreadable``."""
    if path.suffix.lower() == ".gguf":
        return has_gguf_vocabulary(read_gguf_header(path))
    folder = path if os.path.isdir(path) else path.parent
    names = ("tokenizer.json", MODEL)
    return any(os.path.isfile(folder / name) for name in names) or _has_two_files(folder)


def _has_two_files(folder: Path) -> bool:
    """Whether there is a tokenizer that is spelled as a vocabulary and its merges."""
    return all(os.path.isfile(folder / name) for name in (VOCABULARY, MERGES))


def tokenizer_file(path: Path) -> Path:
    """The file with the tokenizer at ``path``, as :func:`load_tokenizer` looks for it. Errors:
    ``tokenizer-not-found``, ``checkpoint-unreadable``."""
    if path.suffix.lower() == ".gguf" or path.name == "tokenizer.json":
        return path
    folder = path if os.path.isdir(path) else path.parent
    if os.path.isfile(folder / "tokenizer.json"):
        return folder / "tokenizer.json"
    if _has_two_files(folder):
        return folder / VOCABULARY
    if os.path.isfile(folder / MODEL):
        return folder / MODEL
    if os.path.isdir(folder):
        files = [file for file in list_directory(folder) if file.suffix.lower() == ".gguf"]
        one = files[0] if len(files) == 1 else first_of_parts(files)
        if one is not None:
            return one
    fail(
        "tokenizer-not-found",
        f"there is no tokenizer at '{path}'",
        help="a tokenizer.json, a vocab.json with a merges.txt, a tokenizer.model or a .gguf file "
        "is looked for; or give the prompt as token ids",
    )


def _from_gguf(file: Path) -> tuple[Opening, tuple[int, ...]]:
    """The tokenizer in a GGUF file, and the ids in front of every text."""
    vocabulary = read_gguf_vocabulary(read_gguf_header(file))
    bos = vocabulary.bos_id
    prefix = (bos,) if vocabulary.add_bos and bos is not None else ()
    return Opening(json_of_vocabulary(vocabulary, str(file))), prefix


def _from_json(file: Path) -> Opening:
    """The tokenizer in a ``tokenizer.json``, in a vocabulary and its merges, or in a model of
    SentencePiece, with the tokens that files beside it declare."""
    if file.name == VOCABULARY:
        return _from_two_files(file)
    if file.name == MODEL:
        return _from_model(file)
    raw = read_bounded(file, TOKENIZER_LIMIT_BYTES, "tokenizer")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fail(
            "tokenizer-invalid",
            f"'{file}' is not valid: byte {error.start} is not UTF-8",
            help="get the file again",
        )
    found, config = read_declared(file.parent), read_tokenizer_config(file.parent)
    name = class_of_json(text, file, config)
    named, last = found.named, list[Mapping[str, object]]()
    if name is not None:
        text = as_its_class(text, file, name, config)
        named, last = tokens_of_class(name, config, found)
    _check_spaces(file, text, config)
    tokens = tuple(found.by_id.items()), tuple(named.values()), found.further
    return Opening(text, *tokens, found.own_first, last)


def _check_spaces(file: Path, text: str, config: Mapping[str, object]) -> None:
    """Fail with ``tokenizer-unsupported`` where transformers takes spaces out of texts that the
    tokenizer ``text`` has put together."""
    asked = [key for key in _SPACES if config.get(key)]
    model = (parsed(text) or {}).get("model")
    pairs = isinstance(model, dict) and model.get("type", "BPE") == "BPE"
    if asked and (not pairs or asked != list(_SPACES[:1])):
        fail(
            "tokenizer-unsupported",
            f"the files beside '{file}' ask for '{asked[-1]}', which takes spaces out of texts",
            help="set it to false",
        )


def _from_two_files(file: Path) -> Opening:
    """The tokenizer of a vocabulary and its merges, with the special tokens of its class."""
    config = read_tokenizer_config(file.parent)
    return _opening(file, json_of_files(file, config), USUAL[class_of(config, file)], config)


def _from_model(file: Path) -> Opening:
    """The tokenizer in a model of SentencePiece, with the special tokens of its class."""
    config = read_tokenizer_config(file.parent)
    text, pieces = json_of_model(file, config)
    return _opening(file, text, OF_MODELS[class_of_model(config, file)], config, pieces)


def _opening(
    file: Path,
    text: str,
    usual: Mapping[str, str],
    config: Mapping[str, object],
    pieces: Sequence[Mapping[str, object]] = (),
) -> Opening:
    """The tokenizer ``text`` with tokens that files beside it declare, ``usual`` ones that they are
    silent about, and special ``pieces`` of its own."""
    found = read_declared(file.parent)
    absent = {name: token for name, token in usual.items() if name not in config}
    named = [*found.named.values(), *({"content": t, "special": True} for t in absent.values())]
    further = [*pieces, *found.further]
    return Opening(text, tuple(found.by_id.items()), named, further, found.own_first)


def _check_declared(file: Path, process: TokenizerProcess, text: str, number: int) -> None:
    """Raise ``tokenizer-mismatch`` for a token that has another id than it is declared with."""
    found = process.ids.get(text)
    if found != number:
        fail(
            "tokenizer-mismatch",
            f"a file beside '{file}' says that {brief(text)} is token {number}, and for the "
            f"tokenizer it is {found}",
            help="the files belong to different models, or one of them was edited",
        )

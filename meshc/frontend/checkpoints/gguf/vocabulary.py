"""The vocabulary inside a GGUF file, checked and without any tokenizer library.

Source: the ``tokenizer.ggml`` keys of the GGUF specification; defaults of absent keys are those
of llama.cpp's vocabulary loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.gguf.cuts import starts_with_bos
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader
from meshc.frontend.checkpoints.gguf.known_tokens import (
    PREFIX,
    TYPE_NORMAL,
    known_tokens,
    token_id,
)
from meshc.support.diagnostics import fail

_KINDS: tuple[Literal["gpt2", "llama"], ...] = ("gpt2", "llama")
_NO_KINDS = ("none", "no_vocab")
"""What llama.cpp takes for a file without a vocabulary, whose prompts are token ids."""
_MAX_TOKENS = 1 << 19
# Longest piece of an SPM vocabulary; sentencepiece trains with 16 unless told.
_MAX_PIECE = 128


@dataclass(frozen=True)
class GgufVocabulary:
    """Tokens by id. ``kind`` gpt2 is byte-level BPE, llama is sentencepiece BPE with scores; white
    space behind tokens in ``swallowing`` is no part of a text."""

    kind: Literal["gpt2", "llama"]
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[tuple[str, str], ...]
    unknown_id: int | None
    bos_id: int | None
    add_bos: bool
    add_space_prefix: bool
    swallowing: frozenset[int]


def has_gguf_vocabulary(header: GgufHeader) -> bool:
    """Whether the file has a vocabulary of any kind; some say that they have none."""
    return header.metadata.get(f"{PREFIX}model", _NO_KINDS[0]) not in _NO_KINDS


def read_gguf_vocabulary(header: GgufHeader) -> GgufVocabulary:
    """The vocabulary in ``header``. Errors: ``tokenizer-invalid``, ``tokenizer-unsupported``."""
    return _Reader(header).vocabulary()


class _Reader:
    def __init__(self, header: GgufHeader) -> None:
        self.header = header

    def vocabulary(self) -> GgufVocabulary:
        kind = self.kind()
        tokens = self.strings("tokens")
        if not 0 < len(tokens) <= _MAX_TOKENS:
            self.invalid(f"it has {len(tokens)} tokens")
        if len(set(tokens)) != len(tokens):
            self.invalid("a token is listed twice")
        for key, word in (("add_eos_token", "an end token"), ("add_sep_token", "a separator")):
            if self.flag(key, False):
                self.unsupported(f"ends every prompt with {word} ({key})")
        pre = self.text("pre", "default") if kind == "gpt2" else ""
        types = self.types(len(tokens))
        if kind == "llama":
            self.check_pieces(tokens)
        known = known_tokens(self.header.metadata, tokens, types)
        bos = self.token_id("bos", len(tokens))
        # llama.cpp: sentencepiece and some other vocabularies start with bos unless told.
        add_bos = self.flag("add_bos_token", kind == "llama" or starts_with_bos(pre))
        if add_bos and bos is None:
            self.invalid("it starts every text with a token that it does not name (bos_token_id)")
        return GgufVocabulary(
            kind=kind,
            pre=pre,
            tokens=tokens,
            types=known.types,
            scores=self.scores(len(tokens)) if kind == "llama" else (),
            merges=self.merges(set(tokens)) if kind == "gpt2" else (),
            unknown_id=self.token_id("unknown", len(tokens)),
            bos_id=bos,
            add_bos=add_bos,
            add_space_prefix=self.flag("add_space_prefix", kind == "llama"),
            swallowing=known.swallowing,
        )

    def kind(self) -> Literal["gpt2", "llama"]:
        given = self.header.metadata.get(f"{PREFIX}model")
        if not has_gguf_vocabulary(self.header):
            fail(
                "tokenizer-not-found",
                f"'{self.header.path}' holds no tokenizer",
                help="give the prompt as token ids",
            )
        for kind in _KINDS:
            if isinstance(given, str) and given == kind:
                return kind
        self.unsupported(f"has a vocabulary of kind {brief(given)} ({', '.join(_KINDS)} are read)")

    def types(self, count: int) -> tuple[int, ...]:
        found = self.numbers("token_type", "iu")
        if found is None:
            return (TYPE_NORMAL,) * count
        if len(found) != count or not all(1 <= kind <= 6 for kind in found):
            self.invalid("'token_type' does not give one known type per token")
        return tuple(int(kind) for kind in found)

    def scores(self, count: int) -> tuple[float, ...]:
        found = self.numbers("scores", "f")
        if found is None or len(found) != count or not np.isfinite(found).all():
            self.invalid("'scores' does not give one finite number per token")
        return tuple(float(score) for score in found)

    def merges(self, tokens: set[str]) -> tuple[tuple[str, str], ...]:
        pairs = []
        for line in self.strings("merges"):
            # A part may hold no space; byte-level BPE writes one as another character.
            left, _, right = line.partition(" ")
            if left not in tokens or right not in tokens or left + right not in tokens:
                self.invalid(f"merge {brief(line)} does not join two tokens to a third")
            pairs.append((left, right))
        return tuple(pairs)

    def check_pieces(self, tokens: tuple[str, ...]) -> None:
        for token in tokens:
            if len(token) > _MAX_PIECE:
                self.invalid(f"a token has {len(token)} characters")

    def strings(self, key: str) -> tuple[str, ...]:
        value = self.header.metadata.get(PREFIX + key)
        if not isinstance(value, list):
            self.invalid(f"'{key}' is not a list of strings")
        return tuple(value)

    def numbers(self, key: str, kinds: str) -> np.ndarray | None:
        value = self.header.metadata.get(PREFIX + key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            self.invalid(f"'{key}' is not a list of numbers of the right kind")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.header.metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            self.invalid(f"'{key}' is {brief(value)}, not true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.header.metadata.get(PREFIX + key, default)
        if not isinstance(value, str):
            self.invalid(f"'{key}' is {brief(value)}, not a string")
        return value

    def token_id(self, key: str, count: int) -> int | None:
        value = self.header.metadata.get(f"{PREFIX}{key}_token_id")
        if value is None:
            usual = token_id(self.header.metadata, key)
            return usual if usual is not None and usual < count else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            self.invalid(f"'{key}_token_id' is {brief(value)}, not the id of a token")
        return value

    def invalid(self, reason: str) -> NoReturn:
        fail(
            "tokenizer-invalid",
            f"the vocabulary in '{self.header.path}' is not valid: {reason}",
            help="get the file again",
        )

    def unsupported(self, reason: str) -> NoReturn:
        fail(
            "tokenizer-unsupported",
            f"'{self.header.path}' {reason}",
            help="give the prompt as token ids, or use the Hugging Face form of the checkpoint",
        )

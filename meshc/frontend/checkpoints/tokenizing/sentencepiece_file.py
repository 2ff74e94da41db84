"""What a SentencePiece model file says, as far as tokenizers of language models need it.

Such a file is one message of protocol buffers. Its wire format is read here: a field is a number
and a length-delimited, varint or fixed value, and fields that are not needed are passed over.
Source: ``sentencepiece_model.proto`` of SentencePiece (``ModelProto``, ``TrainerSpec`` and
``NormalizerSpec``), whose defaults stand for fields that are absent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Kinds of pieces."""
UNIGRAM, BPE = 1, 2
"""Kinds of models."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_Value = int | bytes


@dataclass(frozen=True)
class Piece:
    """A token: its text, its score, and its kind."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The pieces by their ids, that of the ``unknown`` one, the kind of model, and how texts are
    normalized before they are cut: by a table (``has_table``), without spaces behind others
    (``strips``), with a space in front (``prefixes``), which is a character of its own
    (``escapes``), or behind words (``suffixes``). Characters that are no piece become bytes if it
    ``falls_back``."""

    pieces: tuple[Piece, ...]
    unknown: int
    kind: int
    falls_back: bool
    suffixes: bool
    has_table: bool
    prefixes: bool
    strips: bool
    escapes: bool


def read_model(data: bytes) -> SentencePieceModel:
    """The model in ``data``. Raises ValueError where it is none."""
    whole = _fields(data)
    pieces, trainers, normalizers = (
        [_bytes(value) for number, value in whole if number == wanted] for wanted in (1, 2, 3)
    )
    # A message that is there twice is one with the fields of both.
    trainer, normalizer = (dict(_fields(b"".join(parts))) for parts in (trainers, normalizers))
    return SentencePieceModel(
        tuple(map(_piece, pieces)),
        _number(trainer.get(40, 0)),
        _number(trainer.get(3, UNIGRAM)),
        bool(_number(trainer.get(35, 0))),
        bool(_number(trainer.get(24, 0))),
        bool(_bytes(normalizer.get(2, b""))),
        bool(_number(normalizer.get(3, 1))),
        bool(_number(normalizer.get(4, 1))),
        bool(_number(normalizer.get(5, 1))),
    )


def _piece(data: bytes) -> Piece:
    found = dict(_fields(data))
    score = _bytes(found.get(2, bytes(4)))
    if len(score) != 4:
        raise ValueError("a score has another size than 4 bytes")
    kind = _number(found.get(3, NORMAL))
    if kind not in range(NORMAL, BYTE + 1):
        raise ValueError(f"a piece is of the kind {kind}")
    return Piece(_bytes(found.get(1, b"")).decode("utf-8"), struct.unpack("<f", score)[0], kind)


def _fields(data: bytes) -> list[tuple[int, _Value]]:
    """The fields of a message by their numbers, the bytes of those that are no varint."""
    return list(_each_field(data))


def _each_field(data: bytes) -> Iterator[tuple[int, _Value]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {_EIGHT: 8, _FOUR: 4}.get(kind, -1)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if not number or size < 0 or at + size > len(data):
            raise ValueError(f"byte {at} begins no field")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number of seven bits a byte at ``at``, the lowest first, and where it ends."""
    found = 0
    for place in range(10):
        if at + place >= len(data):
            break
        found |= (data[at + place] & 0x7F) << 7 * place
        if data[at + place] < 0x80:
            return found, at + place + 1
    raise ValueError(f"byte {at} begins no number")


def _bytes(value: _Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a text is wanted")
    return value


def _number(value: _Value) -> int:
    if isinstance(value, bytes):
        raise ValueError("a text stands where a number is wanted")
    return value

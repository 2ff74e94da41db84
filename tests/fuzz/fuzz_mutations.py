"""Damage to texts, JSON values and bytes: pure functions of a random generator."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

_WORD = re.compile(r'"[^"\n]*"|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\w+|\s+|->|[^\w\s]')
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = (
    "0", "1", "2", "3", "5", "7", "16", "-1", "028", "255", "256", "4096", "65535", "65536",
    "2147483648", "4294967295", "9223372036854775807", "18446744073709551616", "0.5", "1e308",
    "1e-308", "inf", "nan", "9" * 40, "9" * 5000, "1e999", "0x10", "true",
)  # fmt: skip
_PIECES = (
    "", " ", "\n", "\t", "\0", '"', "'", "\\", "{", "}", "(", ")", "[", "]", "<", ">", "%", "@",
    "=", ",", ";", ":", "#", "//", "-", "+", "é", "\u202e", "\U0001f600", "a" * 300, "[" * 200,
    "(" * 2000, "{" * 2000, "true", "null", "..", "->",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**64, 10**40, 0.0, 0.5, -1.5, 1e308,
    float("inf"), float("nan"), "", "x", "é" * 90, "../../etc/passwd", "a" * 5000, [], {}, [[]],
    [0], [-1], ["x"], {"a": 1}, [1] * 300,
)  # fmt: skip
_BYTES = (
    b"", b"\0", b"\xff", b"\xff" * 8, b"\x7f", b"\0" * 8, b"\x01" + b"\0" * 7, b"{", b"[" * 300,
    b'"', b"-", b"9" * 40, b"\xff\xff\xff\xff\xff\xff\xff\x7f",
)  # fmt: skip


def damaged_text(random: Random, text: str, others: Sequence[str]) -> str:
    """``text`` with a few words, numbers or lines changed; pieces may come from ``others``."""
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 6))):
        text = random.choice(_EDITS)(random, text, others)
    return text


def damaged_bytes(random: Random, data: bytes, head: int) -> bytes:
    """``data`` with a few pieces replaced, inserted or cut, mostly in its first ``head`` bytes."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        limit = min(head, len(found)) if random.random() < 0.9 else len(found)
        at = random.randrange(limit + 1)
        piece = random.choice((*_BYTES, random.randbytes(random.randint(1, 9))))
        match random.randrange(5):
            case 0:
                found[at : at + len(piece)] = piece
            case 1:
                found[at:at] = piece
            case 2:
                del found[at : at + random.choice((1, 2, 4, 8, 100))]
            case 3:
                del found[at:]
            case 4 if at < len(found):
                found[at] ^= 1 << random.randrange(8)
    return bytes(found)


def damaged_json(random: Random, text: str) -> str:
    """A JSON text with a value, a key or its form changed."""
    if random.random() < 0.2:
        return damaged_text(random, text, [])
    value = json.loads(text)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed(random, value)
    return json.dumps(value)


def _changed(random: Random, value: Any) -> Any:
    """``value`` with one change somewhere inside."""
    if isinstance(value, dict) and value and random.random() < 0.95:
        key = random.choice(list(value))
        match random.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, random.choice(("x", "", key + "_", "size")): value[key]}
            case _:
                return {**value, key: _changed(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        match random.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], _changed(random, value[at]), *value[at + 1 :]]
    return random.choice(_VALUES)


# --- edits of texts


def _word(random: Random, text: str, others: Sequence[str]) -> str:
    words = _WORD.findall(text) or [""]
    at, other = random.randrange(len(words)), random.randrange(len(words))
    match random.randrange(6):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[other])
        case 2:
            words[at], words[other] = words[other], words[at]
        case 3:
            words[at] = words[other]
        case 4:
            words[at] = random.choice(_PIECES)
        case 5:
            words.insert(at, random.choice(_PIECES))
    return "".join(words)


def _number(random: Random, text: str, others: Sequence[str]) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return _word(random, text, others)
    place = random.choice(found)
    near = (
        str(int(place[0]) + random.choice((-1, 1)))
        if re.fullmatch("[0-9]{1,17}", place[0])
        else "1"
    )
    return text[: place.start()] + random.choice((*_NUMBERS, near, near)) + text[place.end() :]


def _name(random: Random, text: str, others: Sequence[str]) -> str:
    """One name becomes another of the text, at one place or everywhere."""
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", text)))
    if len(names) < 2:
        return _word(random, text, others)
    old, new = random.sample(names, 2)
    return re.sub(rf"\b{old}\b", new, text, count=random.choice((0, 1, 1)))


def _line(random: Random, text: str, others: Sequence[str]) -> str:
    lines = text.split("\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at:at] = [lines[other]] * random.choice((2, 50))
        case 4 if others:
            lines.insert(at, random.choice(random.choice(others).split("\n")))
    return "\n".join(lines)


def _cut(random: Random, text: str, others: Sequence[str]) -> str:
    at = random.randrange(len(text) + 1)
    return random.choice((text[:at], text[:at] + text[at + random.randint(1, 40) :]))


def _spliced(random: Random, text: str, others: Sequence[str]) -> str:
    if not others:
        return _cut(random, text, others)
    other = random.choice(others)
    return text[: random.randrange(len(text) + 1)] + other[random.randrange(len(other) + 1) :]


_EDITS = (_word, _word, _word, _number, _number, _number, _name, _name, _line, _line, _cut,
          _spliced)  # fmt: skip

"""GGUF files that a large model is split into: the first has the metadata, each has tensors of its
own.

Source: ``llama_split_path`` and the loader of llama.cpp (2026), which opens such a set by its first
file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.gguf.file_header import GgufHeader, GgufTensor, read_header_of_file
from meshc.support.diagnostics import fail

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_MOST_PARTS = 1 << 12


def read_gguf_header(path: str | Path) -> GgufHeader:
    """The header of the GGUF file ``path`` or, if that is the first part of a model, of all parts
    together.

    Errors: ``checkpoint-unreadable``, ``gguf-invalid``, ``config-unsupported`` for another part.
    """
    file = Path(path)
    first = read_header_of_file(file)
    count = _number(first, _COUNT, 1)
    if count <= 1:
        return first
    number = _number(first, _NUMBER, 0)
    if number:
        fail(
            "config-unsupported",
            f"'{file}' is part {number + 1} of {count} of a split GGUF file, which has no metadata",
            help=f"name the first part, '{_part(file, 1, count)}'",
        )
    tensors = dict(first.tensors)
    for later in range(2, count + 1):
        _add(tensors, read_header_of_file(_part(file, later, count)), later, count)
    wanted = first.metadata.get(_TENSORS)
    if wanted is not None and wanted != len(tensors):
        _invalid(first, f"'{_TENSORS}' is {brief(wanted)}, and its parts have {len(tensors)}")
    return replace(first, tensors=tensors)


def first_of_parts(files: Sequence[Path]) -> Path | None:
    """The first part, where ``files`` are those of one split model and nothing else."""
    found = [_NAME.fullmatch(file.name) for file in files]
    names = {(one["stem"], one["count"]) for one in found if one}
    if len(names) != 1 or not all(found):
        return None
    return next(
        (f for f, one in zip(files, found, strict=True) if one and int(one["number"]) == 1), None
    )


def _add(tensors: dict[str, GgufTensor], part: GgufHeader, number: int, count: int) -> None:
    """Add the tensors of a later part."""
    if (_number(part, _NUMBER, -1), _number(part, _COUNT, -1)) != (number - 1, count):
        _invalid(part, f"it is not part {number} of {count}, as its name says")
    twice = sorted(tensors.keys() & part.tensors.keys())
    if twice:
        _invalid(part, f"tensor '{twice[0]}' is in another part as well")
    tensors.update(part.tensors)


def _part(file: Path, number: int, count: int) -> Path:
    """Where part ``number``, the first being 1, of ``count`` lies, of which ``file`` is one."""
    name = _NAME.fullmatch(file.name)
    if name is None or int(name["count"]) != count:
        fail(
            "gguf-invalid",
            f"'{file}' is one of {count} parts of a model, and its name does not say which",
            help=f"parts are named as in 'model-00001-of-{count:05}.gguf'; give them their names",
        )
    return file.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf")


def _number(header: GgufHeader, key: str, absent: int) -> int:
    value = header.metadata.get(key, absent)
    if not isinstance(value, int) or isinstance(value, bool) or not value <= _MOST_PARTS:
        _invalid(header, f"'{key}' is {brief(value)}")
    return value


def _invalid(header: GgufHeader, reason: str) -> NoReturn:
    fail(
        "gguf-invalid",
        f"'{header.path}' is not a valid part of a GGUF file: {reason}",
        help="get all parts again",
    )

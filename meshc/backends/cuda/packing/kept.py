"""Packed weights in a file, which the next run maps into memory.

All weights of a program, or of one of its ranks, stand in it in the order of the manifest, each at
the next multiple of 4096 bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.packing.pieces import Piece, at_once, packed, pieces_of
from meshc.backends.cuda.program import FORMAT, StepProgram, Weight
from meshc.ir.stored import StoredWeights
from meshc.support.files import error_words
from meshc.support.large_files import PAGE_BYTES, mapped
from meshc.version import VERSION

Array = NDArray[Any]
Words = NDArray[np.uint16]
LEAST_BYTES = 64 << 20
"""Fewer are packed sooner than it matters."""
_MOST_BYTES = 64 << 30
"""Bytes of all files in a folder, unless one program has more."""


@dataclass(frozen=True)
class Keeping:
    """The ``folder`` in which packed weights are kept, and who is told why they cannot be."""

    folder: Path
    tell: Callable[[str], None]


def all_packed(
    program: StepProgram, tensors: Mapping[str, Array], keeping: Keeping | None = None
) -> Iterator[tuple[str, Words]]:
    """Each weight of ``program`` by name, packed from ``tensors``, those of one of its ranks if it
    has some. ``keeping`` has files of weights that were packed before; new ones are added to it.
    Raises what :func:`packed` does."""
    file = None if keeping is None else _file(program, tensors, keeping)
    places, _ = places_in_file(program.weights)
    for name, weight in program.weights.items():
        yield name, packed(weight, tensors) if file is None else _part(file, places[name], weight)


def _file(
    program: StepProgram, tensors: Mapping[str, Array], keeping: Keeping
) -> NDArray[np.uint8] | None:
    """The file of all weights; None where there is none and none can be made, or need be."""
    _, size = places_in_file(program.weights)
    stamp = tensors.stamp() if isinstance(tensors, StoredWeights) else None
    if stamp is None or size < LEAST_BYTES:
        return None
    said = json.dumps([VERSION, FORMAT, stamp, [asdict(w) for w in program.weights.values()]])
    key = hashlib.sha256(said.encode()).hexdigest()[:32]
    ranks = 1 if program.ranks is None else program.ranks.count

    def write(opened: int) -> None:
        write_packed(opened, program.weights, tensors)
        if isinstance(tensors, StoredWeights) and tensors.stamp() != stamp:
            raise OSError(errno.EBUSY, "their files were changed meanwhile")

    try:
        return mapped(keeping.folder, key, size, write, max(_MOST_BYTES, ranks * size))
    except OSError as problem:
        keeping.tell(
            f"packed weights cannot be kept in '{keeping.folder}': {error_words(problem)}; they "
            "are packed for this run alone"
        )
        return None


def write_packed(opened: int, weights: Mapping[str, Weight], tensors: Mapping[str, Array]) -> None:
    """Pack all ``weights`` and write them to an open file of their size. Raises OSError, and what
    :func:`packed` does."""
    places, _ = places_in_file(weights)
    for name, weight in weights.items():
        at_once(pieces_of(weight, tensors), partial(_write, opened, places[name]))


def _write(opened: int, place: int, piece: Piece) -> None:
    """Pack ``piece`` and write it to the file, in which its weight begins at ``place``."""
    words = np.zeros(piece.count, np.uint16)
    piece.fill(words)
    left, at = words.data.cast("B"), place + words.itemsize * piece.first
    while left:
        done = os.pwrite(opened, left, at)
        left, at = left[done:], at + done


def places_in_file(weights: Mapping[str, Weight]) -> tuple[dict[str, int], int]:
    """Where each of the packed weights begins in a file of all, and how many bytes that has."""
    places, size = {}, 0
    for name, weight in weights.items():
        places[name] = size
        size += -(-weight.bytes // PAGE_BYTES) * PAGE_BYTES
    return places, size


def _part(file: NDArray[np.uint8], place: int, weight: Weight) -> Words:
    layers = (weight.layers,) if weight.layers else ()
    return file[place : place + weight.bytes].view(np.uint16).reshape(*layers, *weight.shape)

"""Weights are packed piece by piece, several at a time: one that a processor's cache holds each."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.packing.codes import CodedRows, coded_rows
from meshc.backends.cuda.packing.element_words import WORDS, are_words, copied, words
from meshc.backends.cuda.packing.fragments import SIDE, fragments_at, fragments_of
from meshc.backends.cuda.packing.matrix_rows import Rows, matrices_of
from meshc.backends.cuda.packing.scaled import ScaledRows, scaled_rows
from meshc.backends.cuda.program import Weight
from meshc.ir.stored import Layered, Scaled, stored
from meshc.support.diagnostics import fail

Array = NDArray[Any]
Words = NDArray[np.uint16]
_PIECE_WORDS = 1 << 19
_WAITING = 4
"""Pieces that wait for each thread, so that what they are made of is not read all at once."""


@dataclass(frozen=True)
class Piece:
    """``count`` words of a packed weight, from ``first`` on, which are rows of a matrix."""

    first: int
    count: int
    weight: Weight
    rows: Rows | CodedRows | ScaledRows

    def fill(self, target: Words) -> None:
        """Pack them into ``target``, ``[count]``. Raises ``quantised-weights-invalid``."""
        rows = self.rows
        if isinstance(rows, CodedRows):
            rows.fill(target)
        elif isinstance(rows, ScaledRows):
            rows.fill(self.weight.dtype, target)
        elif not self.weight.fragments:
            _fill(rows, self.weight.dtype, target.reshape(len(rows), -1))
        elif not self._fill_at_once(rows, target):
            slab = np.zeros((len(rows), self.count // len(rows)), np.uint16)
            _fill(rows, self.weight.dtype, slab[:, : rows.width])
            fragments_of(slab, target)

    def _fill_at_once(self, rows: Rows, target: Words) -> bool:
        """The same where all rows are words, or floats, of one type, and whole blocks wide."""
        first = rows.matrices[0]
        wide = first.dtype == np.float32
        zeros = np.zeros(rows.width, first.dtype)
        at = rows.addresses(zeros)
        if at is None or not (wide or are_words(first)) or rows.width % SIDE:
            return False
        asked = "" if first.dtype == WORDS[self.weight.dtype] else self.weight.dtype
        asked += " of f32" if wide else ""
        return fragments_at(at, rows.width, target, asked)


def _fill(rows: Rows, dtype: str, target: Words) -> None:
    """Write ``rows`` as words of ``dtype`` to ``target``, which holds zeros."""
    for number, matrix in enumerate(rows.matrices):
        (here,) = np.nonzero(rows.of == number)
        if not len(here):
            continue
        taken, place = matrix[_index(rows.at[here])], _index(here)
        if taken.strides[0] < taken.strides[1]:  # what lies side by side is read at once
            source = words(np.ascontiguousarray(taken.T), dtype).T
        else:
            source = words(taken, dtype)
        if isinstance(place, slice):
            copied(source, target[place])
        else:
            target[place] = source


def _index(places: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """What takes these ``places``: without a copy where they are evenly spaced and rise."""
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    if step > 0 and (np.diff(places) == step).all():
        return slice(int(places[0]), int(places[-1]) + 1, step)
    return places


def pieces_of(weight: Weight, tensors: Mapping[str, Array]) -> Iterator[Piece]:
    """All of ``weight``, layer after layer, each of which is read when it is its turn.

    Raises KeyError for a tensor that is missing, and ``weights-shape-mismatch``.
    """
    sources = [stored(tensors, name) for name in weight.sources]
    for name, tensor, shape in zip(weight.sources, sources, weight.source_shapes, strict=True):
        if tuple(tensor.shape) != shape:
            text = f"weight '{name}' has shape {list(tensor.shape)}; the program needs"
            fail("weights-shape-mismatch", f"{text} {list(shape)}")
    first = 0
    for layer in range(max(weight.layers, 1)):
        of_layer = _of_layer(sources, layer if weight.layers else None)
        if weight.codes:
            for whole in coded_rows(weight, [np.asarray(each) for each in of_layer]):
                for coded in whole.parts(_PIECE_WORDS):
                    yield Piece(first, coded.words, weight, coded)
                    first += coded.words
            continue
        for rows in _matrices(weight, of_layer):
            width = -(-rows.width // SIDE) * SIDE if weight.fragments else rows.width
            step = max(1, _PIECE_WORDS // (SIDE * width)) * SIDE
            for at in range(0, len(rows), step):
                part = rows.part(at, step)
                yield Piece(first, len(part) * width, weight, part)
                first += len(part) * width


def _of_layer(sources: Sequence[Layered | Scaled], layer: int | None) -> list[Array | Scaled]:
    found = [s if layer is None or isinstance(s, Scaled) else s[layer] for s in sources]
    return [each if isinstance(each, Scaled) else np.asarray(each) for each in found]


def _matrices(weight: Weight, sources: Sequence[Array | Scaled]) -> Iterator[Rows | ScaledRows]:
    """As :func:`matrices_of`; codes with scales as they are, where their rows stay whole."""
    scaled = [source for source in sources if isinstance(source, Scaled)]
    if weight.fragments and scaled and len(scaled) == len(sources):
        codes = [source.order(source.codes) for source in scaled]
        found = [scaled_rows(rows, scaled) for rows in matrices_of(weight, codes)]
        whole = [rows for rows in found if rows is not None]
        if len(whole) == len(found):
            return iter(whole)
    return matrices_of(weight, [np.asarray(source) for source in sources])


def packed(weight: Weight, tensors: Mapping[str, Array]) -> Words:
    """The words of ``weight`` for all its layers. Raises what :func:`pieces_of` does."""
    found = np.zeros((*((weight.layers,) if weight.layers else ()), *weight.shape), np.uint16)
    flat = found.reshape(-1)
    at_once(pieces_of(weight, tensors), lambda p: p.fill(flat[p.first : p.first + p.count]))
    return found


def at_once(pieces: Iterator[Piece], work: Callable[[Piece], None]) -> None:
    """Do ``work`` for all ``pieces``, as many at a time as there are processors. Raises what that
    does."""
    threads = os.cpu_count() or 1
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > _WAITING * threads:
                waiting.popleft().result()
        for one in waiting:
            one.result()

"""What is packed, as matrices whose rows are those of others: which is what every packing says.

Sources are looked at as matrices in the order of the packed one, without a copy of what lies so; a
packing then is a list of rows. Vectors are matrices of one column, or of one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.backends.cuda.program import Gathered, Weight
from meshc.ir.affine import parse_expr

Array = NDArray[Any]
Places = NDArray[np.int64]
GROUP = 16
"""Rows of a matrix in fragments lie in groups of so many."""


@dataclass(frozen=True)
class Rows:
    """A matrix: row i is row ``at[i]`` of the matrix ``matrices[of[i]]``, or zeros where ``of[i]``
    is -1. All ``matrices`` are as wide."""

    matrices: Sequence[Array]
    of: Places
    at: Places

    @classmethod
    def whole(cls, matrix: Array) -> Rows:
        """All rows of one matrix in order."""
        return cls([matrix], np.zeros(len(matrix), np.int64), np.arange(len(matrix)))

    @classmethod
    def in_turn(cls, matrices: Sequence[Array], at: Sequence[Places]) -> Rows:
        """The rows ``at`` of each matrix, as many of all, of the same number side by side; -1 for a
        row of zeros."""
        of = np.broadcast_to(np.arange(len(matrices)), (len(at[0]), len(matrices)))
        rows = np.stack(at, -1).reshape(-1)
        return cls(matrices, np.where(rows < 0, -1, of.reshape(-1)), rows)

    @classmethod
    def joined(cls, matrices: Sequence[Array], at: Sequence[Places]) -> Rows:
        """The rows ``at`` of each matrix, those of one behind those of the other."""
        of = np.repeat(np.arange(len(matrices)), [len(one) for one in at])
        return cls(matrices, of, np.concatenate(at))

    def filled(self, rows: int, every: int) -> Rows:
        """The same with rows of zeros behind each ``rows`` of them, so that these are ``every``."""
        behind = ((0, 0), (0, every - rows))
        of, at = (
            np.pad(one.reshape(-1, rows), behind, constant_values=-1).reshape(-1)
            for one in (self.of, self.at)
        )
        return Rows(self.matrices, of, at)

    def part(self, first: int, count: int) -> Rows:
        """``count`` rows from ``first`` on, or as many as there are."""
        rows = slice(first, first + count)
        return Rows(self.matrices, self.of[rows], self.at[rows])

    def addresses(self, zeros: Array) -> NDArray[np.uint64] | None:
        """Where each row lies in memory, those of zeros at ``zeros``; None where elements of rows
        do not lie side by side, or matrices are of several types."""
        kinds = {matrix.dtype for matrix in self.matrices}
        if len(kinds) > 1 or any(m.strides[1] != m.itemsize for m in self.matrices):
            return None
        begin = np.array([m.ctypes.data for m in (*self.matrices, zeros)], np.int64)
        step = np.array([*(m.strides[0] for m in self.matrices), 0], np.int64)
        return (begin[self.of] + self.at * step[self.of]).view(np.uint64)

    @property
    def width(self) -> int:
        """Columns."""
        return int(self.matrices[0].shape[1])

    def __len__(self) -> int:
        return len(self.of)


def matrices_of(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """One layer of ``weight``, or what all layers share, from its ``sources``: the matrices that
    lie one behind the other, whole groups of rows of each where they are in fragments.

    Raises ValueError where an expression of what is gathered is none in a single lane.
    """
    for rows in _PACKS[weight.pack](weight, sources):
        if weight.fragments and weight.pack != "tasks":
            yield rows.filled(len(rows), -(-len(rows) // GROUP) * GROUP)
        else:
            yield rows


def _plain(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """A source as it is."""
    (tensor,) = sources
    if weight.paired:
        tensor = tensor[..., _lanes(weight, 0, tensor.shape[-1])]
    if tensor.ndim == 1:
        yield Rows.whole(tensor[None])
        return
    for index in np.ndindex(*tensor.shape[:-2]):
        yield Rows.whole(tensor[index])


def _transposed(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """A matrix ``[width, rows]``."""
    yield Rows.whole(sources[0].T)


def _gated(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """Gates and values ``[width, features]`` in turn; of biases ``[features]``."""
    columns = [tensor.reshape(-1, tensor.shape[-1]).T for tensor in sources]
    yield Rows.in_turn(columns, [np.arange(len(one)) for one in columns])


def _projections(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """Queries ``[hidden, heads, head]``, keys and values ``[hidden, kv_heads, head]``: for each
    key/value head its query heads, its keys, its values; where there is one for all, its dim may be
    missing. Biases lack hidden."""
    queries, keys, _ = sources
    head, kv = queries.shape[-1], keys.shape[-2] if keys.ndim == queries.ndim else 1
    hidden = math.prod(queries.shape[:-2])
    columns = [tensor.reshape(hidden, -1).T for tensor in sources]
    at = [
        (np.arange(len(one)).reshape(-1, head)[:, _lanes(weight, place, head)]).reshape(kv, -1)
        for place, one in enumerate(columns)
    ]
    for n in range(kv):
        yield Rows.joined(columns, [one[n] for one in at])


def _output(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """``[heads, head, hidden]`` as ``[hidden, attended]``."""
    (tensor,) = sources
    yield Rows.whole(tensor.reshape(-1, tensor.shape[-1]).T)


def _for_tasks(weight: Weight, sources: Sequence[Array]) -> Iterator[Rows]:
    """Sources that are gathered; a group of a matrix has ``weight.rows`` rows of each, in turn, and
    as many of zeros as sixteen lack."""
    found = [_along(tensor, how) for tensor, how in zip(sources, weight.gathered, strict=True)]
    at = [places for _, places in found]
    for index in np.ndindex(*found[0][0].shape[:-2]):
        rows = Rows.in_turn([tensor[index] for tensor, _ in found], at)
        together = weight.rows * len(found)
        yield rows.filled(together, GROUP) if weight.fragments else rows


_PACKS: dict[str, Callable[[Weight, Sequence[Array]], Iterator[Rows]]] = {
    "plain": _plain,
    "transposed": _transposed,
    "gated": _gated,
    "projections": _projections,
    "output": _output,
    "tasks": _for_tasks,
}


def _lanes(weight: Weight, source: int, count: int) -> Places:
    """Which of ``count`` lanes of a head of a source are taken in turn: those of pairs side by
    side, if it is one whose lanes turn in pairs."""
    paired = weight.sources[source] in weight.paired
    return interleaved(count, weight.run) if paired else np.arange(count)


def interleaved(count: int, run: int = 0) -> Places:
    """``count`` lanes such that i and i + n / 2 are side by side in each run of n lanes; ``run`` is
    n, and 0 where it is all of them. Lanes behind one run, fewer than it has, are a run of their
    own."""
    lanes, run = np.arange(count), run or count
    parts = [lanes[:run], lanes[run:]] if count % run else lanes.reshape(-1, run)
    return np.concatenate([part.reshape(2, -1).T.reshape(-1) for part in parts])


def _along(tensor: Array, how: Gathered) -> tuple[Array, Places]:
    """``tensor`` with an axis for each lane, two at the least, and the rows of it that are taken in
    turn, -1 for zeros (:class:`meshc.backends.cuda.program.Gathered`)."""
    elements = [parse_expr(text) for text in how.element]
    axes: dict[str, list[int]] = {lane: [] for lane in how.lanes}
    for axis, element in enumerate(elements):
        (lane,) = element.free_vars or {how.lanes[0]}
        axes[lane].append(axis)
    found = tensor.transpose([axis for lane in how.lanes for axis in axes[lane]])
    rows = max(len(how.lanes) - 2, 0)
    for number, (lane, extent) in enumerate(zip(how.lanes, how.extents, strict=True)):
        sizes = [tensor.shape[axis] for axis in axes[lane]]
        index, inside = np.zeros(extent, np.int64), np.ones(extent, bool)
        for axis, size in zip(axes[lane], sizes, strict=True):
            at = np.broadcast_to(elements[axis].evaluate({lane: np.arange(extent)}), (extent,))
            inside &= (at >= 0) & (at < size)
            index = index * size + at
        behind = found.shape[number + len(sizes) :]
        found = found.reshape(*found.shape[:number], math.prod(sizes), *behind)
        places = np.where(inside, index, -1)
        if number == rows:
            taken = places
        elif not np.array_equal(places, np.arange(found.shape[number])):
            found = np.take(found, np.maximum(places, 0), number)
            found[(slice(None),) * number + (places < 0,)] = 0
    return (found, taken) if len(how.lanes) > 1 else (found[:, None], taken)

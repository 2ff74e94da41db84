"""Windows that lie at another place on each core: loading and storing them through indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Scattered:
    """Elements of ``array`` ``[lanes, ..]`` picked by ``places`` along the first axis and ``axes``.

    ``places`` are integer arrays that broadcast to ``[cores, *extents of the kept axes]``; the
    axes in ``kept`` remain, in order, the other ones of ``axes`` disappear.
    """

    def __init__(
        self, array: Array, axes: Sequence[int], kept: Sequence[int], places: tuple[Array, ...]
    ) -> None:
        front = 1 + len(axes)
        moved = np.moveaxis(array, axes, range(1, front))
        rest = [axis for axis in range(1, array.ndim) if axis not in axes]
        order = [0, *kept, *rest]  # axes of what is picked
        self._back = np.argsort(order).tolist()
        self._forth = np.argsort(self._back).tolist()
        self._array, self._places = moved, places
        flat = moved.reshape((-1, *moved.shape[front:]))
        if not kept and np.may_share_memory(flat, moved):  # one index instead of several
            self._array = flat
            self._places = (np.ravel_multi_index(places, moved.shape[:front]),)

    def load(self) -> Array:
        """A copy of the elements, ``[cores, *shape]``."""
        if len(self._places) == 1 and self._array.flags.c_contiguous:
            return self._array.take(self._places[0], axis=0)
        found: Array = self._array[self._places].transpose(self._back)
        return found

    def store(self, value: Array) -> None:
        """Put elements ``[cores, *shape]`` where they belong."""
        self._array[self._places] = value.transpose(self._forth)

"""Symmetric memory of several GPUs in the executor: an allocation of the same size on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshc.backends.cuda.executor.guarded_memory import guarded

# Addresses that no process has, so that a thread that dereferences one ends the run.
_FIRST_MULTICAST, _WINDOW = 0x00A0_0000_0000_0000, 1 << 40


@dataclass(frozen=True)
class SymmetricMemory:
    """An allocation on every GPU: ``parts`` by GPU, arrays of one shape and type, and the
    ``multicast`` address that stands for all of them. One of ``signals`` holds the words of
    ``put_signal`` and ``wait_signal`` and nothing else, one of ``counters`` those of ``gpu_arrive``
    and ``gpu_wait``, one of ``words`` those with tags."""

    parts: tuple[NDArray[Any], ...]
    multicast: int
    signals: bool = False
    counters: bool = False
    words: bool = False

    @property
    def held(self) -> int:
        """What it holds, as the executor is told."""
        return 1 if self.signals else 2 if self.counters else 3 if self.words else 0

    @property
    def addresses(self) -> NDArray[np.uint64]:
        """Where the allocation lies on each GPU, as kernels are told: an array of pointers."""
        return np.array([part.ctypes.data for part in self.parts], np.uint64)


def symmetric_memory(
    number: int,
    gpus: int,
    shape: Sequence[int],
    dtype: DTypeLike,
    signals: bool = False,
    counters: bool = False,
    words: bool = False,
) -> SymmetricMemory:
    """Allocation ``number`` of a launch: zeros of ``shape`` on each of ``gpus``."""
    parts = tuple(guarded(np.zeros(shape, dtype)) for _ in range(gpus))
    return SymmetricMemory(parts, _FIRST_MULTICAST + number * _WINDOW, signals, counters, words)

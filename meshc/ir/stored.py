"""Weights as files hold them: elements that NumPy has no type for, layers read one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BF16 = np.dtype([("bf16", np.uint16)])
"""Elements of bf16: the upper halves of those of float32."""


class Layered(Protocol):
    """A tensor whose first index counts layers, or one that all layers share."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all layers together."""

    def __getitem__(self, layer: int, /) -> Array:
        """A layer: floats of any width, or :data:`BF16`."""


@dataclass(frozen=True)
class Layers:
    """A tensor of which each layer is read when it is asked for."""

    shape: tuple[int, ...]
    read: Callable[[int], Array]

    def __getitem__(self, layer: int) -> Array:
        return self.read(layer)


@runtime_checkable
class StoredWeights(Protocol):
    """Tensors that can be had as their files hold them, where nothing has to be decoded."""

    def stored(self, name: str) -> Layered:
        """The tensor ``name``; one that all layers share is an array. Raises KeyError."""

    def stamp(self) -> str | None:
        """What is another text whenever the tensors may be others; None where nothing tells."""


def stored(tensors: Mapping[str, Array], name: str) -> Layered:
    """The tensor ``name`` as its file holds it, where ``tensors`` know that. Raises KeyError."""
    if isinstance(tensors, StoredWeights):
        return tensors.stored(name)
    return np.asarray(tensors[name])


def floats(values: Array) -> Array:
    """Elements of :data:`BF16` as float32, any others as they are."""
    if values.dtype != BF16:
        return values
    return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)

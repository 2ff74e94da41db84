"""Weights as files hold them: elements that NumPy has no type for, layers read one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BF16 = np.dtype([("bf16", np.uint16)])
"""Elements of bf16: the upper halves of those of float32."""
E4M3 = np.dtype([("e4m3", np.uint8)])
"""Elements of eight bits (``float8_e4m3fn``): a sign, 4 bits of an exponent, whose bias is 7, and 3
of a fraction. There is no infinity, and all ones is NaN. Source: Micikevicius et al., FP8 Formats
for Deep Learning, 2022, table 1."""

E2M1 = np.dtype([("e2m1", np.uint8)])
"""Elements of four bits, a byte each: a sign, 2 bits of an exponent, whose bias is 1, and one of a
fraction. Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3."""


class Layered(Protocol):
    """A tensor whose first index counts layers, or one that all layers share."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all layers together."""

    def __getitem__(self, layer: int, /) -> Array | Scaled:
        """A layer: floats of any width, or :data:`BF16`."""


@dataclass(frozen=True)
class Layers:
    """A tensor of which each layer is read when it is asked for."""

    shape: tuple[int, ...]
    read: Callable[[int], Array | Scaled]

    def __getitem__(self, layer: int) -> Array | Scaled:
        return self.read(layer)


@dataclass(frozen=True)
class Scaled:
    """A tensor as files in fp8 hold it: ``codes`` :data:`E4M3` [rows, columns] and ``scales``
    float32 [rows, groups], each of which ``group`` columns of a row are multiplied by, the last
    ones by as many as there are. The tensor is what ``order`` makes of such a matrix."""

    codes: Array
    scales: Array
    group: int
    order: Callable[[Array], Array] = np.asarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.order(self.codes).shape

    def then(self, order: Callable[[Array], Array]) -> Scaled:
        """What ``order`` makes of the tensor."""
        return replace(self, order=lambda matrix: order(self.order(matrix)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The tensor as float32."""
        numbers = floats(self.codes)
        for number, scales in enumerate(self.scales.T):
            numbers[:, number * self.group : (number + 1) * self.group] *= scales[:, None]
        return self.order(numbers).astype(dtype or np.float32, copy=False)


@runtime_checkable
class StoredWeights(Protocol):
    """Tensors that can be had as their files hold them, where nothing has to be decoded."""

    def stored(self, name: str) -> Layered | Scaled:
        """The tensor ``name``; one that all layers share is as one of them. Raises KeyError."""

    def stamp(self) -> str | None:
        """What is another text whenever the tensors may be others; None where nothing tells."""


def stored(tensors: Mapping[str, Array], name: str) -> Layered | Scaled:
    """The tensor ``name`` as its file holds it, where ``tensors`` know that. Raises KeyError."""
    if isinstance(tensors, StoredWeights):
        return tensors.stored(name)
    return np.asarray(tensors[name])


def floats(values: Array) -> Array:
    """Elements of :data:`BF16`, :data:`E4M3` and :data:`E2M1` as float32, others as they are."""
    if values.dtype == E4M3:
        return np.asarray(_NUMBERS[values.view(np.uint8)])
    if values.dtype == E2M1:
        return np.asarray(_OF_FOUR_BITS[values.view(np.uint8)])
    if values.dtype != BF16:
        return values
    return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _number(code: int) -> float:
    """What a code of :data:`E4M3` stands for."""
    sign, exponent, fraction = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (8 + fraction) * 2.0 ** (exponent - 10)


_NUMBERS = np.array([_number(code) for code in range(256)], np.float32)
_OF_FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_OF_FOUR_BITS = np.concatenate((_OF_FOUR_BITS, -_OF_FOUR_BITS))

"""What the interpreter of mesh-level modules keeps, and the table of what ops mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from meshc.interp.inputs import Scalars
from meshc.interp.named import Array, Dims, aligned
from meshc.interp.shards import Sharding
from meshc.ir.batch import BATCH, POSITION
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.mesh import Mesh
from meshc.ir.types import TensorType
from meshc.ir.values import Value

CORES = ""  # the name of the leading dim of all shards


@dataclass
class Shards:
    """What each value holds so far, ``[cores, *lanes]``, and the layer of the loop that runs."""

    mesh: Mesh
    extents: Mapping[str, int]
    actual: Mapping[str, int]
    scalars: Scalars
    values: dict[Value, Array] = field(default_factory=dict)
    shardings: dict[TensorType, Sharding] = field(default_factory=dict)
    layer: int = 0

    @property
    def position(self) -> Array:
        """Tokens that are cached already: one number, or ``[B]`` of each request its own."""
        return np.asarray(self.scalars.get(POSITION, 0))

    def of(self, operand: Operand) -> Array:
        """The shards of ``operand``."""
        return self.values[cast(Value, operand)]

    def sharding(self, operand: Operand) -> Sharding:
        """How ``operand`` lies."""
        kind = tensor_type(operand)
        if kind not in self.shardings:
            self.shardings[kind] = Sharding(kind, self.mesh, self.extents, self.actual)
        return self.shardings[kind]

    def gathered(self, operand: Operand, op: Op) -> Array:
        """The logical tensor of ``operand``."""
        return self.sharding(operand).gather(self.of(operand), cast(Value, operand).name, op.span)


Meaning = Callable[[Shards, Any], list[Array]]
OpType = TypeVar("OpType", bound=Op)

MEANINGS: dict[type[Op], Meaning] = {}


def meaning(cls: type[OpType]) -> Callable[[Callable[[Shards, OpType], list[Array]]], Meaning]:
    """Decorator: the function is what ops of ``cls`` do."""

    def add(function: Callable[[Shards, OpType], list[Array]]) -> Meaning:
        MEANINGS[cls] = function
        return function

    return add


def dims_of(operand: Operand) -> Dims:
    """The dims of the shards of ``operand``: that of the cores, then its own."""
    return (CORES, *tensor_type(operand).dims)


def position_of(shards: Shards, op: Op, value: Operand, dims: Dims) -> Array:
    """The position of each request of ``value`` that a core has, aligned to ``dims``."""
    if not shards.position.ndim:
        return shards.position
    if BATCH not in dims:
        op.reject(f"has no dim {BATCH}, but each request its own position")
    request = np.maximum(shards.sharding(value).of_dim(BATCH), 0)
    return aligned(shards.position[request], (CORES, BATCH), dims)

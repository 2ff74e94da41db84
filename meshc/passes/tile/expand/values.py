"""Where the values of a mesh-level function lie on the cores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from meshc.analysis.layout.tiling import tiling_of
from meshc.ir.affine import Expr
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.module import Module, Param
from meshc.ir.ops import mesh
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand.emitter import Emitter, Place
from meshc.passes.tile.expand.kv_cache import Cache
from meshc.passes.tile.expand.lifetimes import Lifetimes
from meshc.passes.tile.expand.weights import Weights
from meshc.support.diagnostics import fail


class Values:
    """A place for every mesh value; those of dying operands are used again."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.emitter = Emitter(module, tiling_of(module))
        self.weights = Weights(self.emitter)
        self.places: dict[Value, Place] = {}
        self.caches: dict[Value, tuple[Cache, int]] = {}
        self.direct: dict[Value, Param] = {}
        self.tenants: dict[Value, list[Value]] = {}
        self.constants: set[Value] = set()
        self.scaled: set[mesh.Scale] = set()
        self.lives = Lifetimes(module.function.body)
        self.layers: tuple[int, Expr] | None = None
        self.carried: list[Value] = []

    def view(self, place: Place) -> View:
        """The value at ``place``."""
        return self.emitter.view(place)

    def settle(self, value: Value, place: Place) -> Place:
        """``value`` lies at ``place``, perhaps beside others."""
        self.places[value] = place
        self.tenants.setdefault(place.buffer, []).append(value)
        return place

    def place_of(self, value: Value) -> Place:
        """Where ``value`` lies; a parameter that may be placed at will gets a buffer on each core
        for what its layout gives the core."""
        if value not in self.places and value in self.weights.stacks:
            self.places[value] = self.weights.lanes(value)
            self.constants.add(self.places[value].buffer)
        if value in self.caches:
            words = (
                f"%{value.name} is a cache, and this module reads it by another op than a product"
            )
            fail("unsupported-op", words)
        return self.places[value]

    def check_side_by_side(self, op: Op, places: Sequence[Place]) -> None:
        """Values that ``op`` computes together follow each other in one buffer; fails with
        ``unsupported-layout`` where other ops want some of them elsewhere."""
        if not side_by_side(places):
            words = f"what {op.NAME} works on does not lie side by side: some of it is computed "
            words += "or sent together with other values"
            fail("unsupported-layout", words, op.span, help="reduce each value by itself")

    def is_free(self, place: Place, op: Op) -> bool:
        """Whether ``op`` may overwrite ``place``: it is no parameter's, and nothing that lies there
        is read after it."""
        return place.buffer not in self.constants and not any(
            self.places[value].overlaps(place) and self.lives.read_after(value, op)
            for value in self.tenants[place.buffer]
        )

    def result_place(self, op: Op, *reuse: Operand) -> Place:
        """Where the op's result goes: its joint buffer, that of an operand in ``reuse`` which
        nothing needs any more, or a new buffer."""
        value = op.result
        if value in self.places:
            return self.places[value]
        kind = tensor_type(value)
        for operand in reuse:
            place = self.places.get(cast(Value, operand))
            if place and self.same_room(place, kind) and self.is_free(place, op):
                return self.settle(value, place)
        if reuse:
            like = self.place_of(cast(Value, reuse[0]))
            return self.settle(value, self.emitter.place_like(like, value.name, kind.dtype))
        return self.settle(value, self.emitter.new_place(value.name, kind))

    def overwritten(self, op: Op, values: Sequence[Value]) -> list[Place]:
        """Where ``op``, which works in place on operands ``values`` side by side, does so: where
        they lie, or in a copy if they lie apart or something else needs what lies there."""
        places = [self.place_of(v) for v in values]
        if side_by_side(places) and all(self.is_free(place, op) for place in places):
            return places
        name = "_".join(v.name for v in values)
        if len(values) == 1:
            copies = [self.emitter.place_like(places[0], name, self.dtype(values[0]))]
        else:
            copies = self.emitter.joint_places(name, [tensor_type(v) for v in values])
        for copy, place in zip(copies, places, strict=True):
            self.emitter.compute("copy", self.view(copy), self.view(place))
        return copies

    def same_room(self, place: Place, kind: TensorType) -> bool:
        """Whether a value of ``kind`` fits where another one lies."""
        if getattr(place.buffer.type, "dtype", None) != kind.dtype:
            return False
        alike = (place.shape, place.rows) == (
            self.emitter.local_shape(kind),
            self.emitter.has_rows(kind),
        )
        return place.chunked or alike

    def current_cache(self) -> Cache:
        """The cache appended to last."""
        return list(self.caches.values())[-1][0]

    def dtype(self, value: Value) -> DType:
        """Element type of a value."""
        return tensor_type(value).dtype


def side_by_side(places: Sequence[Place]) -> bool:
    """Whether the places follow each other in one buffer."""
    return all(
        before.offset is not None
        and before.buffer is after.buffer
        and before.offset + before.width == after.offset
        for before, after in pairwise(places)
    )

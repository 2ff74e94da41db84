"""Where the values of a mesh-level function lie on the cores."""

from __future__ import annotations

from meshc.analysis.tiling import tiling_of
from meshc.ir.affine import Expr
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.module import Module, Param
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand.cache import Cache
from meshc.passes.tile.expand.emitter import Emitter, Place
from meshc.passes.tile.expand.weights import Weights


class Values:
    """A place for every mesh value; those of dying operands are used again."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.emitter = Emitter(module, tiling_of(module))
        self.weights = Weights(self.emitter)
        self.places: dict[Value, Place] = {}
        self.caches: dict[Value, tuple[Cache, int]] = {}
        self.direct: dict[Value, Param] = {}
        self.last_use: dict[Value, Op] = {}
        self.layers: tuple[int, Expr] | None = None
        self.carried: list[Value] = []

    def view(self, place: Place) -> View:
        """The value at ``place``."""
        return self.emitter.view(place)

    def result_place(self, op: Op, reuse: Operand | None = None) -> Place:
        """Where the op's result goes: its joint buffer, its dying operand's, or a new buffer."""
        value = op.result
        if value in self.places:
            return self.places[value]
        kind = tensor_type(value)
        dying = isinstance(reuse, Value) and self.last_use.get(reuse) is op
        if dying and isinstance(reuse, Value) and self.same_room(self.places[reuse], kind):
            self.places[value] = self.places[reuse]
        else:
            self.places[value] = self.emitter.new_place(value.name, kind)
        return self.places[value]

    def same_room(self, place: Place, kind: TensorType) -> bool:
        """Whether a value of ``kind`` fits where another one lies."""
        if getattr(place.buffer.type, "dtype", None) != kind.dtype:
            return False
        return place.chunked or place.shape == self.emitter.local_shape(kind)

    def constant(self, operand: Operand, place: Place) -> View:
        """The second operand of a pointwise op: a weight's lanes or another value."""
        assert isinstance(operand, Value)
        if operand in self.weights.stacks:
            kind = tensor_type(operand)
            return self.weights.vector(operand, kind.local_shape(self.module.dims))
        return self.view(self.places[operand])

    def current_cache(self) -> Cache:
        """The cache appended to last."""
        return list(self.caches.values())[-1][0]

    def dtype(self, value: Value) -> DType:
        """Element type of a value."""
        return tensor_type(value).dtype

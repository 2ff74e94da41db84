"""The graph-level function being built: regions, params that are used, names of values."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.frontend.language.ast import Tensor
from meshc.frontend.language.found import Stopped
from meshc.ir.core import Block, Op
from meshc.ir.module import Function, Param
from meshc.ir.ops.graph import Embed, Return
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import Diagnostic, fail
from meshc.support.spans import Span

LARGEST_MODEL = 5_000


@dataclass(eq=False)
class Weight:
    """A param of the checkpoint: the function's parameter and, in a repeat, the layer's slice."""

    tensor: Tensor
    outer: Value
    inner: Value
    used: bool = False


@dataclass(eq=False)
class Cache:
    """A cache: the function's parameter, what the region sees of it, and what was appended."""

    outer: Value
    inner: Value
    new: Value


@dataclass(eq=False)
class Region:
    """The function's body, or that of a repeat over ``dim``."""

    dim: str = ""
    body: Block = field(default_factory=Block)
    weights: list[Weight] = field(default_factory=list)
    caches: dict[str, Cache] = field(default_factory=dict)

    def used_weights(self) -> list[Weight]:
        """The params that something in the region reads, in the order of declaration."""
        return [w for w in self.weights if w.used]


class Emitter:
    """Appends ops to the current region. Values get their final names in :meth:`finish`."""

    def __init__(self, extents: dict[str, int], dtype: DType) -> None:
        self.extents = extents
        self.dtype = dtype
        self.inputs: list[Value] = []
        self.region = Region()
        self.regions = [self.region]
        self.hint = "value"
        self.steps = 0
        self._own_names: dict[Value, str] = {}
        self._read: set[Value] = set()

    def emit(self, op: Op, span: Span) -> Value:
        """Append ``op``, which has one result, and give that."""
        op.span = span
        self.count(span)
        self._check_numbers(op, span)
        types = op.infer(self.extents)
        assert types is not None
        op.results = [Value(self.hint, t) for t in types]
        op.verify(self.extents)
        self.region.body.ops.append(op)
        return op.result

    def count(self, span: Span) -> None:
        """Count one step of work; far more than any model needs is an error."""
        self.steps += 1
        if self.steps > LARGEST_MODEL:
            message = f"the model has more than {LARGEST_MODEL} operations once blocks are expanded"
            raise Stopped([Diagnostic("error", "model-too-large", message, span)])

    def tensor(self, name: str, dims: tuple[str, ...]) -> Value:
        """A fresh value of the weights' dtype, called ``name`` as far as that is free."""
        value = Value(name, TensorType(self.dtype, dims))
        self.call(value, name)
        return value

    def call(self, value: Value, name: str) -> None:
        """Give a value the user's name for it, unless it has one."""
        self._own_names.setdefault(value, name)

    def weight(self, tensor: Tensor, dims: tuple[str, ...]) -> Weight:
        """Declare a param of the current region, stacked when the region is a repeat."""
        inner = self.tensor(tensor.name, dims)
        outer = inner
        if self.region.dim:
            outer = self.tensor(tensor.name, (self.region.dim, *dims))
        weight = Weight(tensor, outer, inner)
        self.region.weights.append(weight)
        return weight

    def cache(self, name: str, dims: tuple[str, ...]) -> Cache:
        """Declare a cache of the current region, stacked when the region is a repeat."""
        inner = self.tensor(name, dims)
        outer = inner
        if self.region.dim:
            outer = self.tensor(name, (self.region.dim, *dims))
        cache = Cache(outer, inner, inner)
        self.region.caches[name] = cache
        return cache

    def token_ids(self, value: Value, span: Span) -> Value:
        """``value`` as token ids: an input that nothing has used as numbers."""
        assert isinstance(value.type, TensorType)
        if value.type.dtype is not DType.I32:
            if value not in self.inputs or value in self._read:
                what = "is used as numbers above" if value in self.inputs else "is no input of main"
                fail("bad-operand", f"embed needs token ids; this {what}", span)
            value.type = TensorType(DType.I32, value.type.dims)
        return value

    def enter(self, region: Region) -> Region:
        """Make ``region`` current; the one before is given back for :meth:`leave`."""
        before, self.region = self.region, region
        self.regions.append(region)
        return before

    def leave(self, before: Region) -> None:
        """End the current region."""
        self.region = before

    def finish(self, name: str, results: list[Value], span: Span) -> Function:
        """The function: used params only, caches last, and every value named."""
        caches = [c for r in self.regions for c in r.caches.values()]
        weights = [w for r in self.regions for w in r.used_weights()]
        params = [
            *(Param(v, "in") for v in self.inputs),
            *(Param(w.outer, "weight") for w in weights),
            *(Param(c.outer, "state") for c in caches),
        ]
        returned = [*results, *(c.new for c in caches)]
        self.region.body.ops.append(Return(operands=list(returned), span=span))
        self._name_all([p.value for p in params])
        return Function(name, params, [v.type for v in returned], self.region.body)

    def _name_all(self, params: list[Value]) -> None:
        """Unique names: params first, then what the user named, then the rest, in text order."""
        taken: dict[str, int] = {}
        inside = list(_values(self.region.body))
        own = [v for v in inside if v in self._own_names]
        others = [v for v in inside if v not in self._own_names]
        for value in [*params, *own, *others]:
            value.name = _fresh(self._own_names.get(value, value.name), taken)

    def _check_numbers(self, op: Op, span: Span) -> None:
        values = op.tensors()
        if not isinstance(op, Embed):
            self._read.update(values)
            if any(isinstance(v.type, TensorType) and v.type.dtype is DType.I32 for v in values):
                message = "token ids are no numbers to compute with; embed them first"
                fail("bad-operand", message, span)


def _values(block: Block) -> list[Value]:
    """Every value defined in ``block``, in text order."""
    found = list(block.args)
    for op in block.ops:
        for region in op.regions:
            found += _values(region)
        found += op.results
    return found


def _fresh(name: str, taken: dict[str, int]) -> str:
    """``name``, or the first of name_1, name_2, ... that is free; it is taken from now on.

    ``taken`` holds, for each taken name, the last number tried with it.
    """
    candidate = name
    while candidate in taken:
        taken[name] += 1
        candidate = f"{name}_{taken[name]}"
    taken[candidate] = 0
    return candidate

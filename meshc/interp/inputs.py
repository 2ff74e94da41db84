"""Inputs of a run: binding arrays to parameters, checking scalars, and random inputs for checks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from meshc.interp.named import Array
from meshc.interp.token_batches import check_batch
from meshc.ir.batch import OWNER, POSITION, batch_of
from meshc.ir.module import MACHINE_LEVELS, Module
from meshc.ir.ops import graph, ranks
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.ir.types import DType, TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

RUN_TIME_ROWS = "len"

Scalars = Mapping[str, int | Sequence[int]]
"""Run-time scalars by name; of some there may be one for each request of a batch."""


@dataclass(frozen=True)
class Wanted:
    """One array that a module takes: ``role`` is ``in``, ``weight`` or ``state``."""

    name: str
    type: TensorType
    role: str


def wanted_inputs(module: Module) -> list[Wanted]:
    """The arrays a module of any level takes: parameters, or in-ports at the tile and the task
    level (those that the module's own constants fill excepted)."""
    if module.level not in MACHINE_LEVELS:
        return [Wanted(p.value.name, _tensor(p.value), p.role) for p in module.function.params]
    roles = {buffer.value: buffer.role for buffer in module.buffers}
    loaded = [port for port in module.ports if port.direction == "in"]
    ports = [port for port in loaded if port.name not in module.constants]
    return [Wanted(p.name, p.tensor, roles[p.buffer] or "in") for p in ports]


def bound_inputs(
    module: Module, inputs: Mapping[str, Array], dtype: np.dtype[Any]
) -> tuple[dict[str, int], dict[Value, Array]]:
    """The actual extents of all dims, and the arrays of the parameters of ``module``'s function.

    An ``in`` array may have fewer rows than its dim; every array that has the dim then has as
    many. A state that is not given starts as zeros. Raises ``interp-input``.
    """
    extents = actual_extents(module, inputs)
    arrays = {}
    for param in module.function.params:
        kind = _tensor(param.value)
        numbers = np.dtype(np.int64) if kind.dtype is DType.I32 else dtype
        given = inputs.get(param.value.name)
        if given is None:
            arrays[param.value] = np.zeros(kind.shape(extents), numbers)
        else:
            arrays[param.value] = in_pairs(module, param.value, np.asarray(given, numbers))
    return extents, arrays


def in_pairs(module: Module, value: Value, array: Array) -> Array:
    """``array`` with rotate-half lanes brought next to each other, where the module wants it.

    canonicalize turns rotate-half RoPE into interleaved pairs, and ``paired`` of the header names
    the weights whose lanes the packing reorders; inputs are the model's own tensors at every level.
    Lane 2i of the dim, or of a run of its lanes, is then lane i of the tensor, and 2i + 1 is
    i + D/2.
    """
    pairs = module.paired.get(value.name)
    for axis, dim in enumerate(_tensor(value).dims):
        if pairs is not None and dim == pairs.dim:
            lanes = array.shape[axis]
            array = array.take(pairs.element(np.arange(lanes), lanes), axis)
    return array


def actual_extents(module: Module, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The module's dims, with the rows that the ``in`` arrays really have.

    Raises ``interp-input`` when an array is missing or its shape fits no such extents.
    """
    extents = dict(module.dims)
    wanted = wanted_inputs(module)
    for want in wanted:
        if want.name not in inputs and want.role != "state":
            fail("interp-input", f"'{want.name}' of type {want.type} is not given")
        if want.role == "in":
            _narrow(extents, want, np.shape(inputs[want.name]))
    for want in wanted:
        if want.name in inputs and np.shape(inputs[want.name]) != want.type.shape(extents):
            fail(
                "interp-input",
                f"'{want.name}' has shape {list(np.shape(inputs[want.name]))}, "
                f"not {list(want.type.shape(extents))}",
                notes=[f"its type is {want.type}"],
            )
    return extents


def _narrow(extents: dict[str, int], want: Wanted, shape: tuple[int, ...]) -> None:
    if len(shape) == len(want.type.dims):
        for dim, rows in zip(want.type.dims, shape, strict=True):
            extents[dim] = min(extents[dim], rows)


def checked_scalars(module: Module, scalars: Scalars) -> dict[str, int | tuple[int, ...]]:
    """``scalars`` once all that the module declares are given and within their ranges.

    Of ``pos`` there may be one for each request of a batch, and of each scalar that rounds of a
    loop have of their own one for each round; one number stands for as many equal ones. Raises
    ``interp-scalar``.
    """
    several = _several(module)
    found: dict[str, int | tuple[int, ...]] = {}
    for name, given in scalars.items():
        each = tuple(int(one) for one in np.ravel(given))
        found[name] = each if np.ndim(given) else each[0]
    for name, (low, high) in module.scalars.items():
        if name not in found:
            fail("interp-scalar", f"the run-time scalar '{name}' is not given")
        value = found[name]
        for one in value if isinstance(value, tuple) else (value,):
            if not low <= one <= high:
                fail("interp-scalar", f"{name} = {one} is outside {low} .. {high}")
            if one % module.multiples.get(name, 1):
                words = f"{name} = {one} is no multiple of {module.multiples[name]}"
                fail("interp-scalar", words)
    for name, value in found.items():
        if isinstance(value, tuple) and len(value) != several.get(name):
            fail("interp-scalar", f"{len(value)} values are given of the run-time scalar '{name}'")
    if OWNER in module.scalars:
        check_batch(module, found)
    return found


def rounds_of(op: graph.Repeat, layers: int, scalars: Scalars) -> range:
    """Which of ``layers`` a run does. Raises ``interp-scalar`` where it asks for others."""
    if not op.rounds:
        return range(layers)
    first, count = (int(np.ravel(scalars[name])[0]) for name in op.rounds)
    if count and first + count > layers:
        words = f"layers {first} to {first + count - 1} are asked for"
        fail("interp-scalar", f"{words}, but {op.dim} = {layers}", op.span)
    return range(first, first + count)


def _several(module: Module) -> dict[str, int]:
    """The scalars of which a run may be given several, and how many."""
    if module.level in MACHINE_LEVELS:
        return scalars_of_rounds(module)
    return dict.fromkeys((POSITION, OWNER), batch_of(module))


class RandomArrays(Mapping[str, Array]):
    """Random arrays for everything of ``roles`` that ``module`` takes, the same for a name at every
    level and each time it is asked for: they are drawn anew, so that a model need not fit into
    memory twice.

    Weights are float32 and scaled so that activations keep their size; vectors (gains) lie around
    1; token ids lie within the table; states are zeros. With a scalar ``len`` the dims that hold
    prompt rows have that many. Of the graph of a rank they are the arrays of the whole model.
    """

    def __init__(
        self,
        module: Module,
        seed: int,
        scalars: Scalars | None = None,
        roles: Sequence[str] = ("in", "weight", "state"),
    ) -> None:
        self._seed = seed
        self._extents = dict(module.dims)
        rows = (scalars or {}).get(RUN_TIME_ROWS)
        if isinstance(rows, int):
            self._extents |= {d: min(rows, self._extents[d]) for d in _row_dims(module)}
        self._stacks = {op.dim for op in module.walk() if isinstance(op, graph.Repeat)}
        ids = [module.dims[op.dim] for op in module.walk() if isinstance(op, graph.Embed)]
        ids += [module.dims[op.whole] for op in module.walk() if isinstance(op, ranks.RankEmbed)]
        self._ids = min(ids, default=1)
        wanted = (w for w in wanted_inputs(module) if w.role in roles)
        self._wanted = {w.name: replace(w, type=_whole(module, w.type)) for w in wanted}

    def __getitem__(self, name: str) -> Array:
        return _random(self._wanted[name], self._extents, self._stacks, self._ids, self._seed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)


def random_inputs(module: Module, seed: int, scalars: Scalars | None = None) -> dict[str, Array]:
    """All :class:`RandomArrays` of ``module``."""
    return dict(RandomArrays(module, seed, scalars))


def _random(
    want: Wanted, extents: Mapping[str, int], stacks: set[str], ids: int, seed: int
) -> Array:
    # A stream of its own for each name: adding a parameter must not change the others.
    random = np.random.default_rng([seed, zlib.crc32(want.name.encode())])
    shape = want.type.shape(extents)
    if want.type.dtype is DType.I32:
        return random.integers(0, ids, shape)
    if want.role == "state":
        return np.zeros(shape)
    if want.role == "in":
        return random.standard_normal(shape)
    values = np.asarray(random.standard_normal(shape, np.float32))
    own = [extents[d] for d in want.type.dims if d not in stacks]
    values *= 0.1 if len(own) < 2 else prod(own) ** -0.25
    return values + np.float32(1) if len(own) < 2 else values


def _whole(module: Module, kind: TensorType) -> TensorType:
    """``kind`` with the whole dims of those that are a rank's parts."""
    if module.ranks is None:
        return kind
    parts = {part.dim: part.whole for part in module.ranks.parts}
    return TensorType(kind.dtype, tuple(parts.get(d, d) for d in kind.dims), kind.layout)


def _row_dims(module: Module) -> Iterator[str]:
    """Dims that hold prompt rows: those that the header or the ops name as such."""
    named = {module.row_dim} | {str(getattr(op, "rows", "")) for op in module.walk()}
    return (dim for dim in module.dims if dim in named)


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type

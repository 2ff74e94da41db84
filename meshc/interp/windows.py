"""Views of a core's memory: resolved once for each combination of the names they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshc.interp.named import Array
from meshc.interp.resolve import Env, Memo, Names
from meshc.interp.rounding import rounded
from meshc.ir.affine import Expr
from meshc.ir.types import DType
from meshc.ir.views import Point, Range, View, Whole
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


@dataclass(frozen=True)
class Place:
    """A resolved view: basic slicing, then a reshape, then a permutation of the dims."""

    slot: int
    dtype: DType
    index: tuple[slice | int, ...]
    sliced: tuple[int, ...]
    reshaped: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the view."""
        return tuple(self.reshaped[i] for i in self.order) if self.order else self.reshaped

    def read(self, memory: Sequence[Array]) -> Array:
        """The elements; they may share memory with the buffer."""
        found: Array = memory[self.slot][self.index]
        if self.reshaped != self.sliced:
            found = found.reshape(self.reshaped)
        return found.transpose(self.order) if self.order else found

    def write(self, memory: Sequence[Array], values: Array) -> None:
        """Store ``values``, rounded to the buffer's element type. Raises ValueError on shapes."""
        if values.shape != self.shape:
            raise ValueError(f"shape {list(values.shape)} stored to a view of {list(self.shape)}")
        if self.order:
            values = values.transpose(np.argsort(self.order))
        memory[self.slot][self.index] = rounded(values.reshape(self.sliced), self.dtype)


class Window:
    """A view as a function of a core's environment. Raises ``interp-view`` on a bad place."""

    def __init__(self, view: View, slot: int, names: Names, span: Span | None) -> None:
        self._view, self._slot, self._span = view, slot, span
        self._names = names
        exprs = [*_exprs(view)]
        for expr in exprs:
            names.check(expr, span)
        self.place: Memo[Place] = Memo({n for e in exprs for n in e.free_vars}, self._resolve)

    def extent(self, dim: int) -> int:
        """The extent of a dim of the buffer."""
        return self._view.buffer_type.shape[dim]

    def _resolve(self, env: Env) -> Place:
        index, sliced = self._slices(env)
        view = self._view
        reshaped = tuple(self._value(e, env) for e in view.reshape) if view.reshape else sliced
        if prod(reshaped) != prod(sliced) or any(extent < 0 for extent in reshaped):
            self._wrong(f"{list(sliced)} cannot be seen as {list(reshaped)}", env)
        if view.order and sorted(view.order) != list(range(len(reshaped))):
            self._wrong(f"{list(view.order)} is no order of {len(reshaped)} dims", env)
        dtype = view.buffer_type.dtype
        return Place(self._slot, dtype, index, sliced, reshaped, view.order)

    def _slices(self, env: Env) -> tuple[tuple[slice | int, ...], tuple[int, ...]]:
        full = self._view.buffer_type.shape
        if len(self._view.indices) > len(full):
            self._wrong(f"{len(self._view.indices)} indices for {len(full)} dims", env)
        index: list[slice | int] = []
        sliced: list[int] = []
        for position, extent in enumerate(full):
            written = position < len(self._view.indices)
            part = self._view.indices[position] if written else Whole()
            if isinstance(part, Point):
                index.append(self._inside(self._value(part.at, env), extent, env))
                continue
            index.append(self._slice(part, extent, env) if isinstance(part, Range) else slice(None))
            sliced.append(self._value(part.extent, env) if isinstance(part, Range) else extent)
        return tuple(index), tuple(sliced)

    def _slice(self, part: Range, extent: int, env: Env) -> slice:
        start, count = self._value(part.start, env), self._value(part.extent, env)
        if count < 0:
            self._wrong(f"the extent {part.extent} is {count}", env)
        if count == 0:
            return slice(0, 0)
        last = start + (count - 1) * part.step
        self._inside(start, extent, env)
        self._inside(last, extent, env)
        return slice(start, last + 1, part.step)

    def _inside(self, at: int, extent: int, env: Env) -> int:
        if not 0 <= at < extent:
            self._wrong(f"index {at} is outside 0 .. {extent - 1}", env)
        return at

    def _value(self, expr: Expr, env: Env) -> int:
        return int(expr.evaluate(env, self._names.functions))

    def _wrong(self, message: str, env: Env) -> None:
        names = ", ".join(f"{n} = {v}" for n, v in env.items())
        fail("interp-view", f"{self._view}: {message}", self._span, notes=[f"where {names}"])


def _exprs(view: View) -> list[Expr]:
    found = list(view.reshape)
    for part in view.indices:
        if isinstance(part, Point):
            found.append(part.at)
        elif isinstance(part, Range):
            found += [part.start, part.extent]
    return found

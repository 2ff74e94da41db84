"""Piecewise quasi-affine functions, and maps between coordinates (the routes of channels)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshc.ir.affine.cond import BoolLike, Cond
from meshc.ir.affine.expr import CoordinateFunction, Expr, IntArray, IntLike, Var, as_expr
from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class Piecewise:
    """``{ value : condition; ... }``: the value of the first piece whose condition holds."""

    pieces: tuple[tuple[Cond, Expr], ...]

    @staticmethod
    def of(pieces: Iterable[tuple[Cond, Expr | int]]) -> Piecewise:
        """Normal form: no piece that cannot be reached by its text, equal neighbours joined."""
        kept: list[tuple[Cond, Expr]] = []
        for cond, value in pieces:
            if cond.is_false or (kept and kept[-1][0].is_true):
                continue
            value = as_expr(value)
            if kept and kept[-1][1] == value:
                kept[-1] = (kept[-1][0] | cond, value)
            else:
                kept.append((cond, value))
        return Piecewise(tuple(kept))

    @staticmethod
    def single(value: Expr | int) -> Piecewise:
        """The same expression everywhere."""
        return Piecewise.of([(Cond.true(), value)])

    @property
    def expr(self) -> Expr | None:
        """The expression, if there is a single unconditional piece."""
        if len(self.pieces) == 1 and self.pieces[0][0].is_true:
            return self.pieces[0][1]
        return None

    @cached_property
    def free_vars(self) -> frozenset[str]:
        """Every name that occurs in a value or a condition."""
        return frozenset(n for c, e in self.pieces for n in c.free_vars | e.free_vars)

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the coordinate functions that are called."""
        return frozenset(n for c, e in self.pieces for n in c.functions | e.functions)

    def substitute(self, values: Mapping[str, Expr | int]) -> Piecewise:
        """This function with names replaced, all at once."""
        return Piecewise.of((c.substitute(values), e.substitute(values)) for c, e in self.pieces)

    def where(self, cond: Cond) -> Piecewise:
        """This function on a smaller domain."""
        return Piecewise.of((cond & c, e) for c, e in self.pieces)

    def evaluate(
        self,
        env: Mapping[str, IntLike],
        functions: Mapping[str, CoordinateFunction] | None = None,
        default: int | None = None,
    ) -> IntLike:
        """The value, elementwise on arrays; ``default`` where no piece holds.

        Raises ``affine-undefined`` where no piece holds and there is no default, and
        ``affine-unbound`` for a name that is not given.
        """
        holds = [c.evaluate(env, functions) for c, _ in self.pieces]
        values = [e.evaluate(env, functions) for _, e in self.pieces]
        if any(isinstance(v, np.ndarray) for v in (*holds, *values)):
            return self._selected(holds, values, default)
        for held, value in zip(holds, values, strict=True):
            if held:
                return value
        return self._undefined() if default is None else default

    def __call__(self, value: IntLike, /) -> IntLike:
        """A function of one name, applied: makes it usable as a coordinate function."""
        name = next(iter(sorted(self.free_vars)), "p")
        result = self.evaluate({name: value})
        if isinstance(value, np.ndarray) and not isinstance(result, np.ndarray):
            return np.full(value.shape, result, np.int64)
        return result

    def _selected(
        self, holds: list[BoolLike], values: list[IntLike], default: int | None
    ) -> IntArray:
        masks = np.broadcast_arrays(*holds, *values)[: len(holds)]
        if default is None and not np.logical_or.reduce(masks).all():
            self._undefined()
        shaped = [np.broadcast_to(np.asarray(v, np.int64), masks[0].shape) for v in values]
        return np.select([m.astype(bool) for m in masks], shaped, default or 0)

    def _undefined(self) -> int:
        fail("affine-undefined", f"no piece of '{self}' holds at the point asked for")

    def __str__(self) -> str:
        if self.expr is not None:
            return str(self.expr)
        return "{ " + "; ".join(f"{e} : {c}" for c, e in self.pieces) + " }"


@dataclass(frozen=True)
class MapPiece:
    """One branch of a map: where ``domain`` holds, to ``outputs``."""

    outputs: tuple[Expr, ...]
    domain: Cond


@dataclass(frozen=True)
class AffineMap:
    """``{ [y, x] -> [y, x - 1] : x >= 1; ... }``: a relation between coordinate tuples.

    The relation is the union of its pieces. An output may be a *range name*, a name that starts
    with ``_`` and stands alone: it takes every value its piece's condition allows, which is how a
    multicast is written, ``{ [y, x] -> [y, _x] : x = 0 and 1 <= _x and _x < 8 }``. Other names
    that are no inputs are run-time scalars.
    """

    inputs: tuple[str, ...]
    pieces: tuple[MapPiece, ...]

    @staticmethod
    def of(inputs: Iterable[str], pieces: Iterable[tuple[Iterable[Expr | int], Cond]]) -> AffineMap:
        """Normal form: pieces with a false condition dropped, equal outputs joined.

        Raises ``bad-affine`` when pieces differ in length, an input repeats, or a range name is
        used other than alone.
        """
        names = tuple(inputs)
        merged: dict[tuple[Expr, ...], Cond] = {}
        for outputs, cond in pieces:
            key = tuple(as_expr(e) for e in outputs)
            if not cond.is_false:
                merged[key] = merged[key] | cond if key in merged else cond
        result = AffineMap(names, tuple(MapPiece(k, c) for k, c in merged.items()))
        result._check()
        return result

    def _check(self) -> None:
        if len(set(self.inputs)) != len(self.inputs):
            fail("bad-affine", "a map names an input twice", notes=[str(self)])
        if len({len(p.outputs) for p in self.pieces}) > 1:
            fail("bad-affine", "pieces of a map have different numbers of outputs")
        for piece in self.pieces:
            bare = [r for r in map(range_name, piece.outputs) if r]
            used = [n for e in piece.outputs for n in e.free_vars if n.startswith("_")]
            free = [n for n in piece.domain.free_vars if n.startswith("_")]
            if len(set(bare)) < len(bare) or len(used) > len(bare) or set(free) - set(bare):
                fail(
                    "bad-affine",
                    "a range name (one that starts with '_') must be one whole output of its piece",
                    help="write the range as the output itself: [y, _x] : x = 0 and _x >= 1",
                )

    @property
    def arity(self) -> int:
        """The number of outputs (0 for a map without pieces)."""
        return len(self.pieces[0].outputs) if self.pieces else 0

    @cached_property
    def free_vars(self) -> frozenset[str]:
        """Run-time scalars: names that are neither inputs nor range names."""
        names = {n for p in self.pieces for e in p.outputs for n in e.free_vars}
        names |= {n for p in self.pieces for n in p.domain.free_vars}
        return frozenset(n for n in names - set(self.inputs) if not n.startswith("_"))

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the coordinate functions that are called."""
        names = {n for p in self.pieces for e in p.outputs for n in e.functions}
        return frozenset(names | {n for p in self.pieces for n in p.domain.functions})

    def substitute(self, values: Mapping[str, Expr | int]) -> AffineMap:
        """This map with run-time scalars replaced (inputs and range names are left alone)."""
        bound = {n: v for n, v in values.items() if n in self.free_vars}
        return AffineMap.of(
            self.inputs,
            (
                ([e.substitute(bound) for e in p.outputs], p.domain.substitute(bound))
                for p in self.pieces
            ),
        )

    def where(self, cond: Cond) -> AffineMap:
        """The map on the inputs that satisfy ``cond`` (over input names and scalars)."""
        return AffineMap.of(self.inputs, ((p.outputs, p.domain & cond) for p in self.pieces))

    def pairs(
        self,
        shape: tuple[int, ...],
        env: Mapping[str, IntLike] | None = None,
        functions: Mapping[str, CoordinateFunction] | None = None,
    ) -> tuple[IntArray, IntArray]:
        """All ``(source, target)`` points within a box of extents ``shape``.

        Returns two arrays of shape ``[n, inputs]`` and ``[n, outputs]``, sorted by source, then
        target; of a map without pieces both are ``[0, inputs]``. A target outside the box is kept
        (whether that may be is the caller's question); a range name runs over the extent of its
        output's position.
        """
        found = [self._piece_pairs(p, shape, env or {}, functions) for p in self.pieces]
        width = len(self.inputs)
        rows = np.concatenate(found) if found else np.empty((0, 2 * width), np.int64)
        rows = np.unique(rows, axis=0)
        return rows[:, :width], rows[:, width:]

    def _piece_pairs(
        self,
        piece: MapPiece,
        shape: tuple[int, ...],
        env: Mapping[str, IntLike],
        functions: Mapping[str, CoordinateFunction] | None,
    ) -> IntArray:
        ranges = [(r, i) for i, e in enumerate(piece.outputs) if (r := range_name(e))]
        names = (*self.inputs, *(r for r, _ in ranges))
        extents = (*shape, *(shape[i] for _, i in ranges))
        axes = [
            _allowed(piece.domain, name, extent, env, functions)
            for name, extent in zip(names, extents, strict=True)
        ]
        grid = dict(zip(names, np.ix_(*axes), strict=True))
        held = piece.domain.evaluate({**env, **grid}, functions)
        picked = np.nonzero(np.broadcast_to(held, [len(axis) for axis in axes]))
        where = [axis[i] for axis, i in zip(axes, picked, strict=True)]
        point = {**env, **dict(zip(names, where, strict=True))}
        outputs = [e.evaluate(point, functions) for e in piece.outputs]
        columns = [*where[: len(self.inputs)], *outputs]
        flat = [np.broadcast_to(np.asarray(c, np.int64), where[0].shape) for c in columns]
        return np.stack(flat, axis=1)

    def __str__(self) -> str:
        if not self.pieces:
            return f"{{ [{', '.join(self.inputs)}] }}"
        return "{ " + "; ".join(map(self._piece_text, self.pieces)) + " }"

    def _piece_text(self, piece: MapPiece) -> str:
        arrow = f"[{', '.join(self.inputs)}] -> [{', '.join(map(str, piece.outputs))}]"
        return arrow if piece.domain.is_true else f"{arrow} : {piece.domain}"


def _allowed(
    domain: Cond,
    name: str,
    extent: int,
    env: Mapping[str, IntLike],
    functions: Mapping[str, CoordinateFunction] | None,
) -> IntArray:
    """Positions of an axis that the conditions on it alone admit: keeps the grid of pairs small,
    which for a multicast would grow with the square of the axis."""
    places = np.arange(extent)
    here = {**env, name: places}
    held: BoolLike = False
    for clause in domain.clauses:
        holds: BoolLike = True
        for constraint in clause:
            if constraint.expr.free_vars <= here.keys():
                holds = holds & constraint.evaluate(here, functions)
        held = held | holds
    admitted: IntArray = places[np.broadcast_to(held, places.shape)]
    return admitted


def range_name(output: Expr) -> str | None:
    """The range name that ``output`` is, if it is one."""
    if len(output.terms) == 1 and not output.constant and output.terms[0][1] == 1:
        atom = output.terms[0][0]
        if isinstance(atom, Var) and atom.name.startswith("_"):
            return atom.name
    return None

"""Numbers of several loop iterations at once.

A layout places thousands of PEs with a few statements. Its loops are evaluated for many iterations
together: a number that differs between them is one array, a :class:`Lanes`, in the place of the
Python number. Arithmetic and comparisons give lanes again; what is defined for one number alone,
as all arithmetic of floats is, goes through :func:`each`. Whatever needs *the* number, a branch
above all, raises :class:`Split`; the iterations are then evaluated in groups that agree on it.
So nothing can be decided for an iteration that it would not decide by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

LIMIT = 1 << 62


class Ungroupable(Exception):
    """These iterations have to be evaluated one by one."""


class Points:
    """The iterations that are evaluated at once, inside of those of an outer loop.

    ``within`` holds for each point the number of the outer point it belongs to.
    """

    __slots__ = ("count", "outer", "within")

    def __init__(self, outer: Points | None, within: Any) -> None:
        self.outer, self.within, self.count = outer, within, len(within)

    def lifted(self, values: Any, level: Points) -> Any:
        """``values``, one for each point of ``level``, repeated for the points inside of it."""
        if level is self:
            return values
        if self.outer is None:
            raise Ungroupable
        return self.outer.lifted(values, level)[self.within]

    def encloses(self, other: Points | None) -> bool:
        """Whether ``other`` is these points or inside of them."""
        while other is not None and other is not self:
            other = other.outer
        return other is self


class Split(Exception):
    """The iterations at ``points`` differ in ``values``, which something depends on."""

    def __init__(self, points: Points, values: Any) -> None:
        self.points, self.values = points, values

    def groups(self) -> list[Any]:
        """The numbers of the points, by equal values."""
        if self.values.dtype == bool:
            return [np.flatnonzero(self.values), np.flatnonzero(~self.values)]
        return alike([self.values], len(self.values))


def lanes(points: Points, values: Any) -> Any:
    """``values``, one for each point, as a number of the evaluator; a plain one when all agree."""
    if values.dtype == np.float64:
        agree = (_exact(values) == _exact(values[:1])).all()
        return values[0].item() if agree else Lanes(points, values, math.nan, math.nan)
    low, high = values.min().item(), values.max().item()
    return low if low == high else Lanes(points, values, int(low), int(high))


_KINDS = {"b": bool, "i": int, "f": float}


class Lanes:
    """Numbers that are not all equal, one for each of some points.

    To ``isinstance`` it is what it stands for, an int, a bool or a float. ``low`` and ``high`` are
    the least and the greatest integer, NaN for floats. Raises :class:`Ungroupable` where 64 bits
    could be too few.
    """

    __slots__ = ("high", "low", "points", "values")

    def __init__(self, points: Points, values: Any, low: float, high: float) -> None:
        self.points, self.values, self.low, self.high = points, values, low, high

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return _KINDS[self.values.dtype.kind]

    def _split(self) -> NoReturn:
        raise Split(self.points, self.values)

    def __bool__(self) -> bool:
        truth = self.values != 0
        if not truth.all():
            raise Split(self.points, truth)
        return True

    def __index__(self) -> int:
        self._split()

    __int__ = __index__

    def __float__(self) -> float:
        self._split()

    def __hash__(self) -> int:
        self._split()

    def __str__(self) -> str:
        self._split()

    def __format__(self, spec: str) -> str:
        self._split()

    # --- arithmetic ---

    def __add__(self, other: Any) -> Any:
        return _combined(self, other, np.add, lambda a, b: (a[0] + b[0], a[1] + b[1]))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _combined(self, other, np.subtract, lambda a, b: (a[0] - b[1], a[1] - b[0]))

    def __rsub__(self, other: Any) -> Any:
        return _combined(other, self, np.subtract, lambda a, b: (a[0] - b[1], a[1] - b[0]))

    def __mul__(self, other: Any) -> Any:
        return _combined(self, other, np.multiply, _products)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _combined(self, other, np.floor_divide, _divisible)

    def __rfloordiv__(self, other: Any) -> Any:
        return _combined(other, self, np.floor_divide, _divisible)

    def __mod__(self, other: Any) -> Any:
        return _combined(self, other, np.remainder, _divisible)

    def __rmod__(self, other: Any) -> Any:
        return _combined(other, self, np.remainder, _divisible)

    def __and__(self, other: Any) -> Any:
        return _combined(self, other, np.bitwise_and, _wider)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return _combined(self, other, np.bitwise_or, _wider)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return _combined(self, other, np.bitwise_xor, _wider)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Any:
        return _combined(self, other, np.left_shift, _shifted)

    def __rlshift__(self, other: Any) -> Any:
        return _combined(other, self, np.left_shift, _shifted)

    def __rshift__(self, other: Any) -> Any:
        return _combined(self, other, np.right_shift, _shiftable)

    def __rrshift__(self, other: Any) -> Any:
        return _combined(other, self, np.right_shift, _shiftable)

    def __neg__(self) -> Any:
        return lanes(self.points, -self.values) if isinstance(self, float) else 0 - self

    def __invert__(self) -> Any:
        return -1 - self

    def __abs__(self) -> Any:
        return lanes(self.points, np.abs(_integers(self.values)))

    # --- comparisons ---

    def __eq__(self, other: object) -> Any:
        return _compared(self, other, np.equal)

    def __ne__(self, other: object) -> Any:
        return _compared(self, other, np.not_equal)

    def __lt__(self, other: Any) -> Any:
        return _compared(self, other, np.less)

    def __le__(self, other: Any) -> Any:
        return _compared(self, other, np.less_equal)

    def __gt__(self, other: Any) -> Any:
        return _compared(self, other, np.greater)

    def __ge__(self, other: Any) -> Any:
        return _compared(self, other, np.greater_equal)


def values_at(points: Points, number: Any) -> Any:
    """A number of the evaluator as an array, one for each of ``points``."""
    if type(number) is Lanes:
        return points.lifted(number.values, number.points)
    return np.full(points.count, number)


def each(function: Callable[..., Any], *numbers: Any) -> Any:
    """``function`` of numbers of the evaluator, called once for each combination that there is.

    The function depends on its arguments alone. Raises Ungroupable when its results are not all
    ints, all bools or all floats.
    """
    several = [n for n in numbers if type(n) is Lanes]
    if not several:
        return function(*numbers)
    points = _innermost(several)
    arrays = [values_at(points, n) for n in numbers]
    groups = alike(arrays, points.count)
    results = [function(*(values[group[0]].item() for values in arrays)) for group in groups]
    kind = type(results[0])
    if kind not in _KINDS.values() or any(type(result) is not kind for result in results):
        raise Ungroupable
    if kind is int and not all(-LIMIT < result < LIMIT for result in results):
        raise Ungroupable
    values = np.empty(points.count, np.int64 if kind is int else kind)
    for group, result in zip(groups, results, strict=True):
        values[group] = result
    return lanes(points, values)


def alike(arrays: Sequence[Any], count: int) -> list[Any]:
    """The positions below ``count``, by what all ``arrays`` have there, to the bit."""
    numbers = np.zeros(count, np.int64)
    for values in arrays:
        _, found = np.unique(_exact(values), return_inverse=True)
        numbers = numbers * (int(found.max()) + 1) + found.reshape(-1)
        numbers = np.unique(numbers, return_inverse=True)[1].reshape(-1)
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


def _exact(values: Any) -> Any:
    """What tells numbers apart: of floats the bits, for which -0.0 is not 0.0, and NaN is NaN."""
    return values.view(np.int64) if values.dtype == np.float64 else values


def _innermost(several: Sequence[Lanes]) -> Points:
    """The points of the lanes that lie inside of all others."""
    found = several[0].points
    for one in several[1:]:
        found = one.points if found.encloses(one.points) else found
    return found


def _integers(values: Any) -> Any:
    return values.astype(np.int64) if values.dtype == bool else values


def _operands(left: Any, right: Any) -> tuple[Points, Any, Any]:
    """The points of the inner operand, and what both are there."""
    points = _innermost([n for n in (left, right) if type(n) is Lanes])
    arrays = (
        _integers(points.lifted(n.values, n.points)) if type(n) is Lanes
        else n if isinstance(n, float) else int(n)
        for n in (left, right)
    )  # fmt: skip
    return (points, *arrays)  # type: ignore[return-value]


Bounds = tuple[Any, Any]


def _bounds(number: Any) -> Bounds:
    if type(number) is Lanes:
        return number.low, number.high
    return (math.nan, math.nan) if isinstance(number, float) else (int(number), int(number))


def _combined(left: Any, right: Any, apply: Any, bounds: Callable[[Bounds, Bounds], Bounds]) -> Any:
    """``apply(left, right)`` where the operands and ``bounds`` of the result fit 64 bits."""
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return NotImplemented
    a, b = _bounds(left), _bounds(right)
    if not all(-LIMIT < n < LIMIT for n in (*a, *b, *bounds(a, b))):
        raise Ungroupable
    points, one, other = _operands(left, right)
    return lanes(points, apply(one, other))


def _compared(left: Lanes, right: Any, apply: Any) -> Any:
    if not isinstance(right, int | float):
        return NotImplemented
    if isinstance(left, float) != isinstance(right, float):
        left._split()
    if isinstance(right, int) and not all(-LIMIT < n < LIMIT for n in _bounds(right)):
        raise Ungroupable
    points, one, other = _operands(left, right)
    return lanes(points, apply(one, other))


def _wider(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _products(a: Bounds, b: Bounds) -> Bounds:
    corners = [i * j for i in a for j in b]
    return min(corners), max(corners)


def _divisible(a: Bounds, b: Bounds) -> Bounds:
    if b[0] <= 0 <= b[1]:
        raise Ungroupable
    return _wider(a, b)


def _shiftable(a: Bounds, b: Bounds) -> Bounds:
    if not 0 <= b[0] <= b[1] < 63:
        raise Ungroupable
    return a


def _shifted(a: Bounds, b: Bounds) -> Bounds:
    _shiftable(a, b)
    return _products(a, (1 << b[0], 1 << b[1]))

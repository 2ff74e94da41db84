"""Named dims of followed tensors: found out as a program is read, and told apart by identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

BATCH, ROWS, WIDTH, WORDS, HEADS, KEYS, LANES, FEATURES = "B", "L", "E", "V", "H", "G", "D", "F"
"""Roles, which are what a model calls dims; there may be several dims of a role."""
REPEATED = "repeated"
"""The role of an axis along which a tensor is the same."""
_GIVEN = (BATCH, ROWS, REPEATED)


class Apart(Exception):
    """Two dims that would have to be one cannot be."""


@dataclass(eq=False)
class Dim:
    """A dim of ``extent`` elements. ``turned`` is what stands in its place once it is known better:
    the dim that it is the same as, or those that it is made of, outermost first."""

    extent: int
    role: str = FEATURES
    turned: tuple[Dim, ...] = ()


Axis = tuple[Dim, ...]
"""The dims of an axis, outermost first; none where its extent is one and it has no meaning."""


def settled(dims: Iterable[Dim]) -> Axis:
    """What ``dims`` are known to be by now."""
    return tuple(one for dim in dims for one in (settled(dim.turned) if dim.turned else (dim,)))


def extent(dims: Iterable[Dim]) -> int:
    """The elements along ``dims``."""
    return prod(dim.extent for dim in dims)


def call(dims: Iterable[Dim], role: str) -> None:
    """Say that ``dims`` have ``role``, as far as they have none."""
    for dim in settled(dims):
        if dim.role == FEATURES:
            dim.role = role


def unite(left: Sequence[Dim], right: Sequence[Dim]) -> None:
    """Make both the same dims. Raises :class:`Apart` where they cannot be."""
    one, other = settled(left), settled(right)
    while one and other:
        first, second = one[0], other[0]
        if first.extent > second.extent:
            _cut(first, second.extent)
        elif first.extent < second.extent:
            _cut(second, first.extent)
        else:
            if first is not second:
                _unite(first, second)
            one, other = one[1:], other[1:]
        one, other = settled(one), settled(other)
    if one or other:
        raise Apart


def _unite(first: Dim, second: Dim) -> None:
    alike = first.role == second.role == REPEATED
    if not alike and (first.role in _GIVEN or second.role in _GIVEN):
        raise Apart
    if alike or first.role == FEATURES:
        first.turned = (second,)
    elif second.role in (FEATURES, first.role):
        second.turned = (first,)
    else:
        raise Apart


def _cut(dim: Dim, outer: int) -> None:
    """Cut ``dim`` into ``outer`` and the rest. Raises :class:`Apart`."""
    if dim.extent % outer or dim.role != FEATURES or outer == 1:
        raise Apart
    dim.turned = (Dim(outer), Dim(dim.extent // outer))


def regrouped(dims: Sequence[Dim], sizes: Sequence[int]) -> tuple[Axis, ...]:
    """``dims``, in row-major order, as axes of ``sizes``; a dim is cut where an axis ends within
    it. Raises :class:`Apart` where that cannot be."""
    left = list(settled(dims))
    found: list[Axis] = []
    for size in sizes:
        axis: list[Dim] = []
        if size == 1:
            axis = [left.pop(0)] if left and left[0].extent == 1 else []
        while extent(axis) < size:
            if not left:
                raise Apart
            dim, more = left.pop(0), size // extent(axis)
            if dim.extent > more:
                _cut(dim, more)
                dim, rest = dim.turned
                left.insert(0, rest)
            axis.append(dim)
        if extent(axis) != size:
            raise Apart
        found.append(tuple(axis))
    if extent(left) != 1:
        raise Apart
    return (*found[:-1], (*found[-1], *left))

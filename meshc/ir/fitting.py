"""Whether the views of a microkernel call have the shapes and element types that it declares.

Extents are expressions in loop variables and run-time scalars. Two of them are equal when their
difference is 0 in canonical form, which they are when the same expression made them; what may or
may not be equal, depending on the run, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from meshc.ir.affine import Expr
from meshc.ir.declared import Dim, Operand
from meshc.ir.types import DType
from meshc.support.shared import shared

Shape = tuple[Expr, ...]
Extents = dict[tuple[str, int], Expr]
"""The extent that a name has, for names of several dims that of each."""

_MOST_DIMS = 16
_ONE = Expr.const(1)


@dataclass(frozen=True)
class Misfit:
    """The operand, by its place, that does not fit those before it, and why."""

    place: int
    words: str


@shared
def misfit(
    declared: tuple[Operand, ...], shapes: tuple[Shape, ...], elements: tuple[str, ...]
) -> Misfit | None:
    """The first operand that does not fit what is declared, or None."""
    for place, (operand, element) in enumerate(zip(declared, elements, strict=True)):
        if operand.element not in (element, _class_of(element)):
            wanted = operand.element or "a float"
            return Misfit(place, f"'{operand.name}' has elements of {element}, not of {wanted}")
    counts = list(_counts(declared, shapes[0])) if shapes else []
    for place, (operand, shape) in enumerate(zip(declared, shapes, strict=True)):
        counts = [c for c in counts if _rank(operand, c) == len(shape)]
        if not counts:
            return Misfit(place, f"'{operand.name}' has {_dims(len(shape))}: {shape_text(shape)}")
    return _extents(declared, shapes, counts[0]) if counts else None


def _class_of(element: str) -> str:
    """What a declaration calls elements of this type."""
    if element == "i32":
        return element
    return "code" if DType(element).coded else ""


def shape_text(shape: Shape) -> str:
    """A shape in brackets."""
    return f"[{', '.join(map(str, shape))}]"


def _counts(declared: Sequence[Operand], first: Shape) -> Iterator[Mapping[str, int]]:
    """Every way in which names of several dims can stand for so many."""
    names = dict.fromkeys(d.name for o in declared for d in o.dims if d.many)
    most = min(len(first), _MOST_DIMS)
    for chosen in product(range(most + 1), repeat=len(names)):
        yield dict(zip(names, chosen, strict=True))


def _rank(operand: Operand, counts: Mapping[str, int]) -> int:
    return sum(counts[d.name] if d.many else 1 for d in operand.dims)


def _extents(
    declared: Sequence[Operand], shapes: Sequence[Shape], counts: Mapping[str, int]
) -> Misfit | None:
    """The first operand with an extent other than one before it has by the same name."""
    known: Extents = {}
    owners: dict[tuple[str, int], str] = {}
    for place, (operand, shape) in enumerate(zip(declared, shapes, strict=True)):
        for (dim, part), extent in zip(_spread(operand, counts), shape, strict=True):
            key = (dim.name, part)
            if dim.repeats and extent == _ONE:
                continue
            if dim.name and key not in known:
                whole = _divided(extent, dim.factor)
                if whole is None:
                    return Misfit(place, f"{_own(operand, shape)}: {extent} is not {dim}")
                known[key], owners[key] = whole, operand.name
            wanted = known[key] * dim.factor if dim.name else Expr.const(dim.factor)
            if extent != wanted:
                said = f" as in '{owners[key]}'" if dim.name else ""
                may = "" if (extent - wanted).is_const else " (they may differ in some run)"
                words = f"{_own(operand, shape)}: {dim} is {wanted}{said}, not {extent}{may}"
                return Misfit(place, words)
    return None


def _own(operand: Operand, shape: Shape) -> str:
    return f"'{operand.name}' is {shape_text(shape)}"


def _spread(operand: Operand, counts: Mapping[str, int]) -> Iterator[tuple[Dim, int]]:
    """A declared dim for each dim of the view, and which of several it is."""
    for dim in operand.dims:
        yield from ((dim, part) for part in range(counts[dim.name] if dim.many else 1))


def _divided(extent: Expr, factor: int) -> Expr | None:
    """``extent / factor``, or None where that is not known to be whole."""
    if extent.constant % factor or any(c % factor for _, c in extent.terms):
        return None
    return Expr.sum(((a, c // factor) for a, c in extent.terms), extent.constant // factor)


def _dims(count: int) -> str:
    return "1 dim" if count == 1 else f"{count} dims"

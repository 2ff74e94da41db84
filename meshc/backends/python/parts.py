"""Parts of a loop body that do the same to the same arrays in every run, as functions.

What such a part does follows from the loop variables alone: no window, guard or parameter of it
depends on a run-time scalar. The runtime records it once for each value and repeats it then.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from meshc.backends.python.exchanges import Exchange
from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.ops.tile import Compute
from meshc.ir.views import Point, Range, View

_FEWEST = 4  # statements that are worth a function
# what these do does not follow from arrays alone
_BY_CONTENT = frozenset({"rope", "ring_push", "ring_oldest"})

Item = Op | Exchange


@dataclass(frozen=True)
class Part:
    """Consecutive statements of a loop body, and the loop variables that they depend on."""

    items: tuple[Item, ...]
    variables: tuple[str, ...]


def parts(
    items: Sequence[Item], loops: Sequence[str], coordinates: frozenset[str]
) -> list[Item | Part]:
    """``items`` with the longest stretches that depend on ``loops`` alone taken together."""
    found: list[Item | Part] = []
    stretch: list[Item] = []

    def close() -> None:
        names = set[str]().union(*(_names(item, coordinates) for item in stretch))
        if len(stretch) >= _FEWEST:
            found.append(Part(tuple(stretch), tuple(n for n in loops if n in names)))
        else:
            found.extend(stretch)
        stretch.clear()

    for item in items:
        if loops and _fixed(item) and _names(item, coordinates) <= set(loops):
            stretch.append(item)
        else:
            close()
            found.append(item)
    close()
    return found


def _fixed(item: Item) -> bool:
    if isinstance(item, Exchange):
        return True
    return isinstance(item, Compute) and item.kernel not in _BY_CONTENT


def _names(item: Item, coordinates: frozenset[str]) -> Set[str]:
    """Loop variables and scalars that ``item`` depends on."""
    if isinstance(item, Exchange):
        return _of_view(item.view) - coordinates | set(item.variables(coordinates))
    names = set[str]() if item.when is None else set(item.when.free_vars)
    for view in item.views():
        names |= _of_view(view)
    if isinstance(item, Compute):
        names = names.union(*(v.free_vars for v in item.params.values() if isinstance(v, Expr)))
    return names - coordinates


def _of_view(view: View) -> set[str]:
    values = list(view.reshape)
    for index in view.indices:
        values += [index.at] if isinstance(index, Point) else []
        values += [index.start, index.extent] if isinstance(index, Range) else []
    return set[str]().union(*(value.free_vars for value in values))

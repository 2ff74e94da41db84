"""Proofs about affine objects with the integer set library: names in, witness points out.

Only this module and :mod:`meshc.analysis.proofs.islsets` use islpy. Every question is asked about
conditions and maps of ``meshc.ir.affine`` under a :class:`Scope`; the answer is ``None`` (nothing
wrong) or a named point that shows the fault. isl proves and never constructs what is printed: no
isl object leaves this module.

Each question may use at most ``MAX_OPERATIONS`` elementary steps of isl (a few seconds); beyond
that it ends with ``proof-too-hard`` rather than hanging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

import islpy

from meshc.analysis.proofs.islsets import SETS, set_of
from meshc.analysis.proofs.isltext import Writer, lexicographically_less, set_text
from meshc.analysis.proofs.remembered import remembered
from meshc.ir.affine import AffineMap, Cond, Piecewise
from meshc.support.diagnostics import fail

MAX_OPERATIONS = 8_000_000

Point = dict[str, int]

_BUDGET_SPENT = "maximal number of operations"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Scope:
    """What is known: ``bounds`` of coordinates, loops and scalars; ``functions`` by name.

    A coordinate function is piecewise in one name and expanded wherever it is called; outside its
    pieces a comparison that calls it does not hold.
    """

    bounds: Cond = field(default_factory=Cond.true)
    functions: Mapping[str, Piecewise] = field(default_factory=dict)

    def within(self, cond: Cond) -> Scope:
        """This scope with one more condition known."""
        return Scope(self.bounds & cond, self.functions)


EVERYWHERE = Scope()


# -- conditions ---------------------------------------------------------------------------------
@remembered
def find_point(cond: Cond, names: Sequence[str] = (), scope: Scope = EVERYWHERE) -> Point | None:
    """The least point where ``cond`` holds within the bounds, or None when there is none.

    The point gives every name of ``names``, ``cond`` and the bounds, ``names`` first.
    """
    dims = _names(names, cond, scope.bounds)
    return _ask(lambda: _least(_set(dims, cond & scope.bounds, scope), dims))


@remembered
def is_empty(cond: Cond, scope: Scope = EVERYWHERE) -> bool:
    """Whether ``cond`` holds nowhere within the bounds."""
    dims = _names((), cond, scope.bounds)
    return _ask(lambda: bool(_set(dims, cond & scope.bounds, scope).is_empty()))


@remembered
def difference_point(
    left: Cond, right: Cond, names: Sequence[str] = (), scope: Scope = EVERYWHERE
) -> Point | None:
    """The least point within the bounds where ``left`` holds and ``right`` does not."""
    dims = _names(names, left, right, scope.bounds)

    def search() -> Point | None:
        inside = _set(dims, left & scope.bounds, scope)
        return _least(inside.subtract(_set(dims, right, scope)), dims)

    return _ask(search)


@remembered
def uncovered_point(
    left: Cond, right: Cond, hidden: Sequence[str], scope: Scope = EVERYWHERE
) -> Point | None:
    """The least point within the bounds where ``left`` holds and ``right`` does for no value of the
    names that are ``hidden``."""
    names = sorted((left.free_vars | right.free_vars | scope.bounds.free_vars) - {*hidden})
    dims, every = tuple(names), (*names, *hidden)

    def search() -> Point | None:
        covered = _project(_set(every, right, scope), every, dims)
        return _least(_set(dims, left & scope.bounds, scope).subtract(covered), dims)

    return _ask(search)


def is_subset(left: Cond, right: Cond, scope: Scope = EVERYWHERE) -> bool:
    """Whether ``left`` implies ``right`` within the bounds."""
    return difference_point(left, right, (), scope) is None


def mismatch_point(
    left: Cond, right: Cond, names: Sequence[str] = (), scope: Scope = EVERYWHERE
) -> Point | None:
    """The least point within the bounds where exactly one of the two holds."""
    found = difference_point(left, right, names, scope)
    return found if found is not None else difference_point(right, left, names, scope)


def is_equal(left: Cond, right: Cond, scope: Scope = EVERYWHERE) -> bool:
    """Whether both hold at the same points within the bounds."""
    return mismatch_point(left, right, (), scope) is None


@remembered
def count(cond: Cond, names: Sequence[str], scope: Scope = EVERYWHERE) -> int:
    """The number of points over ``names`` where ``cond`` holds within the bounds.

    Bounded names that are not counted are existential. Raises ``unbounded-set`` when infinite.
    """
    dims = _names(names, cond, scope.bounds)

    def search() -> int:
        points = _project(_set(dims, cond & scope.bounds, scope), dims, names)
        if not points.is_bounded():
            fail("unbounded-set", f"'{cond}' holds at infinitely many points over {list(names)}")
        text = points.count_val().to_str()
        if text is None:  # how islpy shows that the budget ran out inside a count
            raise islpy.Error(_BUDGET_SPENT)
        return int(text)

    return _ask(search)


# -- functions ----------------------------------------------------------------------------------
# -- maps ---------------------------------------------------------------------------------------
def target(name: str) -> str:
    """The name of an output coordinate in relations of maps: ``x`` becomes ``x'``."""
    return f"{name}'"


@dataclass(frozen=True)
class Link:
    """One pair of a map: where it starts, where it ends, and the scalars it holds for."""

    source: Point
    target: Point
    scalars: Point


@remembered
def map_difference(left: AffineMap, right: AffineMap, scope: Scope = EVERYWHERE) -> Link | None:
    """The least pair of ``left``, from a source within the bounds, that is not in ``right``."""
    dims = _map_dims(left, scope, right.free_vars)

    def search() -> Link | None:
        extra = _map_set(dims, left, scope).subtract(_map_set(dims, right, scope))
        return _link(_least(extra, dims.all), left.inputs)

    return _ask(search)


def map_mismatch(left: AffineMap, right: AffineMap, scope: Scope = EVERYWHERE) -> Link | None:
    """A pair that only one of the two maps has, or None when they are equal within the bounds."""
    found = map_difference(left, right, scope)
    return found if found is not None else map_difference(right, left, scope)


@remembered
def image_mismatch(
    relation: AffineMap, sources: Cond, targets: Cond, scope: Scope = EVERYWHERE
) -> Point | None:
    """A target in only one of ``targets`` and the map's image of ``sources``.

    ``targets`` is stated over the input names, which then mean output coordinates in order; the
    bounds hold for it as for ``sources``. Scalars are kept apart: equal for every value of theirs.
    """
    dims = _map_dims(relation, scope, sources.free_vars | targets.free_vars)
    base = (*dims.targets, *dims.scalars)

    def search() -> Point | None:
        image = _image(dims, relation, sources, scope)
        wanted = _target_set(dims, targets & scope.bounds, scope)
        found = _difference(image, wanted, base)
        return None if found is None else _unprimed(found)

    return _ask(search)


@remembered
def unmapped_point(relation: AffineMap, sources: Cond, scope: Scope = EVERYWHERE) -> Point | None:
    """A point of ``sources`` within the bounds that the map sends nowhere."""
    dims = _map_dims(relation, scope, sources.free_vars)
    base = (*dims.sources, *dims.scalars)

    def search() -> Point | None:
        defined = _project(_map_set(dims, relation, scope), dims.all, base)
        return _least(_set(base, sources & scope.bounds, scope).subtract(defined), base)

    return _ask(search)


def two_sources(relation: AffineMap, scope: Scope = EVERYWHERE) -> tuple[Link, Link] | None:
    """Two different sources within the bounds with one target for the same scalars."""
    return _collision(relation, scope, same="target")


def two_targets(relation: AffineMap, scope: Scope = EVERYWHERE) -> tuple[Link, Link] | None:
    """Two different targets of one source within the bounds, for the same scalars."""
    return _collision(relation, scope, same="source")


# -- sets ---------------------------------------------------------------------------------------
@remembered
def solve(dims: Sequence[str], formula: str, without: str = "1 = 0") -> Point | None:
    """The least point over ``dims`` where ``formula`` holds and ``without`` does not.

    Both are text for isl, as :class:`meshc.analysis.proofs.isltext.Writer` writes it for ``dims``.
    """

    def search() -> Point | None:
        points = _parsed(set_text(dims, formula))
        return _least(points.subtract(_parsed(set_text(dims, without))), dims)

    return _ask(search)


@lru_cache(SETS)
def _parsed(text: str) -> Any:
    """The set that ``text`` spells. isl never changes a set, so questions about the same guards and
    routes share it."""
    return islpy.Set(text)


def _set(dims: Sequence[str], cond: Cond, scope: Scope) -> Any:
    if not cond.functions:
        return set_of(tuple(dims), cond)
    return _parsed(set_text(dims, Writer(scope.functions, dims).cond(cond)))


def _names(first: Sequence[str], *objects: Cond | Piecewise) -> tuple[str, ...]:
    """``first``, then every other name that occurs, sorted."""
    rest = {n for o in objects for n in o.free_vars} - set(first)
    return (*first, *sorted(rest))


def _ask(question: Callable[[], _T]) -> _T:
    """Run ``question`` under the operation budget."""
    context = islpy.DEFAULT_CONTEXT
    context.reset_operations()
    context.set_max_operations(MAX_OPERATIONS)
    try:
        return question()
    except islpy.Error as error:
        if _BUDGET_SPENT not in str(error):
            raise
        fail(
            "proof-too-hard",
            "a question about guards or routes is too hard for the integer set library",
            help="use fewer alternatives and smaller divisors in guards, routes and layouts",
        )
    finally:
        context.set_max_operations(0)


def _least(points: Any, dims: Sequence[str]) -> Point | None:
    """The lexicographically least point, or some point where isl finds no least one."""
    if points.is_empty():
        return None
    pieces = (piece for piece in points.get_basic_sets() if not piece.is_empty())
    return dict(zip(dims, min(_least_coordinates(p, len(dims)) for p in pieces), strict=True))


def _least_coordinates(piece: Any, size: int) -> tuple[int, ...]:
    """The least point of one piece of a set.

    Alone and with explicit divisions, because isl's lexmin fails on some unions of strided sets;
    where it still finds nothing, or there is no least point, any point of the piece will do.
    """
    points = islpy.Set.from_basic_set(piece).compute_divs()
    try:
        point = points.lexmin().sample_point()
    except islpy.Error as error:
        if _BUDGET_SPENT in str(error):
            raise
        point = points.sample_point()
    if point.is_void():
        point = points.sample_point()
    values = (point.get_coordinate_val(islpy.dim_type.set, i) for i in range(size))
    return tuple(int(v.to_python()) for v in values)


def _project(points: Any, dims: Sequence[str], kept: Sequence[str]) -> Any:
    """Project onto ``kept``, in that order (they must be a subsequence of ``dims``)."""
    for i in reversed(range(len(dims))):
        if dims[i] not in kept:
            points = points.project_out(islpy.dim_type.set, i, 1)
    return points


def _difference(left: Any, right: Any, dims: Sequence[str]) -> Point | None:
    """The least point of one that is missing in the other, ``left`` first."""
    found = _least(left.subtract(right), dims)
    return found if found is not None else _least(right.subtract(left), dims)


# -- maps ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _MapDims:
    """Dimensions of a map as a set: sources, targets, then scalars."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    scalars: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.sources, *self.targets, *self.scalars)


def _map_dims(relation: AffineMap, scope: Scope, more: frozenset[str]) -> _MapDims:
    if relation.pieces and relation.arity != len(relation.inputs):
        fail("bad-affine", f"map '{relation}' must have as many outputs as inputs here")
    scalars = (relation.free_vars | scope.bounds.free_vars | more) - set(relation.inputs)
    targets = tuple(target(n) for n in relation.inputs)
    return _MapDims(relation.inputs, targets, tuple(sorted(scalars)))


def _map_set(dims: _MapDims, relation: AffineMap, scope: Scope) -> Any:
    writer = Writer(scope.functions, dims.all)
    formula = writer.relation(relation, dims.targets)
    return _parsed(set_text(dims.all, f"({formula}) and ({writer.cond(scope.bounds)})"))


def _image(dims: _MapDims, relation: AffineMap, sources: Cond, scope: Scope) -> Any:
    pairs = _map_set(dims, relation, scope).intersect(_set(dims.all, sources, scope))
    return _project(pairs, dims.all, (*dims.targets, *dims.scalars))


def _target_set(dims: _MapDims, cond: Cond, scope: Scope) -> Any:
    return _parsed(_target_text(dims, (*dims.targets, *dims.scalars), cond, scope))


def _target_text(dims: _MapDims, space: Sequence[str], cond: Cond, scope: Scope) -> str:
    """``cond`` over input names, read as a condition on the targets, in ``space``."""
    writer = Writer(scope.functions, space)
    for source, name in zip(dims.sources, dims.targets, strict=True):
        writer.ids[source] = writer.ids[name]
    return set_text(space, writer.cond(cond))


@remembered
def _collision(
    relation: AffineMap, scope: Scope, same: Literal["source", "target"]
) -> tuple[Link, Link] | None:
    """Two pairs that agree on one side and differ on the other."""
    dims = _map_dims(relation, scope, frozenset())
    shared, varying = (
        (dims.targets, dims.sources) if same == "target" else (dims.sources, dims.targets)
    )
    others = tuple(f"{n}~" for n in varying)  # no name of a user has a tilde
    space = (*varying, *others, *shared, *dims.scalars)

    def search() -> tuple[Link, Link] | None:
        first = Writer(scope.functions, space)
        differ = lexicographically_less(
            [first.ids[n] for n in varying], [first.ids[n] for n in others]
        )
        formula = _pair_formula(first, relation, dims, scope)
        second = Writer(scope.functions, space)
        second.ids |= {n: second.ids[o] for n, o in zip(varying, others, strict=True)}
        formula += f" and {_pair_formula(second, relation, dims, scope)} and ({differ})"
        point = _least(_parsed(set_text(space, formula)), space)
        if point is None:
            return None
        twin = {**point, **{n: point[o] for n, o in zip(varying, others, strict=True)}}
        links = _link(point, relation.inputs), _link(twin, relation.inputs)
        assert links[0] is not None and links[1] is not None
        return links[0], links[1]

    return _ask(search)


def _pair_formula(writer: Writer, relation: AffineMap, dims: _MapDims, scope: Scope) -> str:
    return f"({writer.relation(relation, dims.targets)}) and ({writer.cond(scope.bounds)})"


def _link(point: Point | None, inputs: Sequence[str]) -> Link | None:
    if point is None:
        return None
    targets = {n: point[target(n)] for n in inputs}
    ours = {*inputs, *(target(n) for n in inputs)}
    scalars = {n: v for n, v in point.items() if n not in ours and not n.endswith("~")}
    return Link({n: point[n] for n in inputs}, targets, scalars)


def _unprimed(point: Point) -> Point:
    return {name.removesuffix("'"): value for name, value in point.items()}

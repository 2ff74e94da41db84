"""What the values of a task are in C: elements of memory, registers, or formulas of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from meshc.backends.cuda.kernels.chunk_tiles import literal
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.spelling import (
    condition,
    flattened,
    simplified,
    spelled,
    unflattened,
)
from meshc.backends.cuda.tasks.storage import Storage, element_type
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import POSITION
from meshc.ir.core import Op
from meshc.ir.functions import FUNCTIONS
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import Range, View
from meshc.support.diagnostics import fail

Index = tuple[Expr, ...]

MOST_TERMS = 64
"""Ops that a formula spells at the most: one that reads a value twice spells what that is twice."""

_FORMULAS = "fill copy add mul div scale exp_sub larger at_least rms_scale inverse_rms likelihood"
_POINTWISE = frozenset(_FORMULAS.split())


def is_pointwise(kernel: str) -> bool:
    """Whether each element of what ``kernel`` gives is a formula of elements of its operands."""
    return kernel in _POINTWISE or kernel in FUNCTIONS


def constant(value: float) -> str:
    """A number as a constant of type float that any compiler reads."""
    return literal(float(value))


def _call(function: str, element: str, options: Mapping[str, object]) -> str:
    """A function of elements as the library has it (mc_functions.cuh): called like its op and the
    words of its options, with their numbers behind the element."""
    words = [option for option in options.values() if isinstance(option, str)]
    numbers = [constant(option) for option in options.values() if isinstance(option, float)]
    return f"mc::{'_'.join([function, *words])}({', '.join([element, *numbers])})"


@dataclass(frozen=True)
class Tile:
    """Rows of a cache in shared memory: ``name`` of their first value, ``lanes`` of each, those of
    the cache from lane ``begin`` on; the first is that of the token ``first``, and those from
    ``end`` on are zeros, whatever lies there. ``lane`` says where in a row a lane is. Rows may be
    ``coded``."""

    name: str
    lanes: int
    begin: int
    first: Expr
    end: Expr
    lane: Callable[[Expr], Expr]
    coded: bool = False


@dataclass(frozen=True)
class Taken:
    """Rows that a loop over ``var`` copies, those of which ``when`` holds."""

    rows: View
    var: str
    when: Cond | None


@dataclass
class Values:
    """The values of one task. ``ranges`` has the names that its indices are made of, ``arrays`` the
    values that lie in shared memory, ``registers`` those that a thread has an element of. A task
    that ``waits`` reads words with tags until their values are there. Of ``cached`` ones elements
    are as a cache has them, whatever their type; of those that are ``taken`` row by row, they are
    read where the rows are. Unless rows that somebody asks for are ``all_there``, those that are
    left out are zeros: where they would be is not looked at."""

    storage: Storage
    ops: Sequence[Op]
    ranges: dict[str, tuple[int, int]]
    waits: bool = False
    arrays: dict[Value, str] = field(default_factory=dict)
    registers: dict[Value, tuple[str, Index]] = field(default_factory=dict)
    tiles: dict[Value, Tile] = field(default_factory=dict)
    angles: dict[tile.Compute, tuple[str, str]] = field(default_factory=dict)
    terms: dict[Value, int] = field(default_factory=dict)
    digests: dict[Value, str] = field(default_factory=dict)
    cached: frozenset[Value] = frozenset()
    taken: Mapping[Value, Taken] = field(default_factory=dict)
    all_there: bool = False

    def __post_init__(self) -> None:
        self.reads: dict[Value, task.Need | task.Stream] = {}
        self.writers: dict[Value, list[tile.Compute]] = {}
        for op in self.ops:
            for one in _walk(op):
                if isinstance(one, (task.Need, task.Stream)):
                    self.reads[one.result] = one
                elif isinstance(one, tile.Compute):
                    self.writers.setdefault(one.views()[0].buffer, []).append(one)

    @contextmanager
    def within(self, **ranges: int) -> Iterator[None]:
        """What is written within may be of names that are 0 to below these."""
        known = dict(self.ranges)
        self.ranges |= {name: (0, max(count - 1, 0)) for name, count in ranges.items()}
        yield
        self.ranges.clear()
        self.ranges.update(known)

    # --- elements

    def element(self, view: View, index: Sequence[Expr]) -> str:
        """The element ``index`` of ``view`` as a float."""
        value, at = view.buffer, base(view, index)
        if value in self.registers:
            return self._of_register(value, at)
        if value in self.arrays:
            return self.array_element(value, at)
        if value in self.tiles:
            return self._of_tile(self.tiles[value], *at)
        if value in self.taken:
            return self._of_taken(self.taken[value], at)
        if value in self.reads:
            return self.storage.load(*self.source(value, at), self.ranges, self.waits)
        op = self.formula_of(value)
        if op is None:
            fail("cuda-graph", f"%{value.name} is no value of tasks that kernels have")
        return self.formula(op, at)

    def _of_taken(self, taken: Taken, index: Sequence[Expr]) -> str:
        found = self.element(taken.rows, index)
        if self.all_there or taken.when is None:
            return found
        there = condition(taken.when.substitute({taken.var: index[0]}), self.ranges)
        return f"({there} ? {found} : 0.0f)"

    def source(self, value: Value, index: Sequence[Expr]) -> tuple[Value, Index]:
        """Where in which buffer an element of what the task reads is."""
        view = self.reads[value].view
        return view.buffer, base(view, index)

    def words(self, value: Value) -> str:
        """How the library reads a value that the task needs, as a further argument, with a comma in
        front; nothing where its words have no tags."""
        buffer, index = self.source(value, [Expr.const(0)] * len(extents(View(value))))
        made = self.storage.words(buffer, index, self.ranges, self.waits)
        return f", {made}" if made else ""

    def array_element(self, value: Value, index: Sequence[Expr]) -> str:
        """An element of a value in shared memory."""
        assert isinstance(value.type, BufferType)
        return f"{self.arrays[value]}[{self.spelled(flattened(index, value.type.shape))}]"

    def _of_register(self, value: Value, index: Sequence[Expr]) -> str:
        """The element of ``value`` that the thread has, or of those one behind the other that it
        has of each index in a first dim. Raises ``cuda-graph`` for another one."""
        name, own = self.registers[value]
        first = index[: len(index) - len(own)]
        pairs = zip(index[len(first) :], own, strict=True)
        if any(self._simple(a) != self._simple(b) for a, b in pairs):
            fail("cuda-graph", f"a thread needs an element of %{value.name} that another one has")
        return f"{name}[{self.spelled(first[0])}]" if first else name

    def _simple(self, expr: Expr) -> Expr:
        return simplified(expr, self.ranges)

    def _of_tile(self, tile: Tile, row: Expr, lane: Expr) -> str:
        token, own = self.spelled(tile.first + row), self.spelled(tile.lane(lane) + tile.begin)
        if tile.coded:
            given = f"{tile.name}, {self.spelled(row)}, {token}, {own}"
            element = f"mc::CodedRows<{tile.lanes}>::element({given})"
            return f"({token} < {self.spelled(tile.end)} ? {element} : 0.0f)"
        swizzled = f"mc::Swizzle<{tile.lanes}>::lane({own}, {token})"
        at = f"({self.spelled(row)}) * {tile.lanes} + {swizzled}"
        return f"({token} < {self.spelled(tile.end)} ? mc::widen({tile.name}[{at}]) : 0.0f)"

    def spelled(self, expr: Expr) -> str:
        """``expr`` in C."""
        return spelled(expr, self.ranges)

    def formula_of(self, value: Value) -> tile.Compute | None:
        """The op by whose formula each element of ``value`` is known: it alone writes the value,
        and all of it, and not too much is computed anew by each who reads it."""
        writers = self.writers.get(value, [])
        if len(writers) != 1 or not is_pointwise(writers[0].kernel) or writers[0].when is not None:
            return None
        (op,) = writers
        out = op.views()[0]
        inside = any(view.buffer == value for view in op.views()[1:])
        if out.indices or inside or self._terms_of(value, op) > MOST_TERMS:
            return None
        return op

    def _terms_of(self, value: Value, op: tile.Compute) -> int:
        """How many ops the formula of ``value`` spells, each as often as it is read."""
        if value not in self.terms:
            given = [view.buffer for view in op.views()[1:]]
            formulas = [one for one in given if self.formula_of(one) is not None]
            self.terms[value] = 1 + sum(self.terms[one] for one in formulas)
        return self.terms[value]

    def formula(self, op: tile.Compute, index: Sequence[Expr]) -> str:
        """The element ``index`` of what ``op`` writes, whose first view may be reshaped."""
        out = op.views()[0]
        at = along(out, index) if out.reshape or out.order else tuple(index)
        return self.computed(op, at)

    def computed(self, op: tile.Compute, at: Sequence[Expr]) -> str:
        """The formula of the element ``at`` of the first view of ``op``, rounded to its type."""
        text = self._computed(op, at)
        value = op.views()[0].buffer
        if element_type(value) is DType.F32 and value not in self.cached:
            return text
        return f"mc::widen(mc::narrow<T>({text}))"

    def _computed(self, op: tile.Compute, at: Sequence[Expr]) -> str:
        _, *views = op.views()
        given: Mapping[str, object] = op.params
        rank = [len(view.shape()) for view in views]

        def operand(number: int, trailing: bool = False) -> str:
            own = at[len(at) - rank[number] :] if trailing else at[: rank[number]]
            return self.element(views[number], own)

        match op.kernel:
            case "fill":
                return constant(float(str(given["value"])))
            case "copy":
                return operand(0)
            case "add" | "mul":
                sign = "+" if op.kernel == "add" else "*"
                return f"({operand(0)} {sign} {operand(1, trailing=True)})"
            case "div":
                return f"({operand(0)} / {operand(1)})"
            case "scale":
                return f"({operand(0)} * {constant(float(str(given['factor'])))})"
            case "exp_sub":
                return f"mc::exp({operand(0)} - {operand(1)})"
            case "likelihood":
                scale = self.element(views[2], (*at[:-1], Expr.const(0)))
                return f"mc::likelihood({operand(0)}, {operand(1)}, {scale})"
            case "larger":
                return f"mc::larger({operand(0)}, {operand(1, trailing=True)})"
            case "at_least":
                return f"mc::larger({operand(0)}, {constant(float(str(given['value'])))})"
            case "rms_scale":
                squares = f"{operand(1)} / {constant(float(str(given['count'])))}"
                root = f"mc::inverse_root({squares} + {constant(float(str(given['eps'])))})"
                return f"({operand(0)} * {root} * {operand(2, trailing=True)})"
            case "inverse_rms":
                squares = f"{operand(0)} / {constant(float(str(given['count'])))}"
                return f"mc::inverse_root({squares} + {constant(float(str(given['eps'])))})"
            case name if name in FUNCTIONS:
                return _call(name, operand(0), given)
        fail("cuda-graph", f"there is no CUDA for tile.{op.kernel} on single elements")

    # --- what elements depend on

    def names(self, view: View) -> frozenset[str]:
        """The names on which ``view`` and what it is computed from depend."""
        return self._names(view, set())

    def _names(self, view: View, seen: set[Value]) -> frozenset[str]:
        found = view.free_vars
        value = view.buffer
        if value in seen:
            return found
        seen.add(value)
        if value in self.reads:
            return found | self.reads[value].view.free_vars
        for op in self.writers.get(value, ()):
            for one in op.views():
                found |= self._names(one, seen)
            if op.kernel == "rope":
                found |= {POSITION}
        return found

    def depends(self, view: View, values: frozenset[Value]) -> bool:
        """Whether ``view`` is computed from one of ``values``."""
        return bool(self.behind(view) & values)

    def behind(self, view: View, but: frozenset[Value] = frozenset()) -> set[Value]:
        """The values from which ``view`` is computed, its own among them; of those in ``but`` it is
        not asked what they are computed from."""
        found: set[Value] = set()
        work = [view.buffer]
        while work:
            value = work.pop()
            if value not in found:
                found.add(value)
                writers = () if value in but else self.writers.get(value, ())
                work += [v.buffer for op in writers for v in op.views()]
        return found

    def key(self, view: View) -> str:
        """A text that is the same for views of equal values, also of other tasks."""
        value = view.buffer
        text = View(value, view.indices, view.reshape, view.order)
        window = str(text).removeprefix(str(value))
        if value in self.reads:
            return f"({self.reads[value].view}){window}"
        return f"<{self._digest(value)}>{window}"

    def _digest(self, value: Value) -> str:
        """A digest of how ``value`` is computed: as a text it may be long, since it has what is
        read twice twice."""
        if value not in self.digests:
            parts = []
            for op in self.writers.get(value, ()):
                first, *rest = op.views()
                out = str(View(value, first.indices, first.reshape, first.order))
                keys = [self.key(v) for v in rest if v.buffer != value]
                given = ",".join(f"{k}={v}" for k, v in op.params.items())
                place = out.removeprefix(str(value))
                parts.append(f"{op.kernel}{{{given}}}{place}:{';'.join(keys)}")
            self.digests[value] = sha256("|".join(parts).encode()).hexdigest()
        return self.digests[value]


def taken_rows(ops: Sequence[Op]) -> dict[Value, Taken]:
    """Values of which a loop copies each row, or those that there are, from another value, and the
    rows of that one."""
    found = {}
    for loop in ops:
        if not isinstance(loop, tile.For) or len(loop.regions[0].ops) != 1:
            continue
        (op,) = loop.regions[0].ops
        if not isinstance(op, tile.Compute) or op.kernel != "copy":
            continue
        out, given = op.views()
        var, count = Expr.var(loop.var), extents(View(out.buffer))[0]
        own = out.indices == (Range(var, Expr.const(1)),) and loop.count == Expr.const(count)
        row = given.indices[0] if given.indices else None
        if own and isinstance(row, Range) and not (given.reshape or given.order):
            rows = Range(row.start - var, Expr.const(count))
            view = View(given.buffer, (rows, *given.indices[1:]))
            found[out.buffer] = Taken(view, loop.var, op.when)
    return found


def _walk(op: Op) -> list[Op]:
    return [op, *(one for region in op.regions for inner in region.ops for one in _walk(inner))]


def along(view: View, index: Sequence[Expr]) -> Index:
    """The index in ``view``, which is all of its buffer in another shape or order, of the element
    ``index`` of the buffer."""
    shape = extents(View(view.buffer, (), view.reshape))
    found = unflattened(flattened(index, view.buffer_type.shape), shape)
    return tuple(found[dim] for dim in view.order) if view.order else found


def extents(view: View) -> tuple[int, ...]:
    """The extents of a view that does not depend on the run."""
    return tuple(extent.constant for extent in view.shape())

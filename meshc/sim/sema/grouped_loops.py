"""Loops of a layout, evaluated for groups of iterations at once.

The loop variable stands for its values in all iterations (:mod:`lanes`). Where the body asks for
one number, a branch above all, its evaluation is given up and repeated for each group of iterations
that agree on it. In the end every group has run the body from beginning to end with the decisions
that each of its iterations takes by itself. What groups say of PEs is put aside and made together
(:class:`meshc.sim.sema.rectangle.LayoutInfo`). A loop for which that is not possible, because an
iteration needs the result of another, because it is left early or because of an error, is put back
to where it started and evaluated one iteration after the other: messages are those of this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from meshc.sim.csl_files import Loader
from meshc.sim.lang import tree as t
from meshc.sim.sema import csl_types as ty
from meshc.sim.sema.csl_types import Type
from meshc.sim.sema.iteration_lanes import (
    LIMIT,
    Lanes,
    Points,
    Split,
    Ungroupable,
    lanes,
    values_at,
)
from meshc.sim.sema.loops import Loops
from meshc.sim.sema.tree_walks import nodes
from meshc.sim.sema.unit import Unit
from meshc.sim.sema.values import Cell, CellRef, Frame, Val
from meshc.support.spans import Span

_FEWEST = 4
_GROUPABLE = frozenset((
    "as", "assert", "bitcast", "comptime_assert", "concat_structs", "constants", "dimensions",
    "element_count", "element_type", "field", "get_array", "get_color", "get_color_id",
    "get_control_task_id", "get_data_task_id", "get_input_queue", "get_int",
    "get_local_task_id", "get_output_queue", "get_rectangle", "get_ut_id", "has_field",
    "import_module", "is_arch", "is_comptime", "is_same_type", "range", "range_start",
    "range_step", "range_stop", "rank", "sim_present", "sim_value", "strcat", "strlen",
    "set_color_config", "set_tile_code", "type_of", "zeros",
))  # fmt: skip
_UNSET = object()


@dataclass(slots=True)
class _Turns:
    """The iterations of a loop. ``bind`` gives its variables their values at some of them.

    ``finish`` leaves the variables as they are after the loop.
    """

    count: int
    bind: Callable[[Points, Any], None]
    finish: Callable[[], None]


@dataclass(slots=True)
class _Group:
    """A group of turns that ran: their numbers, and what they left in variables of outside."""

    points: Points
    turns: Any
    left: list[Any]


class GroupedLoops(Loops):
    """Evaluates loops in groups while the layout runs. ``points`` are those of the innermost."""

    points: Points | None = None
    _with_pointers = False

    def __init__(self, loader: Loader, unit: Unit) -> None:
        super().__init__(loader, unit)
        self._singly: set[t.Stmt] = set()
        self._written: dict[t.Stmt, frozenset[str] | None] = {}

    def check_groupable(self, name: str) -> None:
        """Give a group up for a builtin that might do more than give a value."""
        if self.points is not None and name not in _GROUPABLE:
            raise Ungroupable

    def read(self, item: Any, frame: Frame, span: Span) -> Val:
        if isinstance(item, Cell) and item.v is _UNSET:
            raise Ungroupable
        return super().read(item, frame, span)

    def eval_AddressOf(self, node: t.AddressOf, frame: Frame, want: Type | None) -> Val:
        """No loop is grouped once a variable has a pointer, by which anything may change it."""
        value = super().eval_AddressOf(node, frame, want)
        if isinstance(value.v, CellRef):
            self._with_pointers = True
            if self.points is not None:
                raise Ungroupable
        return value

    # --- the two kinds of loops ---

    def _run_for(self, stmt: t.For, subject: Val, frame: Frame) -> None:
        if subject.type != ty.RANGE or not self._in_groups(
            stmt, frame, lambda: self._ranged(stmt, subject, frame)
        ):
            super()._run_for(stmt, subject, frame)

    def _ranged(self, stmt: t.For, subject: Val, frame: Frame) -> _Turns:
        """The turns of a range, whose length has to be one number; its ends may be lanes."""
        bounds, span = subject.v, stmt.subject.span
        ends = (bounds.low, bounds.high)
        low, high = (v.v if type(v.v) is Lanes else self.as_number(v, span) for v in ends)
        step = self.as_number(bounds.step, span)
        exact = -((low - high) // step)
        count = index(exact) if exact > 0 else 0
        if abs(step) * count >= LIMIT or (type(low) is int and abs(low) >= LIMIT):
            raise Ungroupable

        def bind(points: Points, turns: Any) -> None:
            numbers = values_at(points, low) + step * turns
            for name, kind, values in zip(
                stmt.captures, (bounds.type, ty.U16), (numbers, turns), strict=False
            ):
                frame.names[-1][name] = Val(kind, lanes(points, values))

        return _Turns(count, bind, lambda: None)

    def _run_while(self, stmt: t.While, frame: Frame) -> None:
        if not self._in_groups(stmt, frame, lambda: self._stepped(stmt, frame)):
            super()._run_while(stmt, frame)

    def _stepped(self, stmt: t.While, frame: Frame) -> _Turns:
        """The turns of a loop whose condition and step do not depend on its body."""
        changed = _assigned(stmt.step) if stmt.step is not None else None
        cells = self._cells(changed or frozenset(), frame)
        body = self._written[stmt] or frozenset()
        if not cells or _names(stmt.cond, stmt.step) & body:
            raise Ungroupable
        assert stmt.step is not None
        seen: list[list[int]] = [[] for _ in cells]
        while self.known(stmt.cond, frame, ty.BOOL).v:
            self.tick(stmt.span)
            for cell, numbers in zip(cells, seen, strict=True):
                if type(cell.v) is not int:
                    raise Ungroupable
                numbers.append(cell.v)
            self.exec(stmt.step, frame)
        values = [np.array(numbers, np.int64) for numbers in seen]
        after = [cell.v for cell in cells]

        def put(given: list[Any]) -> None:
            for cell, value in zip(cells, given, strict=True):
                cell.v = value

        return _Turns(
            len(seen[0]),
            lambda points, turns: put([lanes(points, numbers[turns]) for numbers in values]),
            lambda: put(after),
        )

    # --- groups ---

    def _in_groups(self, stmt: Any, frame: Frame, turns: Callable[[], _Turns]) -> bool:
        """Evaluate a loop in groups; False, with nothing changed, where that cannot be."""
        layout, outer = self.layout, self.points
        if not frame.in_layout or self._with_pointers or stmt in self._singly:
            return False
        if stmt not in self._written:
            self._written[stmt] = _assigned(stmt.body)
        body, step = self._written[stmt], _assigned(getattr(stmt, "step", None))
        if body is None or step is None:
            return False
        before = {cell: cell.v for cell in self._cells(body | step, frame)}
        mark = layout.mark()
        try:
            found = turns()
            enough = found.count * (outer.count if outer else 1) >= _FEWEST
            if enough:
                changed = self._cells(body, frame)
                groups = list(self._groups(stmt, frame, found, changed))
                self._keep(groups, found.count, {cell: before[cell] for cell in changed})
                found.finish()
                if outer is None:
                    layout.commit()
                return True
        except Exception as problem:  # also errors, whose place and order are those of single turns
            if isinstance(problem, Split) and problem.points.encloses(outer):
                raise
            self._singly.add(stmt)
        layout.rollback(mark)
        for cell, value in before.items():
            cell.v = value
        return False

    def _cells(self, names: frozenset[str], frame: Frame) -> list[Cell]:
        found = [frame.find(name) for name in sorted(names)]
        return [cell for cell in found if isinstance(cell, Cell)]

    def _groups(
        self, stmt: Any, frame: Frame, turns: _Turns, changed: list[Cell]
    ) -> Iterator[_Group]:
        """Run the body for groups of turns, in all outer points, until every one has run."""
        outer, mark = self.points, self.layout.mark()
        work = [np.arange(turns.count * (outer.count if outer else 1))]
        while work:
            numbers = work.pop()
            points = Points(outer, numbers // turns.count)
            for cell in changed:
                cell.v = _UNSET
            frame.names.append({})
            self.points = points
            try:
                turns.bind(points, numbers % turns.count)
                if self._run_body(stmt, frame):
                    raise Ungroupable
            except Split as split:
                if split.points is not points:
                    raise
                self.layout.rollback(mark)
                work += [numbers[group] for group in split.groups()]
                continue
            finally:
                self.points = outer
                frame.names.pop()
            mark = self.layout.mark()
            yield _Group(points, numbers, [cell.v for cell in changed])

    def _keep(self, groups: list[_Group], count: int, before: dict[Cell, Any]) -> None:
        """Give variables of outside the values that the last turn leaves in them."""
        for position, (cell, old) in enumerate(before.items()):
            left = [(group, group.left[position]) for group in groups]
            if all(value is _UNSET for _, value in left):
                cell.v = old
                continue
            last = [(group, value) for group, value in left if _last(group, count).any()]
            if all(isinstance(value, int | float) for _, value in last):
                cell.v = self._assembled(last, count)
            elif self.points is not None:
                cell.v = _UNSET
            else:
                raise Ungroupable

    def _assembled(self, last: list[tuple[_Group, Any]], count: int) -> Any:
        """One number for each outer point, from the groups that hold their last turns."""
        outer = self.points
        size = outer.count if outer else 1
        result: Any = None
        for group, value in last:
            chosen, values = _last(group, count), values_at(group.points, value)
            if result is None:
                result = np.empty(size, values.dtype)
            result[group.turns[chosen] // count] = values[chosen]
        return lanes(outer, result) if outer else result[0].item()


def _last(group: _Group, count: int) -> Any:
    return group.turns % count == count - 1


def _names(*parts: t.Node | None) -> set[str]:
    return {n.name for part in parts for n in nodes(part) if isinstance(n, t.Name)}


def _assigned(part: t.Node | None) -> frozenset[str] | None:
    """Variables that a statement may change; None when it may change parts of others."""
    found = set()
    declared = {n.name for n in nodes(part) if isinstance(n, t.VarDecl)}
    for node in nodes(part):
        if not isinstance(node, t.Assign):
            continue
        target, whole = node.target, True
        while isinstance(target, t.Index | t.Field):
            target, whole = target.base, False
        if not isinstance(target, t.Name) or not (whole or target.name in declared):
            return None
        found.add(target.name)
    return frozenset(found)

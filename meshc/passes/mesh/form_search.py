"""The search over forms: the cheapest way through a function, by dynamic programming.

Ways go through the ops in order, each taking every form that an op has. Two ways on which all
values that are still read lie alike have the same future, so only the cheaper goes on; where
memory is limited, also the one that needs less of it. (The second cheapest goes on too, so that
the end knows what the choice was worth.) Ways into a loop are those to its front, each with every
layout of what the loop carries, which is the same at both ends of its body; what they emit there
costs as often as the body runs. Where no device is named forms cost nothing, and each op takes its
first.

The search is exact as long as no more than ``MOST_WAYS`` go on at an op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshc.cost.growing_plans import PlanCost
from meshc.ir.core import Block, Op
from meshc.ir.module import Param
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.mesh.forms import forms_of
from meshc.passes.mesh.forms.append import flush
from meshc.passes.mesh.forms.brought import brought_forms
from meshc.passes.mesh.forms.entering import enter, is_hosted
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering
from meshc.passes.mesh.forms.problem import Problem
from meshc.passes.mesh.forms.repeat import entries, leave
from meshc.support.diagnostics import MeshcError, fail

MOST_WAYS = 512
_KEPT = 2
_ALIKE = 1e-9
_AT_ONCE = 1 << 18
"""Costs that are held against each other at once."""


@dataclass
class Search:
    """One search. ``pins`` says which form a result is computed by.

    ``several`` are the results that had a choice, with the forms that they had. ``room`` is the
    bytes of weights that a core can have, or None.
    """

    problem: Problem
    pins: Mapping[str, str] = field(default_factory=dict)
    room: int | None = None
    several: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self) -> list[Lowering]:
        """The cheapest way through the function, and the next one if there is another. Fails with
        the first way's error where every one ends in an error, and with ``bad-option`` for a pin
        of nothing that is computed."""
        body = self.problem.source.function.body
        self.live = _live_values(body)
        self.read = tuple(dict.fromkeys(v for op in body.walk() for v in op.tensors()))
        ways = [Lowering(self.problem, cost=PlanCost.nothing(self.problem.costs))]
        for param in self.problem.source.function.params:
            if not is_hosted(ways[0], param):
                ways = self.entered(ways, param)
        ways = self.block(ways, body)
        unknown = [name for name in self.pins if name not in dict(ways[0].chosen)]
        if unknown:
            fail("bad-option", f"there is no '{unknown[0]}' whose form could be pinned")
        fitting = [way for way in ways if self.room is None or way.bytes <= self.room]
        return sorted(fitting or ways, key=lambda way: way.cost.total)[:_KEPT]

    def entered(self, ways: Sequence[Lowering], param: Param) -> list[Lowering]:
        """Every way with ``param`` in each layout in which it may enter."""
        branches = [self.forms(way, param.value.name, enter(way, param)) for way in ways]
        return self.taken(zip(ways, branches, strict=True), param.value.name, self.read)

    def block(self, ways: Sequence[Lowering], block: Block) -> list[Lowering]:
        """The ways that come through all ops of ``block``."""
        found = list(ways)
        for op in block.ops:
            found = self.loop(found, op) if isinstance(op, graph.Repeat) else self.op(found, op)
        return found

    def op(self, ways: Sequence[Lowering], op: Op) -> list[Lowering]:
        """Every way with each form of ``op``, as far as they differ in what comes later; the ways
        themselves go on."""
        name = op.results[0].name if op.results else ""
        ready, errors = [], []
        for way in ways:
            way.span = op.span
            try:
                if not isinstance(op, graph.Append):
                    flush(way, op)
                ready.append((way, self.forms(way, name, self.forms_of(way, name, op))))
            except MeshcError as error:
                errors.append(error)
        if not ready:
            raise errors[0]
        return self.taken(ready, name, self.live[op])

    def forms_of(self, way: Lowering, name: str, op: Op) -> list[Form]:
        """The forms of ``op``, and the one of another package by which its result is pinned."""
        if (make := forms_of(op)) is None:
            fail("unsupported-op", f"{op.NAME} cannot be partitioned", op.span)
        found, wanted = make(way, op), self.pins.get(name)
        if wanted is None or wanted in [form.name for form in found]:
            return found
        return [*found, *brought_forms(wanted, op)]

    def forms(self, way: Lowering, name: str, forms: list[Form]) -> list[Form]:
        """The forms that a pin leaves."""
        wanted = self.pins.get(name)
        if wanted is not None and wanted not in [f.name for f in forms]:
            fail(
                "bad-option",
                f"'{name}' has no form '{wanted}' here",
                way.span,
                help=f"it has {', '.join(f.name for f in forms)}",
            )
        free = [f for f in forms if not f.only_pinned]
        if len(free) > 1:
            had = self.several.get(name, ())
            self.several[name] = tuple(dict.fromkeys((*had, *(f.name for f in free))))
        return free if wanted is None else [f for f in forms if f.name == wanted]

    def taken(
        self,
        ready: Iterable[tuple[Lowering, list[Form]]],
        name: str,
        live: Sequence[Value],
    ) -> list[Lowering]:
        """The ways after each of their forms, the last of which goes on with the way itself.
        Raises the first error if none gets through."""
        found, errors = [], []
        for base, forms in ready:
            for form in forms:
                way = base if form is forms[-1] else base.fork()
                try:
                    form.lower(way)
                except MeshcError as error:
                    errors.append(error)
                    continue
                if name:
                    way.chosen = (*way.chosen, (name, form.name))
                found.append(way)
        if not found:
            raise errors[0]
        return self.best(found, live)

    def loop(self, ways: Sequence[Lowering], op: graph.Repeat) -> list[Lowering]:
        """Every way through the loop, for each layout of what it carries."""
        name = op.results[0].name if op.results else ""
        starts = []
        for way in ways:
            base = way.fork()
            base.span = op.span
            flush(base, op)
            every = entries(base, op)
            kept = self.forms(base, name, [Form(e.form, _nothing, e.only_pinned) for e in every])
            for entry in [e for e in every if e.form in [f.name for f in kept]]:
                entry.way.chosen = (*entry.way.chosen, (name, entry.form))
                starts.append(entry.way)
        ends = self.block(starts, op.regions[0])
        for end in ends:
            leave(end)
        return self.best(ends, self.live[op])

    def best(self, ways: Sequence[Lowering], live: Sequence[Value]) -> list[Lowering]:
        """The cheapest ``MOST_WAYS``, and among ways with the same future only those that no other
        beats."""
        if len(ways) == 1:
            return [*ways]
        groups: dict[object, list[Lowering]] = {}
        live = [value for value in live if _may_differ(value, ways)]
        for way in ways:
            waiting = [way.state_of(v) for append in way.appends for v in append.tensors()]
            policy = way.policy if waiting else ""
            ends = tuple(map(way.type_of, way.carried))
            key = (tuple(map(way.state_of, live)), tuple(waiting), policy, ends)
            kept = groups.setdefault(key, [])
            kept.append(way)
        found = [way for kept in groups.values() for way in self.unbeaten(kept)]
        if len(found) > MOST_WAYS:
            found = sorted(found, key=lambda way: way.cost.total)[:MOST_WAYS]
        return found

    def unbeaten(self, ways: list[Lowering]) -> list[Lowering]:
        """The ways that fewer than ``_KEPT`` others beat on some set of channels.

        What comes later costs all of them as much on a set that reductions share, so what is
        cheapest in the end is among the cheapest of its set now. One way beats another on a set
        where it costs no more and needs no more memory; of ways that are alike the first does.
        """
        if len(ways) <= _KEPT:
            return ways
        each = np.array([way.cost.each for way in ways])
        held = np.array([0 if self.room is None else way.bytes for way in ways])
        found, step = [], max(1, _AT_ONCE // each.size)
        for first in range(0, len(ways), step):
            mine = slice(first, first + step)
            better = each <= each[mine, None] * (1 + _ALIKE)
            better &= (held <= held[mine, None])[:, :, None]
            alike = each[mine, None] <= each * (1 + _ALIKE)
            alike &= (held[mine, None] <= held)[:, :, None]
            places = np.arange(len(ways))
            better &= (places < places[mine, None])[:, :, None] | ~alike
            keeps = (np.count_nonzero(better, axis=1) < _KEPT).any(axis=1)
            found += [way for way, kept in zip(ways[mine], keeps, strict=True) if kept]
        return found


def _may_differ(value: Value, ways: Sequence[Lowering]) -> bool:
    """Whether later ops may tell different things of a value on these ways: not where all of them
    have the same of it, which was made before they parted."""
    known = ways[0].env.get(value)
    return any(
        way.env.get(value) is not known
        or value in way.pending
        or value in way.at_experts
        or known in way.placed
        for way in ways
    )


def _nothing(way: Lowering) -> None:
    """What a loop's form emits is its body's."""


def _live_values(body: Block) -> dict[Op, tuple[Value, ...]]:
    """For each op what is read after it, in order of the first reading."""
    ops = list(body.walk())
    last: dict[Value, int] = {}
    first: dict[Value, int] = {}
    for number, op in enumerate(ops):
        for value in op.tensors():
            last[value] = number
            first.setdefault(value, number)
    ends = {op: number + len(list(_inside(op))) for number, op in enumerate(ops)}
    return {op: tuple(v for v in first if last[v] > ends[op]) for op in ops}


def _inside(op: Op) -> Iterable[Op]:
    for region in op.regions:
        yield from region.walk()

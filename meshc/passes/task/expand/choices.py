"""The choice of the largest of the lanes of each token, by tasks that look at some of them each."""

from __future__ import annotations

from meshc.ir.affine import Expr
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, task
from meshc.ir.values import Value
from meshc.ir.views import Point, View, Whole
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.products import GROUP, PART, Products, most_that_divide
from meshc.passes.task.expand.program import ROWS, OpenTask, Part, TaskProgram, constant, region
from meshc.passes.task.expand.values import Known


class Choices:
    """Writes the families of a choice, of which the first two have a task for each of as many parts
    as ``blocks`` have one."""

    def __init__(
        self, program: TaskProgram, demand: Demand, products: Products, blocks: int
    ) -> None:
        self.program, self.demand, self.products = program, demand, products
        self.blocks = blocks

    def largest(self, op: graph.ArgMax, known: Known) -> Known:
        """The index of the largest lane of each token, ``[tokens, 1]``: tasks of three phases find
        the largest of each part, the first lane of each part that equals the largest of all, and
        the least of these. Where a lane is NaN the index is infinite."""
        lanes = [d for d in known.kind.dims if d not in ROWS]
        if lanes != [op.dim]:
            refuse(op, f"a choice among {op.dim} of each of {', '.join(lanes)}")
        self.products.store(known)
        count, name = self.products.extent(lanes), op.result.name
        parts = most_that_divide(count, self.blocks)
        own = Part(Expr.var(PART) * (count // parts), count // parts)

        opened = self._of_parts(f"{known.name}_largest", parts, own)
        largest = opened.local("largest", (self.program.tokens,))
        opened.compute("row_max", largest, self.demand.of(opened, known, own))
        every = self._give_part(opened, largest, parts)

        opened = self._of_parts(f"{known.name}_first", parts, own)
        top = self._most(opened, every, "top")
        first = opened.local("first", (self.program.tokens,))
        given = self.demand.of(opened, known, own)
        place = {"rank": Expr.var(PART), "block": own.count, "limit": count}
        opened.compute("first_at", first, given, top, **place)
        firsts = self._give_part(opened, first, parts)

        lane = Part(constant(0), 1)
        opened = self.program.family(self.program.phase(name), name, {GROUP: 1}, lane)
        found = opened.local(name, (self.program.tokens, 1))
        rows = View(found, (), (constant(self.program.tokens),))
        opened.compute("scale", rows, self._most(opened, firsts, "first"), factor=-1.0)
        return Known(name, tensor_type(op.result), task=opened, here=found)

    def _of_parts(self, name: str, parts: int, own: Part) -> OpenTask:
        """A family of a phase of its own, with a task for each part."""
        return self.program.family(self.program.phase(name), name, {PART: parts}, own)

    def _give_part(self, opened: OpenTask, value: Value, parts: int) -> Value:
        """Give what a task has of its part, ``[tokens]``, to a buffer ``[tokens, parts]``."""
        buffer = self.program.scratch(f"{value.name}_of_parts", (self.program.tokens, parts))
        place = region(buffer, *self.program.at_layer, Whole(), Point(Expr.var(PART)))
        opened.add(task.Give([place, View(value)]))
        return buffer

    def _most(self, opened: OpenTask, buffer: Value, name: str) -> Value:
        """The largest of what the tasks of all parts gave, ``[tokens]``."""
        given = opened.add(task.Need([region(buffer, *self.program.at_layer)]), f"{name}s")
        found = opened.local(name, (self.program.tokens,))
        opened.compute("row_max", found, given)
        return found

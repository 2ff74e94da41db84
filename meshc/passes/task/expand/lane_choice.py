"""The choice of one of the lanes of each token, the largest or a drawn one, by tasks that look at
some of them each."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.affine import Expr
from meshc.ir.core import tensor_type
from meshc.ir.ops import graph, task
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View, Whole
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.products import PART, Products, most_that_divide
from meshc.passes.task.expand.program import (
    ROWS,
    OpenTask,
    Part,
    TaskProgram,
    constant,
    region,
    span,
)
from meshc.passes.task.expand.values import Known

TOKEN = "b"
"""The dim that counts tokens."""


class Choices:
    """Writes the families of a choice, of which the first two have a task for each of as many parts
    as ``blocks`` have one, and the last a task for each token."""

    def __init__(
        self, program: TaskProgram, demand: Demand, products: Products, blocks: int
    ) -> None:
        self.program, self.demand, self.products = program, demand, products
        self.blocks = blocks

    def choose(self, op: graph.ArgMax | graph.Draw, known: Sequence[Known]) -> Known:
        """The index of the chosen lane of each token, ``[tokens, 1]``: tasks of three phases find
        the largest of each part, the first lane of each part that equals the largest of all, and
        the least of these. Where a lane is NaN the index is infinite. To draw, the second phase
        leaves what each lane weighs, and the third draws by these."""
        scores, *draw = known
        lanes = [d for d in scores.kind.dims if d not in ROWS]
        if lanes != [op.dim]:
            refuse(op, f"a choice among {op.dim} of each of {', '.join(lanes)}")
        self.products.store(scores)
        count, name = self.products.extent(lanes), op.result.name
        parts = most_that_divide(count, self.blocks)
        own = Part(Expr.var(PART) * (count // parts), count // parts)

        opened = self._of_parts(f"{scores.name}_largest", parts, own)
        largest = opened.local("largest", (self.program.tokens,))
        opened.compute("row_max", largest, self.demand.of(opened, scores, own))
        every = self._give_part(opened, largest, parts, Point(Expr.var(PART)))

        opened = self._of_parts(f"{scores.name}_first", parts, own)
        top = self._most(opened, region(every, *self.program.at_layer), "top")
        first = opened.local("first", (self.program.tokens,))
        given = self.demand.of(opened, scores, own)
        place = {"rank": Expr.var(PART), "block": own.count, "limit": count}
        opened.compute("first_at", first, given, top, **place)
        firsts = self._give_part(opened, first, parts, Point(Expr.var(PART)))
        weights = None
        if draw:
            settings = self.demand.of(opened, draw[0], Part(constant(0), graph.DRAW_WORDS))
            weight = opened.local("weight", (self.program.tokens, own.count))
            opened.compute("likelihood", weight, given, top, settings)
            weights = self._give_part(opened, weight, count, span(own.start, own.count))

        here = Part(constant(0), 1, Expr.var(TOKEN))
        domain = {TOKEN: self.program.tokens}
        opened = self.program.family(self.program.phase(name), name, domain, here)
        token = span(Expr.var(TOKEN), 1)
        first = self._most(opened, region(firsts, *self.program.at_layer, token), "first")
        index = opened.local(name, (1,))
        opened.compute("scale", index, first, factor=-1.0)
        if weights is not None:
            index = self._drawn(opened, index, scores, weights, draw)
        found = opened.local(name, (1, 1))
        opened.compute("copy", View(found, (), (constant(1),)), index)
        return Known(name, tensor_type(op.result), task=opened, here=found)

    def _drawn(
        self, opened: OpenTask, first: Value, scores: Known, weights: Value, draw: Sequence[Known]
    ) -> Value:
        """The index that is drawn for a token, whose largest lane is ``first``."""
        token, four = Expr.var(TOKEN), graph.DRAW_WORDS
        given = self.demand.of(opened, scores, Part(constant(0), self._count(scores), token))
        place = region(weights, *self.program.at_layer, span(token, 1))
        weight = opened.add(task.Need([place]), "weights")
        of_token = Part(constant(0), four, token)
        settings, stream = (self.demand.of(opened, one, of_token) for one in draw)
        found = opened.local("drawn", (1,))
        opened.compute("draw", found, first, given, weight, settings, stream)
        return found

    def _count(self, known: Known) -> int:
        return self.program.lanes(known.kind)

    def _of_parts(self, name: str, parts: int, own: Part) -> OpenTask:
        """A family of a phase of its own, with a task for each part."""
        return self.program.family(self.program.phase(name), name, {PART: parts}, own)

    def _give_part(self, opened: OpenTask, value: Value, lanes: int, own: Index) -> Value:
        """Give what a task has of its part to a buffer ``[tokens, lanes]``, of which that is
        ``own``."""
        buffer = self.program.scratch(f"{value.name}_of_parts", (self.program.tokens, lanes))
        place = region(buffer, *self.program.at_layer, Whole(), own)
        opened.add(task.Give([place, View(value)]))
        return buffer

    def _most(self, opened: OpenTask, place: View, name: str) -> Value:
        """The largest of what the tasks of all parts gave to ``place``, ``[tokens, parts]``."""
        given = opened.add(task.Need([place]), f"{name}s")
        found = opened.local(name, (place.shape()[0].constant,))
        opened.compute("row_max", found, given)
        return found

"""What follows a product lane by lane: straight-line code of threads that have an element each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.reserved import fresh
from meshc.backends.cuda.tasks.spelling import condition, unflattened
from meshc.backends.cuda.tasks.statements import Text, angle_of
from meshc.backends.cuda.tasks.values import Values, along, extents
from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

TOKEN, LANE = Expr.var("b"), Expr.var("i")


@dataclass
class Lanes:
    """Writes ops on values ``[requests, lanes]``, of which a thread has the element (b, i).

    ``shuffles`` is whether neighbouring threads have neighbouring lanes, so that a thread can ask
    for the other one of a pair.
    """

    values: Values
    text: Text
    shuffles: bool

    def add(self, ops: Sequence[Op]) -> None:
        """Write ``ops`` in order; values become registers."""
        for op in ops:
            match op:
                case tile.For() if Expr.var(op.var) == TOKEN:
                    self.add(op.regions[0].ops)  # a thread has the element of one token
                case tile.For() if (routed := routed_in(op)) is not None:
                    self._of_experts(op, routed)
                case tile.For():
                    self._loop(op)
                case task.Routed():
                    fail("cuda-graph", "what is done for experts stands in no loop over these")
                case tile.Compute():
                    self._compute(op)
                case task.Give():
                    self.give(op)

    def element(self, value: Value) -> tuple[Expr, ...]:
        """The element of a value of the task that a thread has."""
        assert isinstance(value.type, BufferType)
        return (TOKEN, LANE) if len(value.type.shape) == 2 else (LANE,)

    def _loop(self, op: tile.For) -> None:
        count = self.values.spelled(op.count)
        self.values.ranges[op.var] = (0, max(op.count.constant - 1, 0))
        with self.text.within(f"for (int {op.var} = 0; {op.var} < {count}; {op.var}++) {{"):
            self.add(op.regions[0].ops)

    def _of_experts(self, op: tile.For, routed: task.Routed) -> None:
        """The rounds of experts that are chosen."""
        self.values.ranges[op.var] = (0, max(op.count.constant - 1, 0))
        self.text.add("#pragma unroll 4")
        with self.text.within("for (int place = 0; place < choice.count(); place++) {"):
            self.text.add(f"const int {op.var} = choice.expert(place);")
            self.add(routed.regions[0].ops)

    def _compute(self, op: tile.Compute) -> None:
        out = op.views()[0]
        if op.when is not None and not op.when.is_true:
            fail("cuda-graph", "a product is followed by what not all tasks do")
        if op.kernel in ("square_sum", "row_sum", "row_max"):
            text, own = self._combined(op)
        else:
            at, own = self._at(out), self.element(out.buffer)
            text = self._rope(op, at) if op.kernel == "rope" else self.values.computed(op, at)
        known = self.values.registers.get(out.buffer)
        if known is not None:
            self.text.add(f"{known[0]} = {text};")
            return
        name = fresh(self.values.storage.taken, out.buffer.name)
        const = "const " if len(self.values.writers[out.buffer]) == 1 else ""
        self.text.add(f"{const}float {name} = {text};")
        self.values.registers[out.buffer] = (name, own)

    def _combined(self, op: tile.Compute) -> tuple[str, tuple[Expr, ...]]:
        """What neighbouring threads have together: rows of a power of two of lanes."""
        given = op.views()[1]
        shape = given.shape()
        width = shape[-1].constant
        if not self.shuffles or width & (width - 1) or width > 16 or len(shape) != 3:
            fail("cuda-graph", f"rows of {width} lanes have no threads of their own")
        own = (TOKEN, LANE // width)
        value = self.values.element(given, (*own, LANE % width))
        name = self.values.storage.taken.fresh("v")
        self.text.add(f"const float {name} = {value};")
        if op.kernel == "row_max":
            return f"mc::warp_max<{width}>({name})", own
        summed = name if op.kernel == "row_sum" else f"{name} * {name}"
        return f"mc::warp_sum<{width}>({summed})", own

    def _at(self, out: View) -> tuple[Expr, ...]:
        """The element of ``out`` that a thread writes."""
        own = self.element(out.buffer)
        if not out.indices:
            return along(out, own) if out.reshape or out.order else own
        if len(out.indices) == 1 and out.reshape and out.shape()[-1].is_const:
            return unflattened(LANE, extents(out))
        fail("cuda-graph", f"a thread writes other elements of %{out.buffer.name} than its own")

    def _rope(self, op: tile.Compute, at: Sequence[Expr]) -> str:
        _, given, angles = op.views()
        if not self.shuffles:
            fail("cuda-graph", "pairs are turned where threads do not have neighbouring lanes")
        own = self.values.element(given, at)
        other = self.values.storage.taken.fresh("other")
        cosine, sine = angle_of(self.values, op, angles, at[-1] // 2)
        self.text.add(f"const float {other} = mc::shuffle_xor({own}, 1);")
        odd = f"{self.values.spelled(at[-1] % 2)} == 0"
        turn = f"({odd} ? -({other} * {sine}) : {other} * {sine})"
        return f"mc::fused({own}, {cosine}, {turn})"

    def give(self, op: task.Give) -> None:
        """Store the thread's element."""
        storage, values = self.values.storage, self.values
        kept = op.view.shape()
        at = (TOKEN, LANE) if len(kept) == 2 else (LANE,)
        index = base(op.view, at)
        guard = storage.where_result(op.view.buffer, index, values.ranges)
        if op.when is not None and not op.when.is_true:
            guard += f"if ({condition(op.when, values.ranges)}) "
        given = values.element(op.source, at)
        self.text.add(f"{guard}{storage.store(op.view.buffer, index, values.ranges, given)}")


def routed_in(op: tile.For) -> task.Routed | None:
    """What a loop over experts does for those that are chosen, if it is such a loop."""
    found = [one for one in op.regions[0].ops if isinstance(one, task.Routed)]
    return found[0] if found and found[0].expert == op.var else None

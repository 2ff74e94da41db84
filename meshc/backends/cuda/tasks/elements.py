"""Families without products of weights: each thread has elements of the block's tasks, or its workers compute a
task together."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.cuda.tasks.families import Placed
from meshc.backends.cuda.tasks.lanes import Lanes
from meshc.backends.cuda.tasks.statements import Locals, Statements, Text
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.values import POINTWISE, Values, extents
from meshc.ir.core import Op
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType


@dataclass
class Elements:
    """A family; ``ranges`` are those of names around it."""

    family: Placed
    storage: Storage
    locals: Locals
    ranges: dict[str, tuple[int, int]]

    def __post_init__(self) -> None:
        ranges = {**self.ranges, **self.family.ranges}
        self.values = Values(self.storage, self.family.ops, ranges)
        gives = [op for op in self.family.ops if isinstance(op, task.Give)]
        self.given = extents(gives[0].view)

    def compute(self, text: Text) -> None:
        """By the workers: the block's tasks."""
        if len(self.given) == 2 and all(self._by_lane(op) for op in self.family.ops):
            self._by_lanes(text)
        else:
            with text.within(self.family.loop()):
                self.family.point(text, frozenset(self.family.op.dims))
                self.values.arrays.clear()
                self.locals.restart()
                Statements(self.values, text, self.locals, loop=self._loop(text)).add(self.family.ops)

    def _loop(self, text: Text):  # type: ignore[no-untyped-def]
        def loop(op: tile.For, body) -> None:  # type: ignore[no-untyped-def]
            count = op.count.constant
            self.values.ranges[op.var] = (0, count - 1)
            with text.within(f"for (int {op.var} = 0; {op.var} < {count}; {op.var}++) {{"):
                body()

        return loop

    def _by_lanes(self, text: Text) -> None:
        requests, lanes = self.given
        count = requests * lanes
        with text.within(
            f"for (int at = mine.first({self.family.first}) * {count} + me; "
            f"at < mine.last({self.family.end}) * {count}; at += WORKERS) {{"
        ):
            own = f"at / {lanes} % {requests}" if requests > 1 else "0"
            text.add(f"const int task = at / {count}, b = {own}, i = at % {lanes};")
            self.family.point(text, frozenset(self.family.op.dims))
            self.values.ranges |= {"b": (0, requests - 1), "i": (0, lanes - 1)}
            Lanes(self.values, text, False).add(self.family.ops)

    def _by_lane(self, op: Op) -> bool:
        if isinstance(op, tile.For):
            return not op.each and all(self._by_lane(one) for one in op.regions[0].ops)
        if not isinstance(op, tile.Compute):
            return True
        kind = op.views()[0].buffer.type
        assert isinstance(kind, BufferType)
        return op.kernel in POINTWISE and kind.shape in (self.given, self.given[1:])

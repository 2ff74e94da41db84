"""The phases of a program of tasks: which tasks they have, and of which form each family is."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshc.backends.cuda.tasks.statements import Text
from meshc.backends.cuda.tasks.storage import base
from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.views import View


@dataclass(frozen=True, eq=False)
class Placed:
    """A family, whose tasks are numbers ``first`` .. ``end`` of its phase."""

    op: task.Family
    first: int

    @property
    def ops(self) -> Sequence[Op]:
        """The statements of a task."""
        return self.op.regions[0].ops

    @property
    def end(self) -> int:
        """The number behind the last task."""
        return self.first + prod(self.op.sizes)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """What the dims of a task can be."""
        return {name: (0, size - 1) for name, size in self.op.domain.items()}

    def loop(self) -> str:
        """The head of a loop over the block's tasks of this family."""
        return f"for (int task = mine.first({self.first}); task < mine.last({self.end}); task++) {{"

    def point(self, text: Text, names: Container[str]) -> None:
        """The dims of the task that are among ``names``."""
        step, parts = prod(self.op.sizes), []
        for number, (name, size) in enumerate(self.op.domain.items()):
            step //= size
            own = "task" if not self.first else f"task - {self.first}"
            if step > 1:
                own = f"{own} / {step}" if not self.first else f"({own}) / {step}"
            if number:
                wrapped = f"({own})" if " - " in own and step == 1 else own
                own = f"{wrapped} % {size}"
            if name in names:
                parts.append(f"{name} = {own if size > 1 else 0}")
        if parts:
            text.add(f"const int {', '.join(parts)};")


@dataclass(frozen=True, eq=False)
class Phase:
    """Families whose tasks run at the same time; ``meets`` where blocks meet in front of it."""

    name: str
    families: tuple[Placed, ...]
    meets: bool

    @property
    def tasks(self) -> int:
        """Tasks of all families."""
        return self.families[-1].end


@dataclass(frozen=True, eq=False)
class Loop:
    """Phases in each round of a loop over layers."""

    var: str
    count: int
    body: tuple[Phase | Loop, ...]


def phases_of(module: Module) -> tuple[Phase | Loop, ...]:
    """What the program of ``module`` does, in order."""
    return tuple(_phases(module.program.body))


def _phases(block: Block) -> Iterator[Phase | Loop]:
    meets = False
    for op in block.ops:
        match op:
            case task.Meet():
                meets = True
            case tile.For():
                yield Loop(op.var, op.count.constant, tuple(_phases(op.regions[0])))
            case task.Phase():
                families, first = [], 0
                for family in op.regions[0].ops:
                    assert isinstance(family, task.Family)
                    families.append(Placed(family, first))
                    first = families[-1].end
                yield Phase(op.name, tuple(families), meets)
                meets = False


def phases_around(
    body: Sequence[Phase | Loop], ranges: Mapping[str, tuple[int, int]] | None = None
) -> Iterator[tuple[dict[str, tuple[int, int]], Phase]]:
    """Each phase of ``body``, with what the rounds of the loops around it can be."""
    known = dict(ranges or {})
    for one in body:
        if isinstance(one, Phase):
            yield known, one
        else:
            yield from phases_around(one.body, {**known, one.var: (0, one.count - 1)})


def streamed_products(family: Placed) -> list[tile.Compute]:
    """The products of a task with rows of a weight that come through the ring."""
    streams = {op.result for op in family.ops if isinstance(op, task.Stream) and op.below is None}
    return [
        op
        for op in family.ops
        if isinstance(op, tile.Compute)
        and op.kernel == "gemm"
        and op.views()[2].buffer in streams
        and op.params["transposed"] is True
    ]


def folds(family: Placed) -> bool:
    """Whether its tasks fold tiles of a cache."""
    return any(
        isinstance(inner, task.Stream) and inner.below is not None
        for op in family.ops
        if isinstance(op, tile.For)
        for inner in op.regions[0].ops
    )


def rows_of(view: View) -> tuple[Expr, ...]:
    """The starts of a view of a weight, dim by dim."""
    return base(view, [Expr.const(0)] * len(view.shape()))

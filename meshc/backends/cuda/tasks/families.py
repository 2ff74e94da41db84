"""The phases of a program of tasks: which tasks they have, and of which form each family is."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.statements import Text
from meshc.backends.cuda.tasks.storage import element_type
from meshc.ir.affine import Expr
from meshc.ir.codes import CodeFormat, format_like
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

NOT_UNROLLED = "#pragma unroll 1"
"""In front of loops over tasks, so that a layer has room in the cache of instructions."""
MOST_TASKS = 1 << 22
"""Tasks of a phase at most: 32 bits hold them, times blocks, of which no grid has a thousand."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A family, whose tasks are numbers ``first`` .. ``end`` of its phase, or of each of the
    ``groups`` that are dealt to clusters, and wait for the words that they need if they stand
    behind a meeting by tags. Of one that does something for experts those of the chosen ones are
    numbered, expert by expert, so that blocks have even shares whichever are chosen."""

    op: task.Family
    first: int
    groups: int = 0
    waits: bool = False

    @property
    def routed(self) -> task.Routed | None:
        """What of a task stands behind the gates of an expert, if it does something for one."""
        return next((op for op in self.op.regions[0].ops if isinstance(op, task.Routed)), None)

    @property
    def ops(self) -> Sequence[Op]:
        """The statements of a task, those behind gates among them."""
        own, routed = self.op.regions[0].ops, self.routed
        if routed is None:
            return own
        return [*(op for op in own if op is not routed), *routed.regions[0].ops]

    @property
    def end(self) -> int:
        """The number behind the last task."""
        return self.first + prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The extent of each dim, of a group where tasks are dealt group by group."""
        found = self.op.domain
        if self.groups:
            found[self.op.grouped] //= self.groups
        return found

    @property
    def of_expert(self) -> int:
        """The tasks of each expert."""
        assert self.routed is not None
        return prod(size for name, size in self.sizes.items() if name != self.routed.expert)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """What the dims of a task can be."""
        return {name: (0, size - 1) for name, size in self.op.domain.items()}

    @contextmanager
    def each_group(self, text: Text) -> Iterator[None]:
        """A loop over the groups of the block's cluster, if there are groups."""
        if not self.groups:
            yield
            return
        with text.within("for (int group = mine.group; group < mine.last_group; group++) {"):
            yield

    @contextmanager
    def each(self, text: Text) -> Iterator[None]:
        """A loop over the block's tasks of this family, of experts that are chosen."""
        if self.routed is not None:
            with self._each_of_experts(text, self.routed.expert):
                yield
            return
        head = f"for (int task = mine.first({self.first}); task < mine.last({self.end}); task++) {{"
        with self.each_group(text):
            text.add(NOT_UNROLLED)
            with text.within(head):
                yield

    @contextmanager
    def _each_of_experts(self, text: Text, expert: str) -> Iterator[None]:
        """The same, expert by expert."""
        self.check_experts()
        text.add(NOT_UNROLLED)
        with text.within("for (int task = mine.begin; task < mine.end; task++) {"):
            self.point_expert(text)
            yield

    def check_experts(self) -> None:
        """Raise ``cuda-graph`` where tasks that do something for experts stand among others."""
        routed = self.routed
        if routed and (self.first or self.groups or routed.expert not in self.sizes):
            fail("cuda-graph", f"tasks of @{self.op.name} are not those of experts alone")

    def point_expert(self, text: Text) -> None:
        """The expert of the task, if it is of one."""
        if self.routed is not None:
            expert = self.routed.expert
            text.add(f"const int {expert} = choice.expert(task / {self.of_expert});")

    def alike(self, dims: frozenset[str]) -> int:
        """How many tasks one behind the other, beginning with the first one, have the same values
        of ``dims``; 0 if all have them, and 1 where they are not the first that are counted."""
        if not dims:
            return 0
        if self.routed is not None:
            return self.of_expert if dims == {self.routed.expert} else 1
        (first, *_), sizes = self.sizes, self.sizes
        return prod(sizes.values()) // sizes[first] if dims == {first} else 1

    def point(self, text: Text, names: Container[str]) -> None:
        """The dims of the task that are among ``names``; which expert it is of is known."""
        sizes, parts = self.sizes, []
        if self.routed is not None:
            del sizes[self.routed.expert]
        step = prod(sizes.values())
        for number, (name, size) in enumerate(sizes.items()):
            step //= size
            own = "task" if not self.first else f"task - {self.first}"
            if step > 1:
                own = f"{own} / {step}" if not self.first else f"({own}) / {step}"
            if number or self.routed is not None:
                wrapped = f"({own})" if " - " in own and step == 1 else own
                own = f"{wrapped} % {size}"
            if name in names and self.groups and name == self.op.grouped:
                within = f"group * {size} + " if size > 1 else "group"
                parts.append(f"{name} = {within}{own if size > 1 else ''}")
            elif name in names:
                parts.append(f"{name} = {own if size > 1 else 0}")
        if parts:
            text.add(f"const int {', '.join(parts)};")


@dataclass(frozen=True, eq=False)
class Phase:
    """Families whose tasks run at the same time, in ``groups`` if they are dealt to clusters;
    ``meets`` is the kind of meeting of blocks in front of it, empty for none."""

    name: str
    families: tuple[Placed, ...]
    meets: str
    groups: int = 0

    @property
    def tasks(self) -> int:
        """Tasks of all families, or of a group of them."""
        return self.families[-1].end

    def run(self) -> str:
        """The declaration of the tasks that are a block's. Raises ``cuda-shape`` for more tasks
        than are counted."""
        if self.tasks > MOST_TASKS:
            words = f"the phase {self.name} has {self.tasks} tasks, and {MOST_TASKS} are counted"
            fail("cuda-shape", words)
        if self.groups:
            return f"const mc::ClusterRun<CLUSTER> mine({self.groups}, {self.tasks});"
        if any(family.routed is not None for family in self.families):
            if len(self.families) > 1:
                fail("cuda-graph", f"the phase {self.name} does something for experts and more")
            return f"const mc::Run mine({self.families[0].of_expert} * choice.count());"
        return f"const mc::Run mine({self.tasks});"


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
    meets = ""
    for op in block.ops:
        match op:
            case task.Meet():
                if meets not in ("", op.kind):
                    fail("cuda-graph", f"blocks meet by {meets} and by {op.kind} at one place")
                meets = op.kind
            case tile.For():
                yield Loop(op.var, op.count.constant, tuple(_phases(op.regions[0])))
            case task.Phase():
                families, first = [], 0
                for family in op.regions[0].ops:
                    assert isinstance(family, task.Family)
                    families.append(Placed(family, first, op.groups, meets == task.TAGS))
                    first = families[-1].end
                yield Phase(op.name, tuple(families), meets, op.groups)
                meets = ""


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


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a weight that come through the ring: a stream of numbers, or of codes in ``form`` and
    then of what there is once for a group of them."""

    streams: tuple[task.Stream, ...]
    form: CodeFormat | None = None


def streamed_products(family: Placed) -> dict[tile.Compute, Rows]:
    """The products of a task with rows of a weight that come through the ring. Raises
    ``cuda-graph`` for codes that no kernel decodes."""
    streams = {
        op.result: op for op in family.ops if isinstance(op, task.Stream) and op.below is None
    }
    rows = {value: Rows((op,)) for value, op in streams.items()}
    decodes = {
        op.views()[0].buffer: op
        for op in family.ops
        if isinstance(op, tile.Compute) and op.kernel == "dequantise"
    }
    inner = {view.buffer for op in decodes.values() for view in op.views()[1:]}
    for numbers, op in decodes.items():
        if numbers not in inner:
            rows[numbers] = _coded(op, streams, decodes)
    return {
        op: rows[op.views()[2].buffer]
        for op in family.ops
        if isinstance(op, tile.Compute)
        and op.kernel == "gemm"
        and op.views()[2] == View(op.views()[2].buffer)
        and op.views()[2].buffer in rows
        and op.params["transposed"] is True
    }


def _coded(
    op: tile.Compute, streams: Mapping[Value, task.Stream], decodes: Mapping[Value, tile.Compute]
) -> Rows:
    """The rows that ``op`` makes numbers of, which are as wide as the views say: of streams, or of
    scales and least numbers that are decoded themselves."""
    _, codes, *numbers = op.views()
    group, zero = (int(str(op.params[name])) for name in ("group", "zero"))
    views, parts, firsts = [*op.views()], [codes], [codes]
    block = scale_zero = 0
    for view in numbers:
        inner = decodes.get(view.buffer)
        given = [view] if inner is None else inner.views()[1:]
        if inner is not None:
            views += inner.views()
            block = group * int(str(inner.params["group"]))
            scale_zero = scale_zero or int(str(inner.params["zero"]))
        parts += given
        firsts.append(given[0])
    turned = all(view == View(view.buffer, order=(1, 0)) for view in views)
    found = tuple(streams[part.buffer] for part in parts if part.buffer in streams)
    if not turned or len(found) != len(parts):
        fail("cuda-graph", "tasks decode codes that are no rows of a weight")
    kinds = [element_type(view.buffer) for view in firsts]
    least = kinds[2] if op.params["lifted"] else None
    given_form = CodeFormat("", kinds[0], group, zero, least, kinds[1], block, scale_zero)
    form = format_like(given_form)
    if form is None:
        fail("cuda-graph", f"kernels decode no codes like those of %{codes.buffer.name}")
    return Rows(found, form)


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

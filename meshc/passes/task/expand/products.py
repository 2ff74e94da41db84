"""Families of products: a group of rows of a weight, times what all tasks have whole, and what
follows on the same lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.functions import Function
from meshc.ir.ops import graph, ranks, task
from meshc.ir.ranks import RANK
from meshc.ir.types import BufferType, DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, View, Whole
from meshc.passes.task.expand.demand import Demand, refuse
from meshc.passes.task.expand.program import (
    ROWS,
    OpenTask,
    Part,
    TaskProgram,
    constant,
    region,
    span,
)
from meshc.passes.task.expand.values import Known, Stored
from meshc.support.diagnostics import fail

PART, HEAD, GROUP = "part", "h", "g"
"""The dims that count parts of the width of a product, heads, and groups of rows, of those of a
head where there are heads."""

POINTWISE = (graph.Scale, graph.Add, graph.Mul, Function)


class Products:
    """Writes families of products, and of what is stored for itself. A task gives as many lanes as
    the program's rows, those of several weights together. By ``heads`` the width of products of
    what was attended is divided. With ``columns`` left sides are given rounded, each once."""

    def __init__(self, program: TaskProgram, demand: Demand, heads: bool, columns: bool) -> None:
        self.program, self.demand, self.heads = program, demand, heads
        self.columns = columns
        self.multiplied: dict[Known, Block] = {}
        self.rounded: dict[Known, Known] = {}
        self.dealt: set[graph.Matmul] = set()
        self.shares: dict[OpenTask, int] = {}

    # --- families

    def multiply(
        self,
        op: graph.Matmul,
        left: Known,
        rights: Sequence[Known],
        joined: Sequence[Sequence[int]],
    ) -> dict[int, Known]:
        """The results, by their numbers, of products with weights, in one phase, which is that of
        products before with the same left side. Of ``joined`` results, which later ops compute with
        each other lane by lane, a task gives the same lanes."""
        if op.group:
            refuse(op, "a product of groups of heads with a weight")
        left = self.in_columns(left)
        parts = self._parts(op, left) if len(rights) == 1 and op not in self.dealt else 1
        if parts > 1:
            return {0: self._in_parts(op, left, rights[0], parts)}
        found: dict[int, Known] = {}
        for together in joined:
            phase = self.multiplied.get(left)
            if phase is None:
                numbers = sorted(n for one in joined for n in one)
                name = "_".join(op.results[n].name for n in numbers)
                phase = self.multiplied[left] = self.program.phase(name)
            found |= self._family(op, left, rights, together, phase)
        return found

    def _family(
        self,
        op: graph.Matmul,
        left: Known,
        rights: Sequence[Known],
        together: Sequence[int],
        phase: Block,
    ) -> dict[int, Known]:
        kinds = [tensor_type(op.results[n]) for n in together]
        given, taken = ([d for d in kind.dims if d not in ROWS] for kind in (kinds[0], left.kind))
        heads = [d for d in taken if d not in op.contract]
        across, down = taken[len(heads) :], given[len(heads) :]
        if heads != taken[: len(heads)] or heads != given[: len(heads)] or len(heads) > 1:
            refuse(op, f"a product that keeps {', '.join(heads)} of its left side, other than rows")
        name = op.results[together[0]].name
        opened = self.of_lanes(phase, name, heads, self.extent(down), len(together))
        if op in self.dealt:
            self._deal(opened)
        width = self.extent(across)
        columns = Part(Expr.var(HEAD) * width if heads else constant(0), width)
        return self.rows_times(opened, op, left, columns, rights, together, heads, HEAD)

    def rows_times(
        self,
        opened: OpenTask,
        op: graph.Matmul,
        left: Known,
        columns_of: Part,
        rights: Sequence[Known],
        together: Sequence[int],
        heads: Sequence[str],
        head: str,
        within: Index | None = None,
    ) -> dict[int, Known]:
        """The rows that tasks of ``opened`` have of weights, of those of the number ``head`` of
        ``heads`` if these are some, ``within`` some of their width, times columns of ``left``."""
        found = {}
        for number in together:
            kind, right = tensor_type(op.results[number]), rights[number]
            down = [d for d in kind.dims if d not in (*ROWS, *heads)]
            across = [d for d in left.kind.dims if d not in (*ROWS, *heads)]
            assert right.weight is not None
            if {*right.kind.dims} != {*heads, *down, *across}:
                refuse(op, f"a product with dims {', '.join(right.kind.dims)} of both sides")
            columns = self.demand.columns(opened, left, columns_of, right.kind.dtype)
            packed = heads, down, across, not {*heads} & {*kind.dims}
            weight = self.program.matrix(right.weight, right.stacked, *packed)
            lead = self.program.at_layer if right.stacked else ()
            of_head = [Point(Expr.var(head))] if heads else []
            start = opened.own.start if op in self.dealt else Expr.var(GROUP) * opened.own.count
            rows = span(start, opened.own.count)
            group = region(weight, *lead, *of_head, rows, within or Whole())
            tile = opened.add(task.Stream([group]), right.name)
            name = op.results[number].name
            result = opened.local(name, (self.program.tokens, opened.own.count))
            opened.compute("gemm", result, columns, tile, accumulate=False, transposed=True)
            found[number] = Known(name, kind, task=opened, here=result)
        return found

    def prepare(self, left: Known) -> None:
        """Let later phases need the left side of products, if not as it is rounded."""
        if not self.columns:
            self.store(left)

    def in_columns(self, known: Known) -> Known:
        """A left side of products as it is needed: with ``columns`` in memory, in the type of the
        model, once for all."""
        if not self.columns:
            return known
        if known not in self.rounded:
            self._check_routed(known)
            dtype = self.program.source.dtype()
            opened, here = self._for_columns(known)
            shape = [extent.constant for extent in View(here).shape()]
            value = opened.local(f"{known.name}_columns", shape, dtype)
            opened.compute("copy", value, here)
            lanes = self.program.padded(self.program.lanes(known.kind))
            buffer = self.program.scratch(value.name, (self.program.tokens, lanes), dtype)
            stored = Stored(buffer, self.program.at_layer, opened.phase)
            opened.add(task.Give([opened.own.of(buffer, stored.lead), View(value)]))
            kind = TensorType(dtype, known.kind.dims)
            self.rounded[known] = Known(
                value.name, kind, stored=stored, routed=known.routed, sent=known.sent
            )
        return self.rounded[known]

    def _for_columns(self, known: Known) -> tuple[OpenTask, Value]:
        """A family that has a value, and what each of its tasks has of it."""
        if known.here is not None and known.task is not None:
            return known.task, known.here
        if known.merged is not None:
            return self._merging(known, known.merged.extents[-1] - 2)
        lanes = self.program.lanes(known.kind)
        return self._by_token(known, lanes) if whole_rows(known) else self._by_lane(known)

    def _by_lane(self, known: Known) -> tuple[OpenTask, Value]:
        """A family of a phase, whose tasks have some lanes of a value, of all tokens."""
        phase, lanes = self.program.phase(known.name), self.program.lanes(known.kind)
        opened = self.of_lanes(phase, known.name, (), lanes)
        return opened, self.demand.of(opened, known, opened.own)

    def _by_token(self, known: Known, lanes: int) -> tuple[OpenTask, Value]:
        """A family of a phase, whose tasks have a token each, and so many lanes of a value."""
        own = Part(constant(0), lanes, Expr.var("b"))
        phase, tokens = self.program.phase(known.name), {"b": self.program.tokens}
        opened = self.program.family(phase, known.name, tokens, own)
        return opened, self.demand.of(opened, known, own)

    def deal(self, op: graph.Matmul) -> bool:
        """Let ranks share the lanes of a product whose result is one of the program, if they have
        equal shares of whole groups of rows."""
        lanes = self.program.lanes(tensor_type(op.result))
        even = self.program.ranks > 1 and not lanes % (self.program.ranks * self.program.rows)
        if even:
            self.dealt.add(op)
        return even

    def _deal(self, opened: OpenTask) -> None:
        """Let the tasks of a family be those of the rank's share of its lanes."""
        sizes = opened.family.domain
        sizes[GROUP] //= self.program.ranks
        opened.family.sizes = tuple(sizes.values())
        first = Expr.var(RANK) * sizes[GROUP] + Expr.var(GROUP)
        opened.own = Part(first * opened.own.count, opened.own.count)
        self.shares[opened] = sizes[GROUP] * opened.own.count

    def _parts(self, op: graph.Matmul, left: Known) -> int:
        """Into how many parts the width of a product is divided, of which tasks take one each: of
        what lies in a buffer as it is, so that a part is less to read, or of what was attended,
        where key heads have as many lanes as whole groups of rows."""
        taken = [d for d in left.kind.dims if d not in ROWS]
        parts, width = self.program.parts, self.extent(taken)
        if set(taken) != {*op.contract}:
            return 1
        if self.heads and left.key_heads:
            parts = left.key_heads
            whole = self.program.rows
        else:
            whole = 1
            if left.stored is None:
                return 1
            if self.program.tokens * width * DType.F32.bytes < self.program.wide:
                return 1
        if width % (parts * whole):
            self.program.undivided.append((f"%{op.result.name}, of width {width}", parts))
            return 1
        return parts

    def _in_parts(self, op: graph.Matmul, left: Known, right: Known, parts: int) -> Known:
        """A product whose tasks take one of ``parts`` of its width, and whose sums are added by
        tasks of a phase of its own, which go on with what follows."""
        name, kind = op.result.name, tensor_type(op.result)
        down, across = ([d for d in k.dims if d not in ROWS] for k in (kind, left.kind))
        assert right.weight is not None
        if {*right.kind.dims} != {*down, *across}:
            refuse(op, f"a product with dims {', '.join(right.kind.dims)} of both sides")
        lanes, size = self.extent(down), self.extent(across) // parts
        opened = self.of_lanes(self.program.phase(name), name, (), lanes, first={PART: parts})
        part = Expr.var(PART)
        columns = self.demand.columns(opened, left, Part(part * size, size), right.kind.dtype)
        weight = self.program.matrix(right.weight, right.stacked, (), down, across)
        lead = self.program.at_layer if right.stacked else ()
        own = span(opened.own.start, opened.own.count)
        tile = opened.add(task.Stream([region(weight, *lead, own, span(part * size, size))]), name)
        given = opened.local(f"{name}_part", (self.program.tokens, opened.own.count))
        opened.compute("gemm", given, columns, tile, accumulate=False, transposed=True)
        shape = (parts, self.program.tokens, self.program.padded(lanes))
        sums = self.program.scratch(f"{name}_parts", shape)
        place = region(sums, *self.program.at_layer, Point(part), Whole(), own)
        opened.add(task.Give([place, View(given)]))
        return self._sum(name, kind, lanes, sums, parts)

    def merged(self, known: Known, lanes: int) -> Known:
        """Attention merged by tasks of a phase of its own, so that others need no records."""
        opened, here = self._merging(known, lanes)
        found = Known(known.name, known.kind, task=opened, here=here)
        if not self.columns:
            self.store(found)
        return found

    def _merging(self, known: Known, lanes: int) -> tuple[OpenTask, Value]:
        """A family that merges records. A task has as many of a head's ``lanes`` as one of products
        gives, or the whole head where that is no part of it: each waits for the records of all
        splits."""
        name, heads = f"{known.name}_merged", self.program.lanes(known.kind) // lanes
        parts = lanes // self.program.rows if lanes % self.program.rows == 0 else 1
        own = Part(Expr.var(HEAD) * lanes, lanes)
        domain = {HEAD: heads}
        if parts > 1:
            own = Part(Expr.var(HEAD) * lanes + Expr.var(PART) * (lanes // parts), lanes // parts)
            domain[PART] = parts
        opened = self.program.family(self.program.phase(name), name, domain, own)
        return opened, self.demand.of(opened, known, own)

    def sum_of_ranks(self, op: ranks.AllReduce, known: Known) -> Known:
        """The sum of what all ranks have of a value, each of which gives its own to all; by tasks
        of a phase, which go on with what follows."""
        name, lanes = known.name, self.program.lanes(known.kind)
        opened, count = self._have(known), self.program.ranks
        shape = (count, self.program.tokens, self.program.padded(lanes))
        given = self.program.scratch(f"{name}_of_ranks", shape, of_ranks=True)
        lead = (*self.program.at_layer, Point(Expr.var(RANK)))
        self._give(known, Stored(given, lead, opened.phase))
        return self._sum(op.result.name, known.kind, lanes, given, count)

    def _sum(self, name: str, kind: TensorType, lanes: int, sums: Value, parts: int) -> Known:
        """A phase that adds the ``parts``, ``[parts, tokens, lanes]``, of a product."""
        called = name if name.endswith("_sum") else f"{name}_sum"
        opened = self.of_lanes(self.program.phase(called), called, (), lanes)
        own = span(opened.own.start, opened.own.count)
        place = region(sums, *self.program.at_layer, Whole(), Whole(), own)
        given = opened.add(task.Need([place]), f"{name}_parts")
        total = opened.local(name, (self.program.tokens, opened.own.count))
        opened.compute("copy", total, region(given, Point(constant(0))))
        opened.loop("s", constant(parts - 1))
        opened.compute("add", total, total, region(given, Point(Expr.var("s") + 1)))
        opened.leave()
        return Known(name, kind, task=opened, here=total)

    def extent(self, dims: Sequence[str]) -> int:
        """How many elements a value has along ``dims``."""
        return prod(self.program.source.dims[d] for d in dims)

    def look_up(self, value: Value) -> Known:
        """A family that has the rows of an input, group by group."""
        name, known = value.name, Known(value.name, tensor_type(value))
        buffer = self.program.rows_in(name, known.kind)
        opened = self.of_lanes(self.program.phase(name), name, (), self.program.lanes(known.kind))
        known.task = opened
        known.here = opened.add(task.Stream([opened.own.of(buffer)]), name)
        return known

    def given(self, value: Value) -> Known:
        """An input that tasks stream as it is."""
        kind = tensor_type(value)
        stored = Stored(self.program.rows_in(value.name, kind), (), 0)
        return Known(value.name, kind, stored=stored)

    def of_lanes(
        self,
        phase: Block,
        name: str,
        heads: Sequence[str],
        lanes: int,
        values: int = 1,
        first: Mapping[str, int] | None = None,
    ) -> OpenTask:
        """A family in which a task owns some of the ``lanes`` of each head, of so many ``values``;
        where there are no heads lanes are padded. Dims in ``first`` stand in front."""
        most = max(self.program.rows // values, 1)
        whole = lanes if heads else self.program.rows
        count = most_that_divide(whole, most)
        domain = dict(first or {}) | ({HEAD: self.extent(heads)} if heads else {})
        domain[GROUP] = (lanes if heads else self.program.padded(lanes)) // count
        start = Expr.var(GROUP) * count
        own = Part(Expr.var(HEAD) * lanes + start if heads else start, count)
        return self.program.family(phase, name, domain, own)

    # --- what follows

    def follow(self, op: Op, operands: Sequence[Known]) -> Known:
        """An op on single elements, or a rotation: by the tasks that have its operand, if all else
        that it takes is there before them, or later, by who needs it."""
        name, kind = op.results[0].name, tensor_type(op.results[0])
        made = Known(name, kind, later=op, operands=tuple(operands))
        made.routed, made.sent = routes(op, operands)
        lanes = [o for o in operands if o.kind.dims == kind.dims]  # not what is repeated over them
        opened = [o.task for o in lanes if o.task is not None and o.here is not None]
        if not opened:
            return made
        last = max(opened, key=lambda one: one.phase)
        for other in operands:
            if other.task is not None and other.task is not last:
                self.store(other)
            if other.task is not last and other.phase >= last.phase:
                for one in operands:
                    self.store(one)
                return made
        if isinstance(op, graph.Rope):
            (source,) = operands
            if source.here is None or not self.demand.turns(op, made, last.own):
                self.store(source)
                return made
            made.here = self.demand.turned(last, made, op, source.here, last.own)
        else:
            # An op whose operands may change places is written with those that have rows first.
            if operands[0].task is not last and operands[0].weight is not None:
                refuse(op, f"the weight {operands[0].name} as the left side")
            first = self.demand.of(last, operands[0], last.own)
            made.here = self.demand.pointwise(last, made, op, first, last.own)
        made.task, made.later = last, None
        return made

    def wait(self, op: Op, operands: Sequence[Known]) -> Known:
        """An op that each task computes which needs it; what it takes is stored."""
        for operand in operands:
            self.store(operand)
        return Known(
            op.results[0].name, tensor_type(op.results[0]), later=op, operands=tuple(operands)
        )

    # --- stores

    def store(self, known: Known) -> None:
        """Give a value that a family still has to a buffer, so that later phases can need it."""
        if known.stored is not None or known.here is None or known.task is None:
            return
        self._check_routed(known)
        lanes = self.program.padded(self.program.lanes(known.kind))
        buffer = self.program.scratch(known.name, (self.program.tokens, lanes))
        known.stored = Stored(buffer, self.program.at_layer, known.task.phase)
        self._give(known, known.stored)

    def _check_routed(self, known: Known) -> None:
        if known.routed is not None and not known.sent:
            fail("no-tasks", f"there are no tasks for %{known.name} of experts without rows")

    def deliver(self, known: Known, target: Stored) -> None:
        """Give a value to ``target``, by the family that has it, or by one of its own."""
        self._have(known)
        self._give(known, target)

    def deliver_out(self, known: Known) -> None:
        """Give a value as a result of the program. One that ranks share each gives to all, whose
        tasks bring the shares together."""
        opened = self._have(known)
        if opened in self.shares:
            known = self._of_all_ranks(known, opened, self.shares[opened])
            opened = self._have(known)
        buffer = self.program.rows_out(known.name, known.kind)
        self._give(known, Stored(buffer, (), opened.phase))

    def _of_all_ranks(self, known: Known, opened: OpenTask, share: int) -> Known:
        """A value of whose lanes each rank has a ``share``, as all of them give it."""
        program, count, value = self.program, opened.own.count, known.here
        assert value is not None
        shape = (program.ranks, program.tokens, share)
        shares = program.scratch(f"{known.name}_of_ranks", shape, of_ranks=True)
        own = span(Expr.var(GROUP) * count, count)
        opened.add(task.Give([region(shares, Point(Expr.var(RANK)), Whole(), own), View(value)]))
        name = f"{known.name}_whole"
        found = Known(known.name, known.kind)
        lanes = program.lanes(known.kind)
        found.task = whole = self.of_lanes(program.phase(name), name, (), lanes)
        start = whole.own.start
        place = Point(start // share), Whole(), span(start % share, whole.own.count)
        found.here = whole.add(task.Need([region(shares, *place)]), known.name)
        return found

    def _have(self, known: Known) -> OpenTask:
        """The family that has a value; one is opened if there is none."""
        if known.here is None or known.task is None:
            if self.columns and whole_rows(known):
                lanes = self.program.padded(self.program.lanes(known.kind))
                known.task, known.here = self._by_token(known, lanes)
                return known.task
            known.task, known.here = self._by_lane(known)
        return known.task

    def _give(self, known: Known, target: Stored) -> None:
        opened, value = known.task, known.here
        assert opened is not None and value is not None
        opened.add(task.Give([opened.own.of(target.buffer, target.lead), View(value)]))


def whole_rows(known: Known) -> bool:
    """Whether who computes a value from what is there needs more than its own lanes of it."""
    if known.stored is not None or known.later is None:
        return False
    if isinstance(known.later, graph.RmsNorm | graph.Centre | graph.Softmax):
        return True
    return any(map(whole_rows, known.operands))


def most_that_divide(count: int, most: int) -> int:
    """The largest number up to ``most`` that divides ``count``."""
    return next(n for n in range(min(most, count), 0, -1) if count % n == 0)


def routes(op: Op, operands: Sequence[Known]) -> tuple[Known | None, str]:
    """By which gates what an op gives is routed, and of which experts it is 0 for rows that are not
    sent to them (:class:`Known`)."""
    routed = next((one.routed for one in operands if one.routed is not None), None)
    keeps = isinstance(op, (graph.Scale, graph.Mul))
    return routed, next((one.sent for one in operands if one.sent), "") if keeps else ""


def joined_results(op: graph.Matmul, users: dict[Value, list[Op]]) -> list[list[int]]:
    """The results of a product in groups that ops on single elements bring together."""
    group = {n: n for n in range(len(op.results))}
    origin = {value: {n} for n, value in enumerate(op.results)}
    work = [*op.results]
    while work:
        value = work.pop()
        for user in users.get(value, ()):
            if not isinstance(user, POINTWISE) or len(user.results) != 1:
                continue
            known = origin.setdefault(user.results[0], set())
            more = origin[value] - known
            if more:
                known |= more
                work.append(user.results[0])
            kinds = {_lanes_of(op.results[n]) for n in known}
            if len(known) > 1 and len(kinds) == 1:
                least = min(group[n] for n in known)
                joined = {group[n] for n in known}
                group = {n: least if g in joined else g for n, g in group.items()}
    return [[n for n in group if group[n] == g] for g in dict.fromkeys(group.values())]


def _lanes_of(value: Value) -> object:
    kind = value.type
    assert not isinstance(kind, BufferType)
    return getattr(kind, "dims", None)

"""Statements of tasks as calls by all workers of a block, on values in shared memory.

What has a formula for each of its elements is no statement: who needs an element computes it. The
others (sums over rows, products of values, masks, what is written more than once) lie in shared
memory, and workers meet behind each.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod

from meshc.analysis.cuda.blocks import WARPS
from meshc.backends.cuda.tasks.integer_declarations import used_alone
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.reserved import fresh
from meshc.backends.cuda.tasks.spelling import bounds, condition, flattened, unflattened
from meshc.backends.cuda.tasks.values import Values, extents
from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.ops import task, tile
from meshc.ir.types import BufferType
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

SYNC = "mc::group_sync(1, WORKERS);"
OVER = "pace.over();"
MOST_STAGED = 2048
"""Elements of a vector that is brought to shared memory before statements read it: eight of each
thread."""
DRAW_WORK = 3 * 32 * WARPS
"""Numbers of 64 bits that workers add up to draw."""


@dataclass
class Text:
    """Lines of C with their depth; as a text without integers that nothing reads."""

    depth: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        """Lines at the present depth; empty ones stay empty."""
        self.lines += ["    " * self.depth + line if line else "" for line in lines]

    @contextmanager
    def within(self, head: str, tail: str = "}") -> Iterator[None]:
        """Lines in a block that begins with ``head``."""
        self.add(head)
        self.depth += 1
        yield
        self.depth -= 1
        self.add(tail)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in used_alone(self.lines))


@dataclass
class Locals:
    """Shared memory of values of tasks: floats from the start of LOCALS on. Tasks of one family
    have theirs together, those of different families lie over each other. ``combined`` are the rows
    of which warps combine the lanes, the most at once."""

    floats: int = 0
    most: int = 0
    names: int = 0
    combined: int = 0

    def restart(self) -> None:
        """Begin another family."""
        self.floats = self.names = 0

    def place(self, count: int) -> int:
        """Where ``count`` floats lie, on a 16-byte address."""
        at = self.floats
        self.floats += -(-count // 4) * 4
        self.most = max(self.most, self.floats)
        return at


@dataclass
class Statements:
    """Writes the statements of one task that its workers compute together."""

    values: Values
    text: Text
    locals: Locals
    stream: Callable[[task.Stream], None] | None = None
    loop: Callable[[tile.For, Callable[[], None]], None] | None = None

    def wanted(self, views: Iterable[View]) -> list[tile.Compute]:
        """The statements outside of loops that ``views`` need, in order."""
        needed: set[Value] = set()
        for view in views:
            needed |= self.values.behind(view)
        return [
            op
            for op in self.values.ops
            if isinstance(op, tile.Compute) and op.views()[0].buffer in needed
        ]

    def add(self, ops: Sequence[Op]) -> None:
        """Write ``ops``; what has a formula is left to who needs it."""
        for op in ops:
            match op:
                case tile.Compute():
                    self._compute(op)
                case tile.For() if not self._takes_rows(op):
                    (self.loop or self.rounds)(op, partial(self.add, op.regions[0].ops))
                case task.Stream() if self.stream is not None:
                    self.stream(op)
                case task.Give():
                    self._give(op)
                case task.Routed():
                    fail("cuda-graph", "workers that compute together do nothing for experts alone")

    def stage(self, views: Iterable[View]) -> None:
        """Bring the vectors of scratch that ``views`` are computed from to shared memory, each
        thread asking for all of its words before it waits for one: a statement behind another may
        read them again, one by one."""
        needed = set().union(*map(self.values.behind, views))
        self._ahead(needed)
        wanted: dict[str, list[Value]] = {}
        for value, read in self.values.reads.items():
            buffer = read.view.buffer
            small = prod(extents(View(value))) <= MOST_STAGED
            if value in needed and small and self.values.storage.role(buffer) == "":
                words = self.values.storage.words_of(buffer)
                wanted.setdefault(words, []).append(value)
        for words, some in wanted.items():
            # Vectors of whole fours lie one behind the other and are asked for together.
            whole = all(prod(extents(View(value))) % 4 == 0 for value in some)
            for together in [some] if whole else [[value] for value in some]:
                self._fetch(words, together)
        if wanted:
            self.text.add(SYNC)

    def _ahead(self, needed: Container[Value]) -> None:
        """Bring gains and angles that ``needed`` values are computed with near, before anything is
        waited for."""
        values, storage = self.values, self.values.storage
        for value, writers in values.writers.items():
            for op in writers if value in needed else ():
                position = op.params.get("position")
                if isinstance(position, Expr) and position.free_vars <= values.ranges.keys():
                    _, given, angles = op.views()
                    count = 4 * extents(given)[-1] // 2
                    for table in angle_of(values, op, angles, Expr.const(0)):
                        self.text.add(f"mc::prefetch(&{table}, {count}, me);")
        for value, read in values.reads.items():
            buffer, shape = read.view.buffer, extents(View(value))
            if value not in needed or len(shape) > 1 or storage.role(buffer) != "weight":
                continue
            if storage.ports[buffer].name in storage.module.constants:
                continue
            assert isinstance(buffer.type, BufferType)
            at = values.spelled(
                flattened(values.source(value, (Expr.const(0),))[1], buffer.type.shape)
            )
            self.text.add(f"mc::prefetch({storage.vector(buffer)} + {at}, {2 * shape[0]}, me);")

    def _fetch(self, words: str, wanted: Sequence[Value]) -> None:
        """Those that lie one behind the other, of such ``words`` (:meth:`Storage.words_of`)."""
        bits, *of_gpus = words.split(", ")
        storage, (first, *_) = self.values.storage, [self.array(value) for value in wanted]
        counts, places, tags = [], [], []
        for value in wanted:
            shape = extents(View(value))
            with self.values.within(element=prod(shape)):
                own = unflattened(Expr.var("element"), shape)
                buffer, at = self.values.source(value, own)
                place = self.values.spelled(storage.place(buffer, at))
                waits = self.values.waits and bits != "0"
                tags.append(storage.tag(buffer, at, self.values.ranges) if waits else "0u")
            counts.append(prod(shape))
            places.append(f"{storage.scratch(buffer)} + {place}")
        kind = ", ".join((bits, str(sum(counts)), "WORKERS", *of_gpus))
        self.text.add(f"mc::fetch<{kind}>({first}, me,")
        for given, end in ((_of_parts(counts, places), ","), (_of_parts(counts, tags), ");")):
            self.text.add(*(f"    {line}" for line in (*given[:-1], given[-1] + end)))

    def rounds(self, op: tile.For, body: Callable[[], None], most: str = "") -> None:
        """A loop of so many rounds, whose values in shared memory are there behind it; perhaps of
        the first ones alone, ``most`` of them."""
        count = op.count.constant
        for one in op.regions[0].ops:
            if isinstance(one, tile.Compute) and not self._has_formula(one):
                self.array(one.views()[0].buffer)
        self.values.ranges[op.var] = (0, max(count - 1, 0))
        head = f"for (int {op.var} = 0; {op.var} < {most or count}; {op.var}++) {{"
        with self.text.within(head):
            body()

    def array(self, value: Value) -> str:
        """The shared memory of ``value``, which is declared when it is first asked for."""
        known = self.values.arrays.get(value)
        if known is None:
            assert isinstance(value.type, BufferType)
            known = fresh(self.values.storage.taken, value.name)
            at = self.locals.place(prod(value.type.shape))
            self.text.add(f"float* const {known} = locals + {at};")
            self.values.arrays[value] = known
        return known

    # --- kinds of statements

    def _compute(self, op: tile.Compute) -> None:
        if self._has_formula(op):
            return
        self.array(op.views()[0].buffer)
        if op.when is None or op.when.is_true:
            self._whole(op)
            return
        with self.text.within(f"if ({condition(op.when, self.values.ranges)}) {{"):
            self._whole(op)

    def written(self, op: Op) -> bool:
        """Whether ``op`` is a statement, a loop perhaps, with something that has no formula."""
        if self._takes_rows(op):
            return False
        if isinstance(op, tile.Compute):
            return not self._has_formula(op)
        return any(map(self.written, (one for region in op.regions for one in region.ops)))

    def _takes_rows(self, op: Op) -> bool:
        """Whether ``op`` is a loop that copies rows which are read where they are."""
        inner = (one for region in op.regions for one in region.ops)
        written = (one.views()[0].buffer for one in inner if isinstance(one, tile.Compute))
        return any(value in self.values.taken for value in written)

    def _has_formula(self, op: tile.Compute) -> bool:
        """Whether who needs an element of what ``op`` writes computes it, or has it."""
        written = op.views()[0].buffer
        return written in self.values.registers or self.values.formula_of(written) is op

    def _whole(self, op: tile.Compute) -> None:
        match op.kernel:
            case "square_sum" | "row_sum" | "row_max" | "first_at":
                self._combine(op)
            case "gemm":
                self._gemm(op)
            case "merge_softmax":
                self._merge(op)
            case "mask_causal" | "mask_window":
                self._mask(op)
            case "rope":
                self._rope(op)
            case "top_k":
                self._gates(op)
            case "draw":
                self._draw(op)
            case "e4m3_rows":
                out, given = op.views()
                target, lanes = self.array(out.buffer), extents(out)[-1]
                self._coded(given, lambda at: [f"coded.put({target} + row * {lanes});"])
            case _:
                out = op.views()[0]
                self.each(
                    extents(out), lambda at: self._assign(out, at, self.values.computed(op, at))
                )

    def each(
        self, shape: Sequence[int], body: Callable[[tuple[Expr, ...]], None], meet: bool = True
    ) -> None:
        """A loop of the workers over the elements of ``shape``."""
        count = prod(shape)
        head = f"for (int element = me; element < {count}; element += WORKERS) {{"
        if count <= 32 * WARPS:
            head = f"if (const int element = me; element < {count}) {{"
        with self.values.within(element=count), self.text.within(head):
            body(unflattened(Expr.var("element"), shape))
        if meet:
            self.text.add(SYNC)

    def _coded(self, rows: View, then: Callable[[tuple[Expr, ...]], Sequence[str]]) -> None:
        """Rows are coded, each by a warp; what is done with one, at an index of its first lane."""
        *lead, lanes = extents(rows)
        head = f"for (int row = mc::warp(); row < {prod(lead)}; row += WORKERS / 32) {{"
        with self.values.within(row=prod(lead), lane=lanes), self.text.within(head):
            row = unflattened(Expr.var("row"), lead)
            element = self.values.element(rows, (*row, Expr.var("lane")))
            kind = f"mc::CodedRow<{lanes}>"
            self.text.add(f"const {kind} coded([&](int lane) {{ return {element}; }});")
            self.text.add(*then((*row, Expr.const(0))))
        self.text.add(SYNC)

    def _assign(self, view: View, at: Sequence[Expr], text: str) -> None:
        self.text.add(f"{self.values.element(view, at)} = {text};")

    def _combine(self, op: tile.Compute) -> None:
        out, given, *_ = op.views()
        rows, every = extents(out), extents(given)
        count, inner = prod(rows), prod(every[len(rows) :])
        with self.values.within(row=count, lane=inner):
            of_row = unflattened(Expr.var("row"), rows)
            index = (*of_row, *unflattened(Expr.var("lane"), every[len(rows) :]))
            value = self.values.element(given, index)
        if out.indices or out.reshape:
            # A column of a record: what it combines goes there from memory of its own.
            at = self.locals.place(count)
            target = f"locals + {at}"
        else:
            target = self.array(out.buffer)
        self.locals.combined = max(self.locals.combined, count)
        operator = "mc::Largest" if op.kernel in ("row_max", "first_at") else "mc::Sum"
        match op.kernel:
            case "square_sum":
                body = [f"const float v = {value};", "return v * v;"]
            case "first_at":
                body = self._first(op, value, of_row)
            case _:
                body = [f"return {value};"]
        with self.text.within(
            f"mc::combine_rows<{operator}, WORKERS>({target}, parts, {count}, {inner}, me, "
            "[&](int row, int lane) {",
            "});",
        ):
            self.text.add(*body)
        if target.startswith("locals"):

            def taken(at: tuple[Expr, ...]) -> None:
                place = self.values.spelled(flattened(at, rows))
                self._assign(out, at, f"({target})[{place}]")

            self.each(rows, taken)

    def _first(self, op: tile.Compute, value: str, row: tuple[Expr, ...]) -> list[str]:
        """What each lane gives to the least index of those that equal the largest."""
        params, top = op.params, op.views()[2]
        rank, lane = params["rank"], Expr.var("lane")
        assert isinstance(rank, Expr)
        count = extents(op.views()[1])[-1]
        with self.values.within(row=prod(extents(top)), lane=count):
            largest = self.values.element(top, row)
            at = self.values.spelled(rank * int(str(params["block"])) + lane)
        found = f"index < {params['limit']} && {value} == {largest}"
        return [f"const int index = {at};", f"return {found} ? -(float)index : -mc::infinity();"]

    def _gemm(self, op: tile.Compute) -> None:
        out, left, right = op.views()
        if len(out.shape()) != 2:
            fail("cuda-graph", "there is no CUDA for batches of products in a task")
        inner = extents(left)[1]

        def one(at: tuple[Expr, ...]) -> None:
            row, column = at
            k = Expr.var("k")
            second = (column, k) if op.params["transposed"] else (k, column)
            with self.values.within(k=inner):
                product = self.values.element(left, (row, k)), self.values.element(right, second)
            self.text.add(
                f"float v = {self.values.element(out, at) if op.params['accumulate'] else '0.0f'};",
                f"for (int k = 0; k < {inner}; k++) v = mc::fused({product[0]}, {product[1]}, v);",
                f"{self.values.element(out, at)} = v;",
            )

        self.each(extents(out), one)

    def _merge(self, op: tile.Compute) -> None:
        total, other = op.views()
        *rows, wide = extents(total)
        doubling = "true" if self._doubles(other.buffer) else "false"
        if op.params["count"] != 1 or total.indices or total.reshape:
            fail("cuda-graph", "there is no CUDA for softmaxes that are merged several at once")
        with self.values.within(row=prod(rows), lane=wide):
            index = (*unflattened(Expr.var("row"), rows), Expr.var("lane"))
            value = self.values.element(other, index)
        records = f"{self.array(total.buffer)}, {wide}, {prod(rows)}"
        call = f"mc::merge_records<{wide - 2}, {doubling}, WORKERS>({records}, me"
        with self.text.within(f"{call}, [&](int row, int lane) {{", "});"):
            self.text.add(f"return {value};")

    def _doubles(self, record: Value) -> bool:
        """Whether a record is one that the library has left, or is copied from one."""
        values = self.values
        copies = (op for op in values.writers.get(record, ()) if op.kernel == "copy")
        needs = map(values.reads.get, (record, *(op.views()[1].buffer for op in copies)))
        return any(n is not None and n.view.buffer in values.storage.doubling for n in needs)

    def _mask(self, op: tile.Compute) -> None:
        (scores,) = op.views()
        given = op.params

        def number(name: str) -> Expr:
            found = given[name]
            return found if isinstance(found, Expr) else Expr.const(int(str(found)))

        def one(at: tuple[Expr, ...]) -> None:
            *_, row, column = at
            key = self.values.spelled(number("key") + column * number("key_step").constant)
            query = self.values.spelled(number("query") + row * number("query_step").constant)
            limit = self.values.spelled(number("limit"))
            if op.kernel == "mask_causal":
                hidden = f"{key} > {query} || {key} >= {limit}"
            else:
                window = int(str(given["window"]))
                hidden = f"{key} <= min({query}, {limit} - 1) - {window}"
            self.text.add(f"if ({hidden}) {self.values.element(scores, at)} = -mc::infinity();")

        self.each(extents(scores), one)

    def _rope(self, op: tile.Compute) -> None:
        out, given, angles = op.views()

        def one(at: tuple[Expr, ...]) -> None:
            *head, row, lane = at
            own = (*head, row, lane)
            even = (*head, row, (lane // 2) * 2)
            odd = (*head, row, (lane // 2) * 2 + 1)
            cosine, sine = angle_of(self.values, op, angles, lane // 2)
            v = self.values
            self.text.add(
                f"const float even = {v.element(given, even)}, odd = {v.element(given, odd)};",
                f"const float cosine = {cosine}, sine = {sine};",
                f"{v.element(out, own)} = {v.spelled(lane % 2)} == 0 "
                "? mc::fused(even, cosine, -(odd * sine)) : mc::fused(odd, cosine, even * sine);",
            )

        self.each(extents(out), one)

    def _gates(self, op: tile.Compute) -> None:
        out, scores, *bias = op.views()
        *rows, count = extents(out)
        if prod(rows) != 1:
            fail("cuda-graph", "there is no CUDA for gates of several tokens in a task")
        given, at = op.params, Expr.var("candidate")
        with self.values.within(candidate=count):
            score = self.values.element(scores, (*[Expr.const(0)] * len(rows), at))
            choice = score + "".join(f" + {self.values.element(one, (at,))}" for one in bias)
        sizes = f"{count}, {given['count']}, {given['groups']}, {given['kept_groups']}"
        normalised = "true" if given["normalise"] else "false"
        kind = f"{sizes}, {given['group_top']}, {normalised}, WORKERS"
        work = f"locals + {self.locals.place(count + int(str(given['groups'])))}"
        self.text.add(
            f"mc::put_gates<{kind}>({self.array(out.buffer)}, {work}, me, 1,",
            f"    [&](int candidate) {{ return {score}; }},",
            f"    [&](int candidate) {{ return {choice}; }});",
        )
        if not self.values.storage.deals_pages:
            return
        with self.text.within("if (tokens[b] < 0) {  // nobody's"):
            loop = f"for (int x = me; x < {count}; x += WORKERS)"
            self.text.add(f"{loop} {self.array(out.buffer)}[x] = 0.0f;", SYNC)

    def _draw(self, op: tile.Compute) -> None:
        out, first, scores, weights, settings, stream = op.views()
        *rows, count = extents(scores)
        if prod(rows) != 1:
            fail("cuda-graph", "there is no CUDA for draws of several tokens in a task")
        row, at = [Expr.const(0)] * len(rows), Expr.var("lane")
        with self.values.within(lane=count):
            score, weight = (self.values.element(one, (*row, at)) for one in (scores, weights))
        given = [self.values.element(first, row)]
        for one in (settings, stream):
            given += [self.values.element(one, (*row, Expr.const(n))) for n in range(4)]
        work = f"(mc::u64*)(locals + {self.locals.place(2 * DRAW_WORK)})"
        self.text.add(
            f"mc::draw<{count}, WORKERS>({self.array(out.buffer)}, {work}, me, 1,",
            f"    {', '.join(given)},",
            f"    [&](int lane) {{ return {score}; }}, [&](int lane) {{ return {weight}; }});",
        )

    def _give(self, op: task.Give) -> None:
        storage, values = self.values.storage, self.values
        buffer, state = op.view.buffer, storage.role(op.view.buffer) == "state"

        def row(at: tuple[Expr, ...]) -> Sequence[str]:
            return [storage.stored_row(buffer, base(op.view, at), values.ranges, "coded")]

        def one(at: tuple[Expr, ...]) -> None:
            index, given = base(op.view, at), values.element(op.source, at)
            if state:
                place = storage.cached(buffer, index, values.ranges)
                self.text.add(f"{place} = mc::narrow<T>({given});")
            else:
                there = storage.where_result(buffer, index, values.ranges)
                self.text.add(there + storage.store(buffer, index, values.ranges, given))

        def given() -> None:
            if state and storage.coded(buffer):
                self._coded(op.source, row)
            else:
                self.each(extents(op.view), one)

        if op.when is None or op.when.is_true:
            given()
            return
        with self.text.within(f"if ({condition(op.when, values.ranges)}) {{"):
            given()


def _of_parts(counts: Sequence[int], given: Sequence[str]) -> list[str]:
    """A function of an element of vectors of so many, in C: what is ``given`` of each. One that a
    task needs twice is ``given`` in the same words twice."""
    if len(given) == 1 or (len(set(given)) == 1 and "element" not in given[0]):
        return [f"[&](int element) {{ return {given[0]}; }}"]
    lines = []
    for count, one in zip(counts[:-1], given, strict=False):
        lines += [f"    if (element < {count}) return {one};", f"    element -= {count};"]
    return ["[&](int element) {", *lines, f"    return {given[-1]};", "}"]


def angle_of(values: Values, op: tile.Compute, angles: View, pair: Expr) -> tuple[str, str]:
    """Cosine and sine of the angle of a pair, by the position of the step."""
    if op in values.angles:
        return values.angles[op]
    value = values.reads[angles.buffer].view.buffer
    index = values.source(angles.buffer, (pair,))[1]
    cosines, sines, count, layer = values.storage.table(value)
    place = index[0] * layer + index[1] if layer else index[0]
    position = op.params["position"]
    assert isinstance(position, Expr)
    at, last = values.spelled(position), values.storage.capacity - 1
    if bounds(position, values.ranges)[1] > last:
        at = f"min({at}, {last})"  # of what is no token
    at = at if at.isidentifier() else f"({at})"
    row = f"(size_t){at} * {count} + {values.spelled(place)}"
    return f"{cosines}[{row}]", f"{sines}[{row}]"

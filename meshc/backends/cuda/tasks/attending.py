"""Families that fold tiles of cached tokens: attention, as the library has it or statement by
statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from meshc.analysis.cuda.blocks import WARPS
from meshc.backends.cuda.tasks.asking import Asking, waited_for
from meshc.backends.cuda.tasks.columns import hoisted
from meshc.backends.cuda.tasks.families import Placed, folds, phases_around, phases_of
from meshc.backends.cuda.tasks.library_attention import (
    LibraryAttention,
    changed_scores,
    library_shape,
    streams_of,
)
from meshc.backends.cuda.tasks.reserved import fresh
from meshc.backends.cuda.tasks.spelling import bounds, condition, unflattened
from meshc.backends.cuda.tasks.statements import SYNC, Locals, Statements, Text
from meshc.backends.cuda.tasks.storage import Storage, base
from meshc.backends.cuda.tasks.values import Tile, Values, constant, extents
from meshc.ir.affine import Expr
from meshc.ir.batch import POSITION
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

ZERO = Expr.const(0)


def _copied(values: Values, value: Value) -> Value:
    """What ``value`` is, but for its type, a copy of."""
    op = values.formula_of(value)
    while op is not None and op.kernel == "copy":
        out, given = op.views()
        if out.reshape or given.indices or given.reshape or given.order:
            break
        value = given.buffer
        op = values.formula_of(value)
    return value


@dataclass
class Attention:
    """A family that attends; ``ranges`` are those of names around it."""

    family: Placed
    storage: Storage
    locals: Locals
    ranges: dict[str, tuple[int, int]]

    def __post_init__(self) -> None:
        (self.loop,) = [op for op in self.family.ops if isinstance(op, tile.For) and streams_of(op)]
        ranges = {**self.ranges, **self.family.ranges}
        ranges[POSITION] = (0, self.storage.capacity - 1)
        self.values = Values(self.storage, self.family.ops, ranges, self.family.waits)
        most = bounds(self.loop.count, self.values.ranges)[1]
        ranges[self.loop.var] = (0, max(most - 1, 0))
        self.streams = streams_of(self.loop)
        self._check_runs()
        self.shape = library_shape(self.family, self.loop, self.values)
        records = [op.view.buffer for op in self.family.ops if isinstance(op, task.Give)]
        if self.shape is not None:
            self.storage.doubling |= {r for r in records if self.storage.role(r) == ""}

    def _check_runs(self) -> None:
        """Tokens that are copied together lie in one page. Raises ``cuda-shape``."""
        tokens, together = extents(View(self.streams[0].result))[0], min(self.storage.page, 16)
        if tokens % together and together % tokens:
            words = f"runs of {tokens} tokens do not begin where pages of {self.storage.page} do"
            fail("cuda-shape", words)

    # --- the ring

    @property
    def tile_bytes(self) -> int:
        """Bytes of what a round of the fold streams."""
        return sum(map(self._bytes, self.streams))

    def _bytes(self, op: task.Stream) -> int:
        """Bytes of the rows of a tile of one cache."""
        return 2 * extents(View(op.result))[0] * self.storage.cache(op.view.buffer).lanes

    def bring(self, text: Text) -> None:
        """By the whole warp: the tiles of the block's tasks."""
        with self.family.each(text):
            self.family.point(text, self.family.op.dims)
            self._position(text)
            first = self._first(self.streams[0])
            _, request, _ = self._places(self.streams[0].view.buffer, self._base(self.streams[0]))
            pages, end = self.storage.pages(request, self.values.ranges), self._end(self.streams[0])
            start = self.values.spelled(first.substitute({self.loop.var: 0}))
            side = len(self.streams) if self._alike() else 1
            text.add(f"mc::Pages<{self.storage.page}, {side}> from({pages}, {start}, {end});")
            with self._rounds(text, release=False, skip=f"from.ahead({self._next(first)})"):
                tokens = extents(View(self.streams[0].result))[0]
                begin = self.values.spelled(first)
                total = sum(self.storage.cache(op.view.buffer).lanes for op in self.streams)
                acquired = f"ring.limit(item, FLYING), ring.acquire(item, count * {2 * total})"
                text.add(
                    f"const int begin = {begin}, count = min({tokens}, {end} - begin);",
                    f"if (mc::lane() == 0) {acquired};",
                    "mc::warp_sync();",
                )
                if side > 1:
                    text.add(self._bring_side_by_side())
                else:
                    at = 0
                    for op in self.streams:
                        text.add(self._bring(op, self._cache_at(op), str(at), begin="begin"))
                        at += self._bytes(op)
                text.add(f"from.ahead({self._next(first)});")

    def _next(self, first: Expr) -> str:
        """The first token of the next tile."""
        known = self.values.ranges[self.loop.var]
        self.values.ranges[self.loop.var] = (known[0], known[1] + 1)
        found = self.values.spelled(first.substitute({self.loop.var: Expr.var(self.loop.var) + 1}))
        self.values.ranges[self.loop.var] = known
        return found

    def _alike(self) -> bool:
        """Whether its tiles have rows of two caches of one shape, which lanes copy side by side."""
        caches = [self.storage.cache(op.view.buffer) for op in self.streams]
        return len(caches) == 2 and len({(c.heads, c.lanes, c.layer) for c in caches}) == 1

    def _bring_side_by_side(self) -> str:
        first, second = (self._cache_at(op) for op in self.streams)
        at = f"from.of() * {self._bytes(self.streams[0])}"
        return self._bring(self.streams[0], f"from.of() ? {second} : {first}", at, "begin")

    def _cache_at(self, op: task.Stream) -> str:
        """Where the cache of the present layer begins."""
        value, index = op.view.buffer, self._base(op)
        cache = self.storage.cache(value)
        layer, _, _ = self._places(value, index)
        offset = self.storage.of_layer(cache.layer, layer, self.values.ranges).removesuffix(" + ")
        return f"{cache.name} + {offset}" if offset else cache.name

    def _bring(self, op: task.Stream, cache_at: str, at: str, begin: str) -> str:
        cache = self.storage.cache(op.view.buffer)
        _, _, head = self._places(op.view.buffer, self._base(op))
        rows = f"mc::CacheRows<{cache.heads}, {self.storage.page}, {cache.lanes}>"
        given = f"ring, item, {at}, {cache_at}, from, {self.values.spelled(head)}, {begin}, count"
        return f"{rows}::bring({given});"

    def _base(self, op: task.Stream) -> tuple[Expr, ...]:
        return base(op.view, (ZERO, ZERO))

    def _places(self, value: Value, index: Sequence[Expr]) -> tuple[Expr, Expr, Expr]:
        """Layer, request and head of an element of a cache."""
        at = list(index)
        layer = at.pop(0) if self.storage.cache(value).layer else ZERO
        request = at.pop(0) if "B" in self.storage.cache_dims(value) else ZERO
        return layer, request, at[1] if len(at) == 3 else ZERO

    def _first(self, op: task.Stream) -> Expr:
        """The first token of a tile."""
        return self._base(op)[op.dim]

    def _end(self, op: task.Stream) -> str:
        assert op.below is not None
        return self.values.spelled(op.below)

    @contextmanager
    def _rounds(self, text: Text, release: bool, skip: str = "") -> Iterator[None]:
        """The loop over the tiles of a task, in which the ring goes on."""
        var, when = self.loop.var, self.streams[0].when
        text.add(f"const int tiles = {self.values.spelled(self.loop.count)};")
        with text.within(f"for (int {var} = 0; {var} < tiles; {var}++) {{"):
            if when is not None and not when.is_true:
                with text.within(f"if (!({condition(when, self.values.ranges)})) {{"):
                    text.add(*([f"{skip};"] if skip else []), "continue;")
            yield
            text.add("ring.release(item++);" if release else "item++;")

    def _position(self, text: Text) -> None:
        if self.storage.requests > 1:
            (request, *_) = self.family.op.dims
            text.add(f"const int {POSITION} = lengths[{request}];")

    # --- the workers

    def compute(self, text: Text) -> None:
        """By the workers: the block's tasks."""
        text.add("float* const locals = (float*)(arena + ATTENDING);")
        with self.family.each(text):
            self.family.point(text, self.family.op.dims)
            self._position(text)
            if self.shape is None:
                self._by_statements(text)
            else:
                self._by_library(text, self.shape)

    def _by_statements(self, text: Text) -> None:
        self.values.arrays.clear()

        def loop(op: tile.For, body: Callable[[], None]) -> None:
            if op is not self.loop:
                fail("cuda-graph", "a task folds other loops than that over its tokens")
            with self._rounds(text, release=True):
                self._tiles(text)
                body()
            self.values.tiles.clear()

        statements = Statements(self.values, text, self.locals, loop=loop)
        self.locals.restart()
        statements.add(self.family.ops)

    def _tiles(self, text: Text) -> None:
        """What came into the ring, by name."""
        at = 0
        text.add("const unsigned char* const tile = ring.ready(item);")
        for op in self.streams:
            name = fresh(self.storage.taken, op.result.name)
            lanes = self.storage.cache(op.view.buffer).lanes
            text.add(f"const T* const {name} = (const T*)(tile + {at});")
            assert op.below is not None
            self.values.tiles[op.result] = Tile(name, lanes, self._first(op), op.below)
            at += self._bytes(op)

    def _by_library(self, text: Text, shape: LibraryAttention) -> None:
        heads, lanes, groups = shape.heads, shape.lanes, shape.groups
        part = heads // groups
        statements = Statements(self.values, text, self.locals)
        self.values.arrays.clear()
        self.locals.restart()
        self.locals.place((heads + 2) * lanes)  # what the library works on comes first
        for view in (shape.query, shape.key, shape.value):
            statements.add(hoisted(self.values, view))
        factor, change = changed_scores(shape.steps)
        self._stage(text, statements, shape, factor)
        owner = self._owner()
        kind = f"mc::GroupAttention<T, {part}, {lanes}, WARPS>"
        names = [self.storage.taken.fresh("attended") for _ in range(groups)]
        for number in range(groups):
            fragments = f"asked + {number * (lanes // 16) * 256}"
            text.add(f"{kind}::put_queries({fragments}, locals + {number * part * lanes});")
        text.add(SYNC)
        for number, name in enumerate(names):
            text.add(f"{kind} {name}(asked + {number * (lanes // 16) * 256});")
            self._starts(text, shape, name, number, owner, change)
        first = "0"
        if shape.window:
            seen = f"{POSITION} + 1 - {shape.window}"
            first = f"max({seen}, 0)"
            if shape.windowed is not None and not shape.windowed.is_true:
                there = condition(shape.windowed, self.values.ranges)
                first = f"({there}) ? max({seen}, 0) : 0"
            text.add(f"const int seen = {first};")
            first = "seen"
        keys = math.prod(extents(View(self.streams[0].result)))
        with self._rounds(text, release=True):
            begin = self.values.spelled(self._first(self.streams[0]))
            text.add("const T* const keys = (const T*)ring.ready(item);")
            given = f"keys, keys + {keys}, {self.loop.var}, {begin}, {first}, {POSITION}"
            extra = f", {change}" if change else ""
            for name in names:
                text.add(f"{name}.template add<{shape.tokens}>({given}{extra});")
        self._leave(text, shape, names, kind)

    def _stage(
        self, text: Text, statements: Statements, shape: LibraryAttention, factor: float
    ) -> None:
        """Queries, times their factor, the new key and value, as floats one behind the other."""
        heads, lanes = shape.heads, shape.lanes
        owner = self._owner()
        asked = self._asked(text, shape)

        def query(at: tuple[Expr, ...]) -> None:
            value = self.values.element(shape.query, at)
            text.add(f"locals[element] = {value} * {constant(factor)};")

        gives = [self._give_of(view) for view in (shape.key, shape.value)]
        own = (ZERO, Expr.var("me"))
        fresh, places = [], []
        with self.values.within(me=lanes):
            for name, view, give in zip(
                ("key", "value"), (shape.key, shape.value), gives, strict=True
            ):
                fresh.append(f"{name} = me < {lanes} ? {self.values.element(view, own)} : 0.0f")
                at = base(give.view, own)
                place = self.storage.cached(give.view.buffer, at, self.values.ranges)
                places.append(place)
        text.add(f"const float {', '.join(fresh)};")
        for first, value in asked.items():
            there = heads * lanes - first
            guard = f"if (me < {there}) " if there < 32 * WARPS else ""
            element = f"me + {first}" if first else "me"
            text.add(f"{guard}locals[{element}] = {value} * {constant(factor)};")
        if not asked:
            statements.each((heads, lanes), query, meet=False)
        with text.within(f"if (me < {lanes}) {{"):
            text.add(
                "const T new_key = mc::narrow<T>(key), new_value = mc::narrow<T>(value);",
                f"locals[{heads * lanes} + me] = mc::widen(new_key);",
                f"locals[{(heads + 1) * lanes} + me] = mc::widen(new_value);",
            )
            stores = [f"{p} = new_{n};" for p, n in zip(places, ("key", "value"), strict=True)]
            if owner:
                with text.within(f"if ({owner}) {{"):
                    text.add(*stores)
            else:
                text.add(*stores)
        text.add(SYNC)
        self.values.registers.clear()

    def _asked(self, text: Text, shape: LibraryAttention) -> dict[int, str]:
        """Ask for a thread's words of the new key, of the value and of the queries, all before one
        of them is waited for; what the queries ``me`` elements behind these are then called. None,
        and nothing is asked for, where the task does not wait for these alone."""
        values = self.values
        needs = [_copied(values, view.buffer) for view in (shape.key, shape.value, shape.query)]
        if not all(waited_for(values, value) for value in needs):
            return {}
        asking, own = Asking(values), (ZERO, Expr.var("me"))
        count, workers = shape.heads * shape.lanes, 32 * WARPS
        asked = {}
        with values.within(me=workers):
            for value in needs[:2]:
                there = f"me < {shape.lanes}" if shape.lanes < workers else ""
                values.registers[value] = (asking.add(value, own, there), own)
            query = View(needs[2], shape.query.indices, shape.query.reshape)
            for first in range(0, count, workers):
                at = unflattened(Expr.var("me") + first, (shape.heads, shape.lanes))
                there = f"me < {count - first}" if count - first < workers else ""
                asked[first] = asking.add(needs[2], base(query, at), there)
        asking.write(text)
        return asked

    def _give_of(self, view: View) -> task.Give:
        """The op that gives what ``view`` is to its cache."""
        return next(
            op
            for op in self.family.ops
            if isinstance(op, task.Give) and op.source.buffer == view.buffer
        )

    def _starts(
        self, text: Text, shape: LibraryAttention, name: str, number: int, owner: str, change: str
    ) -> None:
        """What a warp knows before any tile: the new token, and in another warp the sink."""
        heads, lanes = shape.heads, shape.lanes
        part = heads // shape.groups
        there = f"{owner} && mc::warp() == 0" if owner else "mc::warp() == 0"
        places = number * part * lanes, heads * lanes, (heads + 1) * lanes
        given = ", ".join(f"locals + {place}" for place in places)
        extra = f", {change}" if change else ""
        text.add(f"if ({there}) {name}.start({given}{extra});")
        if shape.sink is not None:
            splits = self.family.op.sizes[-1]
            first = f"{self.family.op.dims[-1]} == 0 && " if splits > 1 else ""
            head = Expr.var("h")
            self.values.ranges["h"] = (0, part - 1)
            score = self.values.element(shape.sink, (head + number * part,))
            of_head = f"[&](int h) {{ return {score} * mc::LOG2E; }}"
            text.add(f"if ({first}mc::warp() == WARPS - 1) {name}.start_with_sink({of_head});")

    def _leave(self, text: Text, shape: LibraryAttention, names: Sequence[str], kind: str) -> None:
        (give,) = [
            op
            for op in self.family.ops
            if isinstance(op, task.Give) and self.storage.role(op.view.buffer) != "state"
        ]
        part = shape.heads // shape.groups
        value, at = give.view.buffer, base(give.view, (ZERO, ZERO))
        stride = self.storage.shape(value)[-1]
        place = self.values.spelled(self.storage.place(value, at))
        text.add(f"float* const record = {self.storage.scratch(value)} + {place};")

        def store(place: str, element: str) -> str:
            return self.storage.store(value, at, self.values.ranges, element, f"own + {place}")

        for number, name in enumerate(names):
            text.add(f"{name}.put(joined, statistics);", SYNC)
            taken = "[=](int i, float sum, float most, float weight) {"
            with text.within(f"{kind}::join(joined, statistics, me, {taken}", "});"):
                shift = f" + {number * part}" if number else ""
                row = f"(i / {shape.lanes}{shift})" if shift else f"i / {shape.lanes}"
                text.add(
                    f"float* const own = record + {row} * {stride};",
                    store(f"i % {shape.lanes}", "sum"),
                    f"if (i % {shape.lanes} != 0) return;",
                    store(str(shape.lanes), "weight"),
                    store(str(shape.lanes + 1), "most"),
                )
            text.add(SYNC)

    def _owner(self) -> str:
        """Whether the task has the token of the step, empty where each has it."""
        gives = [
            op
            for op in self.family.ops
            if isinstance(op, task.Give) and self.storage.role(op.view.buffer) == "state"
        ]
        when = gives[0].when if gives else None
        return "" if when is None or when.is_true else condition(when, self.values.ranges)


def attends_by_statements(module: Module) -> tuple[str, ...]:
    """The families of a placed ``module`` whose attention the library has no routine for."""
    storage = Storage(module, module, page=1)
    return tuple(
        family.op.name
        for ranges, phase in phases_around(phases_of(module))
        for family in phase.families
        if folds(family) and Attention(family, storage, Locals(), ranges).shape is None
    )

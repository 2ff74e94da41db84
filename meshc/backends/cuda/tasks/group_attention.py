"""Attention of queries that share a key head, as the library has it (mc_group_attention.cuh): those
of a few heads, of one token or of several."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

from meshc.analysis.cuda.blocks import FRAGMENT, WARPS
from meshc.analysis.tasks.tiles import group_attention_bytes, neighbours, query_values
from meshc.backends.cuda.tasks.asking import Asking, waited_for
from meshc.backends.cuda.tasks.cached_tiles import ZERO, CachedTiles
from meshc.backends.cuda.tasks.columns import hoisted
from meshc.backends.cuda.tasks.library_attention import SET, LibraryAttention, changed_scores
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.new_rows import NewRows
from meshc.backends.cuda.tasks.spelling import condition, unflattened
from meshc.backends.cuda.tasks.statements import SYNC, Locals, Statements, Text
from meshc.backends.cuda.tasks.values import Values, constant, extents, taken_rows
from meshc.ir.affine import Expr
from meshc.ir.batch import POSITION
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail


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


def coded_from(values: Values, view: View) -> View:
    """What rows of a cache that are coded as ``view`` are coded from. Raises ``cuda-graph`` where
    they are not."""
    writers = values.writers.get(view.buffer, [])
    if len(writers) != 1 or not writers[0].kernel.endswith("_rows"):
        fail("cuda-graph", f"%{view.buffer.name}, which caches keep coded, is not rounded so")
    (out, given) = writers[0].views()
    if out != View(view.buffer) or given.reshape or given.order:
        fail("cuda-graph", f"%{view.buffer.name} is not rounded row by row")
    return given


@dataclass
class GroupAttention:
    """The attention ``shape`` of a family over ``tiles``."""

    tiles: CachedTiles
    shape: LibraryAttention
    locals: Locals

    def __post_init__(self) -> None:
        self.family, self.storage = self.tiles.family, self.tiles.storage
        self.values = self.tiles.values
        self.values.taken = taken_rows(self.family.ops)
        self.new_rows = NewRows(self.tiles, self.shape.new, self.shape.own)

    @property
    def parts(self) -> list[tuple[str, int, str]]:
        """What it works in: name, bytes and note."""
        shape, several = self.shape, self.tiles.neighbours
        given = shape.queries, shape.lanes, several.passes, several.together
        sizes = group_attention_bytes(*given)
        joined = ("JOINED", sizes["JOINED"], "attention sums of the warps")
        fresh = ("FRESH", 4 * shape.new * shape.lanes, "new keys, then values")
        if self.coded:
            fresh = ("NEW_ROWS", 2 * self._new_bytes, "new keys, then values, coded")
        return [
            *([] if self._joins_in_locals else [joined]),
            ("STATISTICS", sizes["STATISTICS"], "their highest scores and weights"),
            ("ASKED", sizes["ASKED"], "queries as fragments"),
            *([fresh] if shape.new > 1 else []),
        ]

    @property
    def _fragments(self) -> int:
        """Values of the queries that products take together, as fragments."""
        return query_values(self.tiles.neighbours.together * self.shape.queries, self.shape.lanes)

    def attend_at_once(self) -> None:
        """Let a block attend at once for tokens of a batch that stand one behind the other in their
        request."""
        shape, several = self.shape, self.tiles.neighbours
        if self.storage.owned and shape.own is not None:
            found = neighbours(shape.new, shape.queries, shape.lanes)
            several.most, several.together = found

    @property
    def _joins_in_locals(self) -> bool:
        """Whether sums are joined where the queries were, which nobody reads behind the meeting
        that fragments wait for: but for a step, whose new token is no tile. Where it has several
        neighbours, workers meet once more."""
        return self.shape.asking > 1 or self.tiles.neighbours.most > 1

    @property
    def _one(self) -> bool:
        """Whether one new token, which is no tile, is attended first."""
        return self.shape.new == 1 or self.shape.own is not None

    @property
    def coded(self) -> bool:
        """Whether keys and values are coded."""
        return self.tiles.coded

    @property
    def _new_bytes(self) -> int:
        """Bytes of the new keys, coded, and of the values."""
        first = self.tiles.streams[0].view.buffer
        return self.storage.cache(first).tile_bytes(self.shape.new)

    @property
    def kind(self) -> str:
        """The routine of the library."""
        return self._kind(self.tiles.neighbours.together * self.shape.queries)

    def _kind(self, queries: int) -> str:
        """The same for so many queries."""
        coded = ", true" if self.coded else ""
        return f"mc::GroupAttention<T, {queries}, {self.shape.lanes}, WARPS{coded}>"

    def _given(self, view: View) -> View:
        """New keys or values, of coded ones what is coded."""
        return coded_from(self.values, view) if self.coded else view

    def compute(self, text: Text) -> None:
        """Write what the workers do: a task, or those of neighbouring tokens."""
        shape, several = self.shape, self.tiles.neighbours
        statements = self.new_rows.statements(text, self.locals)
        self.values.arrays.clear()
        self.locals.restart()
        rows, sums = several.most * self._rows_of_token, WARPS * min(shape.queries, SET)
        if shape.asking > 1:
            rows = max(rows, sums)
        self.locals.place(rows * shape.lanes)  # what the library works on comes first
        if several.most > 1:
            self.locals.most = max(self.locals.most, sums * shape.lanes)
        name = self.storage.taken.fresh("attended")
        if several.most == 1:
            self._alone(text, statements, name)
        else:
            self._at_once(text, statements, name)

    def _alone(self, text: Text, statements: Statements, name: str) -> None:
        """A task by itself."""
        shape, (factor, change) = self.shape, changed_scores(self.shape.steps)
        self._needed(statements, shape.query, self._given(shape.key), self._given(shape.value))
        self._stage(text, statements, factor)
        position = self.values.spelled(shape.position)
        if shape.asking > 1:
            of_row = _over(f"{self.kind}::row()", shape.heads)
            text.add(f"const int asks = {position} + {of_row};")
            position = "asks"  # of this lane's query
        text.add(f"{self.kind}::put_queries(asked, locals);", SYNC)
        first = self._seen(text, position)
        text.add(f"{self.kind} {name}(asked);")
        self._starts(text, name, first, f"{position} + 1", change)
        limit = POSITION if shape.own is None else position
        with self.tiles.rounds(text, release=True):
            given, extra = self._tile(text, change)
            text.add(f"{name}.{self._add}({given}, {limit}, {first}, {limit}{extra});")
        self._leave(text, name)

    def _at_once(self, text: Text, statements: Statements, name: str) -> None:
        """Those of neighbouring tokens."""
        shape, several, change = self.shape, self.tiles.neighbours, changed_scores(self.shape.steps)
        self._needed(statements, self._given(shape.key), self._given(shape.value))
        self._stage_neighbours(text, statements, change[0])
        with text.within(f"{self.kind} {name}[{several.passes}] = {{", "};"):
            places = [f" + {n * self._fragments}" * (n > 0) for n in range(several.passes)]
            text.add(*(f"{self.kind}(asked{place})," for place in places))
        name += "[pass]"
        with several.each_pass(text):
            self._start_neighbours(text, name, change[1])
        asks = limit = self.values.spelled(shape.position)
        with self.tiles.rounds(text, release=True):
            given, extra = self._tile(text, change[1])
            with several.each_pass(text), self._with_tile(text):
                if several.together > 1:
                    of_row = _over(f"{self.kind}::row({self._there})", shape.queries)
                    text.add(f"const int asks = {limit} + {of_row};")
                    asks, limit = "asks", f"{limit} + there - 1"
                first = self._seen(text, asks)
                text.add(f"{name}.{self._add}({given}, {limit}, {first}, {asks}{extra});")
        text.add(SYNC)
        with several.each_pass(text), several.each_of_pass(text):
            self._leave(text, name)

    @property
    def _add(self) -> str:
        """What adds of a tile."""
        return f"template add<{self.shape.tokens}>"

    def _tile(self, text: Text, change: str) -> tuple[str, str]:
        """A tile that is there, as it is told to what adds of it: what comes in front of the tokens
        that queries see, and behind them."""
        shape, var = self.shape, self.tiles.loop.var
        keys = math.prod(extents(View(self.tiles.streams[0].result)))
        begin = self.values.spelled(self.tiles.first(self.tiles.streams[0]))
        extra = f", {change}" if change else ""
        if self.coded:
            text.add("const mc::u8* const keys = ring.ready(item);")
            tile = self._coded_tile("keys", self.tiles.at(self.tiles.streams[1]))
            if shape.own is not None:
                fresh = self._coded_tile("new_rows", self._new_bytes)
                tile = f"mc::CodedNewTile<{shape.lanes}>{{{tile}, {fresh}, {POSITION}}}"
            return f"{tile}, {var}, {begin}", extra
        text.add("const T* const keys = (const T*)ring.ready(item);")
        if shape.own is not None:
            new = f"fresh, fresh + {shape.new * shape.lanes}, {POSITION}"
            extra = f", {change or 'mc::Same()'}, mc::NewRows<T, {shape.lanes}>{{{new}}}"
        return f"keys, keys + {keys}, {var}, {begin}", extra

    @property
    def _there(self) -> str:
        """How many queries of several neighbours a pass has."""
        queries = self.shape.queries
        return f"{queries} * there" if queries > 1 else "there"

    @property
    def _rows_of_token(self) -> int:
        """Rows of a token that the library works on: its queries, its key and its value."""
        return self.shape.queries + 2

    def _needed(self, statements: Statements, *views: View) -> None:
        """Write the statements that ``views`` need, of all of which vectors are asked for first."""
        before = [hoisted(self.values, view) for view in views]
        if any(map(statements.written, chain.from_iterable(before))):
            statements.stage(views)
        self.values.all_there = False
        for ops in before:
            statements.add(ops)
        self.values.all_there = True

    def _seen(self, text: Text, position: str) -> str:
        """The first token that the one at ``position`` sees."""
        shape = self.shape
        if not shape.window:
            return "0"
        seen = f"{position} + 1 - {shape.window}"
        first = f"max({seen}, 0)"
        if shape.windowed is not None and not shape.windowed.is_true:
            there = condition(shape.windowed, self.values.ranges)
            first = f"({there}) ? max({seen}, 0) : 0"
        text.add(f"const int seen = {first};")
        return "seen"

    @contextmanager
    def _with_tile(self, text: Text) -> Iterator[None]:
        """Where one of several neighbours sees something of a tile."""
        when = self.tiles.streams[0].when
        if self.tiles.neighbours.most == 1 or when is None or when.is_true:
            yield
            return
        with text.within(f"if ({condition(when, self.values.ranges)}) {{"):
            yield

    def _stage(self, text: Text, statements: Statements, factor: float) -> None:
        """Queries, times their factor, the new key and value, as floats one behind the other; keys
        and values of several as tiles."""
        shape = self.shape
        queries, lanes = shape.queries, shape.lanes
        asked = self._asked(text)
        if shape.new > 1:
            self._stage_queries(text, statements, factor)
            self._stage_new(text, statements)
            if shape.own is not None:
                self._stage_own(text)
                text.add(SYNC)
            return
        kept = self.tiles.kept(shape.key)
        gives = [self.tiles.give_of(view) for view in (shape.key, shape.value)]
        own = (ZERO, Expr.var("me"))
        fresh, places = [], []
        with self.values.within(me=lanes):
            views = self._given(shape.key), self._given(shape.value)
            for name, view, give in zip(("key", "value"), views, gives, strict=True):
                fresh.append(f"{name} = me < {lanes} ? {self.values.element(view, own)} : 0.0f")
                if not self.coded:
                    at = base(give.view, own)
                    place = self.storage.cached(give.view.buffer, at, self.values.ranges)
                    places.append(place)
        text.add(f"const float {', '.join(fresh)};")
        for first, value in asked.items():
            there = queries * lanes - first
            guard = f"if (me < {there}) " if there < 32 * WARPS else ""
            with self.values.within(me=32 * WARPS):
                at = unflattened(Expr.var("me") + first, (queries, lanes))
                element = self._place(*at) if self._turned else f"me + {first}" if first else "me"
            text.add(f"{guard}locals[{element}] = {value}{_times(factor)};")
        if not asked:
            self._stage_queries(text, statements, factor)
        if self.coded:
            self._code_row(text)
            self.values.registers.clear()
            return
        with text.within(f"if (me < {lanes}) {{"):
            with self.values.within(me=lanes):
                place = self.values.spelled(self._lane(Expr.var("me")))
            text.add(
                "const T new_key = mc::narrow<T>(key), new_value = mc::narrow<T>(value);",
                f"locals[{queries * lanes} + {place}] = mc::widen(new_key);",
                f"locals[{(queries + 1) * lanes} + me] = mc::widen(new_value);",
            )
            stores = [f"{p} = new_{n};" for p, n in zip(places, ("key", "value"), strict=True)]
            if kept:
                with text.within(f"if ({kept}) {{"):
                    text.add(*stores)
            else:
                text.add(*stores)
        text.add(SYNC)
        self.values.registers.clear()

    def _stage_queries(self, text: Text, statements: Statements, factor: float) -> None:
        """The queries of a token, times their factor."""

        def query(at: tuple[Expr, ...]) -> None:
            value = self.values.element(self.shape.query, at)
            text.add(f"{self._queries}[{self._place(*at)}] = {value}{_times(factor)};")

        statements.each((self.shape.queries, self.shape.lanes), query, meet=False)

    def _stage_new(self, text: Text, statements: Statements) -> None:
        """Keys and values of several new tokens, as rows of a tile."""
        if self.coded:
            self._code_tile(text)
        else:
            self._stage_tile(text, statements)

    def _stage_neighbours(self, text: Text, statements: Statements, factor: float) -> None:
        """The new keys and values up to the last one's of neighbouring tokens, then the queries of
        each, and behind those of all its own key and value."""
        shape, several = self.shape, self.tiles.neighbours
        self._stage_new(text, statements)
        size, own = shape.queries * shape.lanes, 2 * shape.lanes
        self.locals.restart()  # what keys and values were computed from is not needed any more
        self.locals.place(several.most * self._rows_of_token * shape.lanes)
        with several.each_token(text):
            self.values.arrays = {}  # what a token needs is computed for each
            text.add(
                f"float* const queries = locals + {size} * nth;",
                f"float* const own_rows = locals + {several.most * size} + {own} * nth;",
            )
            self._needed(statements, shape.query)
            self._stage_queries(text, statements, factor)
            self._stage_own(text)
            text.add(SYNC)
        with several.each_pass(text, unrolled=False):
            given = f"asked + {self._fragments} * pass, {self._of_pass(size)}, {self._there}"
            text.add(f"{self.kind}::put_queries({given});")
        text.add(SYNC)

    def _of_pass(self, size: int, begin: int = 0) -> str:
        """Where among floats of all neighbours, of ``size`` each, those of a pass are."""
        first = f"locals + {begin}" if begin else "locals"
        return f"{first} + {self.tiles.neighbours.together * size} * pass"

    @property
    def _queries(self) -> str:
        """Where the queries of a token lie."""
        return "locals" if self.tiles.neighbours.most == 1 else "queries"

    @property
    def _number(self) -> str:
        """Which of the warps that have the same queries one is."""
        return "mc::warp()" if self._one_set else f"{self.kind}::number()"

    @property
    def _one_set(self) -> bool:
        """Whether all warps have the same queries."""
        return self.tiles.neighbours.together * self.shape.queries <= SET

    def _code_row(self, text: Text) -> None:
        """The new key and value, which threads have, as the numbers that they are coded as; the
        task's own go to the caches."""
        shape = self.shape
        lanes, first = shape.lanes, shape.queries * shape.lanes
        with self.values.within(me=lanes):
            place = self.values.spelled(self._lane(Expr.var("me")))
        new = f"locals[{first} + {place}] = key, locals[{first + lanes} + me] = value;"
        text.add(f"if (me < {lanes}) {new}", SYNC)
        for warp, view in enumerate((shape.key, shape.value)):
            with text.within(f"if (mc::warp() == {warp}) {{"):
                text.add(
                    f"float* const row = locals + {first + warp * lanes};",
                    f"const mc::CodedRow<{lanes}> coded([&](int lane) {{ return row[lane]; }});",
                    "coded.put(row);",
                )
                text.add(self._stored(view, (ZERO, ZERO), ordered=True))
        text.add(SYNC)

    def _code_tile(self, text: Text) -> None:
        """Keys and values of the new tokens, coded, as rows of a tile; the task's own go to the
        caches. A warp codes a row."""
        shape, values = self.shape, self.values
        lanes, row = shape.lanes, Expr.var("row")
        head = f"for (int row = mc::warp(); row < {self.new_rows.count}; row += WARPS) {{"
        with values.within(row=shape.new), text.within(head):
            for number, view in enumerate((shape.key, shape.value)):
                with values.within(lane=lanes):
                    element = values.element(self._given(view), (row, Expr.var("lane")))
                coded = f"coded([&](int lane) {{ return {element}; }})"
                token = "row" if shape.own is None else values.spelled(row + Expr.var(POSITION))
                order = self.storage.order_of(self.tiles.streams[number].view.buffer)
                to = f"new_rows + {self._new_bytes}" if number else "new_rows"
                with text.within("{"):
                    text.add(
                        f"const mc::CodedRow<{lanes}> {coded};",
                        f"coded.store({to}, row, {token}{order});",
                        self._stored(view, (row, ZERO)),
                    )
        text.add(SYNC)
        values.registers.clear()

    def _stored(self, view: View, at: tuple[Expr, ...], ordered: bool = False) -> str:
        """A statement of a warp that stores the row of new keys or values that it has ``coded`` in
        its cache, where the task has it."""
        cache, index, there = self.tiles.kept_row(view, at)
        stored = self.storage.stored_row(cache, index, self.values.ranges, "coded", ordered)
        return f"if ({there}) {stored}" if there else stored

    def _coded_tile(self, keys: str, values: int) -> str:
        """A tile of the library: keys, and behind so many bytes values."""
        return f"mc::CodedTile<{self.shape.lanes}>{{{keys}, {keys} + {values}}}"

    def _stage_tile(self, text: Text, statements: Statements) -> None:
        """Keys and values of the new tokens, as rows of a tile; the task's own go to the caches."""
        shape, values = self.shape, self.values
        count = shape.new * shape.lanes

        def staged(view: View, first: str, at: tuple[Expr, ...]) -> None:
            row = values.spelled(at[0])
            lane = values.spelled(at[1] if first else self._lane(at[1]))
            place = f"{first}({row}) * {shape.lanes}"
            token = row if shape.own is None else values.spelled(at[0] + Expr.var(POSITION))
            text.add(
                f"const T lane = mc::narrow<T>({values.element(view, at)});",
                f"fresh[{place} + mc::Swizzle<{shape.lanes}>::lane({lane}, {token})] = lane;",
            )
            cache, index, there = self.tiles.kept_row(view, at)
            cached = self.storage.cached(cache, index, values.ranges)
            text.add(f"if ({there}) {cached} = lane;" if there else f"{cached} = lane;")

        for view, first in ((shape.key, ""), (shape.value, f"{count} + ")):
            stage = partial(staged, view, first)
            if not self.storage.owned:
                statements.each((shape.new, shape.lanes), stage, meet=False)
                continue
            rows = f"{shape.lanes} * ({self.new_rows.count})"
            head = f"for (int element = me; element < {rows}; element += WORKERS) {{"
            with values.within(element=count), text.within(head):
                stage(unflattened(Expr.var("element"), (shape.new, shape.lanes)))
        text.add(SYNC)
        values.registers.clear()

    @property
    def _turned(self) -> bool:
        """Whether caches have lanes of keys in another order than tasks."""
        return self._lane(Expr.var("lane")) != Expr.var("lane")

    def _lane(self, lane: Expr) -> Expr:
        """Where a lane of a key, and so of a query, lies in a row of the cache."""
        return self.storage.rows.lane(self.tiles.streams[0].view.buffer, lane)

    def _place(self, row: Expr, lane: Expr) -> str:
        """Where a lane of a query lies among those of all."""
        if not self._turned:
            return "element"
        return self.values.spelled(row * self.shape.lanes + self._lane(lane))

    def _stage_own(self, text: Text) -> None:
        """The key and value of the task's token, of several new ones, as floats."""
        shape, values = self.shape, self.values
        assert shape.own is not None
        count, lanes = shape.new * shape.lanes, shape.lanes
        if self.coded:
            own, at = values.spelled(shape.own), values.spelled(shape.position)
            with text.within(f"if (me < {lanes}) {{"):
                for number in range(2):
                    given = f"new_rows + {number * self._new_bytes}, {own}, {at}, me"
                    element = f"mc::CodedRows<{lanes}>::element({given})"
                    text.add(f"{self._own_row(number)} = {element};")
            return
        with values.within(me=lanes), text.within(f"if (me < {lanes}) {{"):
            row = values.spelled(shape.own)
            lane = f"mc::Swizzle<{lanes}>::lane(me, {values.spelled(shape.position)})"
            text.add(
                f"const T* const own = fresh + ({row}) * {lanes} + {lane};",
                f"{self._own_row(0)} = mc::widen(own[0]);",
                f"{self._own_row(1)} = mc::widen(own[{count}]);",
            )

    def _own_row(self, number: int) -> str:
        """The lane of a thread of the own key, or value, of a token as floats."""
        shape = self.shape
        if self.tiles.neighbours.most > 1:
            return f"own_rows[{shape.lanes} + me]" if number else "own_rows[me]"
        return f"locals[{(shape.queries + number) * shape.lanes} + me]"

    def _asked(self, text: Text) -> dict[int, str]:
        """Ask for a thread's words of the new key, of the value and of the queries, all before one
        of them is waited for; what the queries ``me`` elements behind these are then called. None,
        and nothing is asked for, where the task does not wait for these alone."""
        values, shape = self.values, self.shape
        views = self._given(shape.key), self._given(shape.value), shape.query
        needs = [_copied(values, view.buffer) for view in views]
        if shape.new > 1 or not all(waited_for(values, value) for value in needs):
            return {}
        asking, own = Asking(values), (ZERO, Expr.var("me"))
        count, workers = shape.queries * shape.lanes, 32 * WARPS
        asked = {}
        with values.within(me=workers):
            for value in needs[:2]:
                there = f"me < {shape.lanes}" if shape.lanes < workers else ""
                values.registers[value] = (asking.add(value, own, there), own)
            query = View(needs[2], shape.query.indices, shape.query.reshape)
            for first in range(0, count, workers):
                at = unflattened(Expr.var("me") + first, (shape.queries, shape.lanes))
                there = f"me < {count - first}" if count - first < workers else ""
                asked[first] = asking.add(needs[2], base(query, at), there)
        asking.write(text)
        return asked

    def _starts(self, text: Text, name: str, first: str, end: str, change: str) -> None:
        """What a warp of each set knows before any tile: the new tokens; and in another one, or
        before these, the sink."""
        shape, owner = self.shape, self.tiles.has_token()
        queries, lanes, extra = shape.queries, shape.lanes, f", {change}" if change else ""
        self._start_with_sink(text, name)
        if not self._one:
            # Sixteens of tokens, the first of which is the first warp's.
            sixteens = -(-shape.new // FRAGMENT) * FRAGMENT
            limit = self.values.spelled(Expr.var(POSITION) + shape.new)
            tile = f"fresh, fresh + {shape.new * lanes}"
            if self.coded:
                tile = self._coded_tile("new_rows", self._new_bytes)
            given = f"{tile}, 0, {POSITION}, {limit}, {first}, {end}"
            there = f"if ({owner}) " if owner else ""
            text.add(f"{there}{name}.template add<{sixteens}>({given}{extra});")
        else:
            there = f"{owner} && {self._number} == 0" if owner else f"{self._number} == 0"
            given = f"locals, locals + {queries * lanes}, locals + {(queries + 1) * lanes}"
            text.add(f"if ({there}) {name}.start({given}{extra});")

    def _start_neighbours(self, text: Text, name: str, change: str) -> None:
        """The same of neighbouring tokens that products take together, each of which begins with
        itself."""
        shape, several = self.shape, self.tiles.neighbours
        self._start_with_sink(text, name)
        queries = self._of_pass(shape.queries * shape.lanes)
        own = self._of_pass(2 * shape.lanes, several.most * shape.queries * shape.lanes)
        with self.values.within(nth=several.together):
            begins = self.tiles.has_token(Expr.var("nth")) or "true"
        given = f"{queries}, {own}, {self._there}, {shape.queries}"
        given += f", [=](int nth) {{ return {begins}; }}" + (f", {change}" if change else "")
        text.add(f"if ({self._number} == 0) {name}.start_each({given});")

    def _start_with_sink(self, text: Text, name: str) -> None:
        """What another warp of each set knows before any tile, if there is a sink."""
        shape = self.shape
        if shape.sink is None:
            return
        splits = self.family.op.sizes[-1]
        whose = f"{self.family.op.dims[-1]} == 0 && " if splits > 1 else ""
        with self.values.within(row=self.tiles.neighbours.together * shape.queries):
            of_head = Expr.var("row") % shape.heads
            score = self.values.element(shape.sink, (of_head,))
        last = "WARPS - 1" if self._one_set else f"{self.kind}::SHARE - 1"
        of_row = f"[&](int row) {{ return {score} * mc::LOG2E; }}"
        text.add(f"if ({whose}{self._number} == {last}) {name}.start_with_sink({of_row});")

    def _leave(self, text: Text, name: str) -> None:
        shape, give, lanes = self.shape, self.tiles.record, self.shape.lanes
        value, at = give.view.buffer, base(give.view, (ZERO, ZERO, ZERO))
        after = base(give.view, (Expr.const(1), ZERO, ZERO))
        place, next_token = self.storage.place(value, at), self.storage.place(value, after)
        stride, apart = self.storage.shape(value)[-1], (next_token - place).constant
        text.add(
            f"float* const record = {self.storage.scratch(value)} + {self.values.spelled(place)};"
        )

        def store(place: str, element: str) -> str:
            return self.storage.store(value, at, self.values.ranges, element, f"own + {place}")

        if self._joins_in_locals:
            text.add("float* const joined = locals;")
        kind, of_token = self.kind, ""
        if self.tiles.neighbours.together > 1:
            kind = self._kind(shape.queries)
            own = f"{shape.queries} * nth" if shape.queries > 1 else "nth"
            of_token = f", {own}, {shape.queries}"
        text.add(f"{name}.put(joined, statistics{of_token});", SYNC)
        taken = "[=](int i, float sum, float most, float weight) {"
        row = f"i / {lanes} * {stride}"
        if shape.asking > 1:
            of_head = f" + i / {lanes} % {shape.heads} * {stride}" if shape.heads > 1 else ""
            row = f"i / {shape.heads * lanes} * {apart}{of_head}"
        with text.within(f"{kind}::join(joined, statistics, me, {taken}", "});"):
            text.add(
                f"float* const own = record + {row};",
                store(f"i % {lanes}", "sum"),
                f"if (i % {lanes} != 0) return;",
                store(str(lanes), "weight"),
                store(str(lanes + 1), "most"),
            )
        text.add(SYNC)


def _times(factor: float) -> str:
    return "" if factor == 1.0 else f" * {constant(factor)}"


def _over(row: str, heads: int) -> str:
    """The token of a query, of several that have so many each."""
    return f"{row} / {heads}" if heads > 1 else row

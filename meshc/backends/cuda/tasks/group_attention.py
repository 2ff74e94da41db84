"""Attention of a few query heads that share a key head, as the library has it
(mc_group_attention.cuh)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from meshc.analysis.cuda.blocks import FRAGMENT, WARPS
from meshc.backends.cuda.tasks.asking import Asking, waited_for
from meshc.backends.cuda.tasks.cached_tiles import ZERO, CachedTiles
from meshc.backends.cuda.tasks.columns import hoisted
from meshc.backends.cuda.tasks.library_attention import LibraryAttention, changed_scores
from meshc.backends.cuda.tasks.spelling import condition, unflattened
from meshc.backends.cuda.tasks.statements import SYNC, Locals, Statements, Text
from meshc.backends.cuda.tasks.storage import base
from meshc.backends.cuda.tasks.values import Values, constant, extents
from meshc.ir.affine import Expr
from meshc.ir.batch import POSITION
from meshc.ir.values import Value
from meshc.ir.views import View


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
class GroupAttention:
    """The attention ``shape`` of a family over ``tiles``."""

    tiles: CachedTiles
    shape: LibraryAttention
    locals: Locals

    def __post_init__(self) -> None:
        self.family, self.storage = self.tiles.family, self.tiles.storage
        self.values = self.tiles.values

    @property
    def parts(self) -> list[tuple[str, int, str]]:
        """What it works in: name, bytes and note."""
        shape = self.shape
        heads = shape.heads // shape.groups
        fresh = ("FRESH", 4 * shape.new * shape.lanes, "new keys, then values")
        return [
            ("JOINED", 4 * WARPS * heads * shape.lanes, "attention sums of the warps"),
            ("STATISTICS", 8 * WARPS * heads, "their highest scores and weights"),
            ("ASKED", shape.groups * 2 * FRAGMENT * shape.lanes, "queries as fragments"),
            *([fresh] if shape.new > 1 else []),
        ]

    def compute(self, text: Text) -> None:
        """By the workers: a task."""
        shape = self.shape
        heads, lanes, groups = shape.heads, shape.lanes, shape.groups
        part = heads // groups
        statements = Statements(self.values, text, self.locals)
        self.values.arrays.clear()
        self.locals.restart()
        self.locals.place((heads + 2) * lanes)  # what the library works on comes first
        for view in (shape.query, shape.key, shape.value):
            statements.add(hoisted(self.values, view))
        factor, change = changed_scores(shape.steps)
        self._stage(text, statements, factor)
        kind = f"mc::GroupAttention<T, {part}, {lanes}, WARPS>"
        names = [self.storage.taken.fresh("attended") for _ in range(groups)]
        position = self.values.spelled(shape.position)
        for number in range(groups):
            fragments = f"asked + {number * (lanes // 16) * 256}"
            text.add(f"{kind}::put_queries({fragments}, locals + {number * part * lanes});")
        text.add(SYNC)
        first = "0"
        if shape.window:
            seen = f"{position} + 1 - {shape.window}"
            first = f"max({seen}, 0)"
            if shape.windowed is not None and not shape.windowed.is_true:
                there = condition(shape.windowed, self.values.ranges)
                first = f"({there}) ? max({seen}, 0) : 0"
            text.add(f"const int seen = {first};")
            first = "seen"
        for number, name in enumerate(names):
            text.add(f"{kind} {name}(asked + {number * (lanes // 16) * 256});")
            self._starts(text, name, number, first, change)
        keys = math.prod(extents(View(self.tiles.streams[0].result)))
        with self.tiles.rounds(text, release=True):
            begin = self.values.spelled(self.tiles.first(self.tiles.streams[0]))
            text.add("const T* const keys = (const T*)ring.ready(item);")
            given = f"keys, keys + {keys}, {self.tiles.loop.var}, {begin}, {first}, {POSITION}"
            extra = f", {change}" if change else ""
            for name in names:
                text.add(f"{name}.template add<{shape.tokens}>({given}{extra});")
        self._leave(text, names, kind)

    def _stage(self, text: Text, statements: Statements, factor: float) -> None:
        """Queries, times their factor, the new key and value, as floats one behind the other; keys
        and values of several as tiles."""
        shape = self.shape
        heads, lanes = shape.heads, shape.lanes
        kept = self.tiles.kept(shape.key)
        asked = self._asked(text)

        def query(at: tuple[Expr, ...]) -> None:
            value = self.values.element(shape.query, at)
            text.add(f"locals[element] = {value} * {constant(factor)};")

        if shape.new > 1:
            statements.each((heads, lanes), query, meet=False)
            self._stage_tile(text, statements)
            return
        gives = [self.tiles.give_of(view) for view in (shape.key, shape.value)]
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
            if kept:
                with text.within(f"if ({kept}) {{"):
                    text.add(*stores)
            else:
                text.add(*stores)
        text.add(SYNC)
        self.values.registers.clear()

    def _stage_tile(self, text: Text, statements: Statements) -> None:
        """Keys and values of the new tokens, as rows of a tile; the task's own go to the caches."""
        shape, values = self.shape, self.values
        count = shape.new * shape.lanes

        def staged(view: View, first: str, at: tuple[Expr, ...]) -> None:
            give, kept = self.tiles.give_of(view), self.tiles.kept(view)
            row, lane = (values.spelled(one) for one in at)
            index = base(give.view, (ZERO, at[1]))
            cached = self.storage.cached(give.view.buffer, index, values.ranges)
            own = values.spelled(base(give.source, (ZERO, ZERO))[0])
            there = f"{row} == {own} && {kept}" if kept else f"{row} == {own}"
            place = f"{first}({row}) * {shape.lanes}"
            text.add(
                f"const T lane = mc::narrow<T>({values.element(view, at)});",
                f"fresh[{place} + mc::Swizzle<{shape.lanes}>::lane({lane}, {row})] = lane;",
                f"if ({there}) {cached} = lane;",
            )

        tile = shape.new, shape.lanes
        statements.each(tile, partial(staged, shape.key, ""), meet=False)
        statements.each(tile, partial(staged, shape.value, f"{count} + "))
        values.registers.clear()

    def _asked(self, text: Text) -> dict[int, str]:
        """Ask for a thread's words of the new key, of the value and of the queries, all before one
        of them is waited for; what the queries ``me`` elements behind these are then called. None,
        and nothing is asked for, where the task does not wait for these alone."""
        values, shape = self.values, self.shape
        needs = [_copied(values, view.buffer) for view in (shape.key, shape.value, shape.query)]
        if shape.new > 1 or not all(waited_for(values, value) for value in needs):
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

    def _starts(self, text: Text, name: str, number: int, first: str, change: str) -> None:
        """What a warp knows before any tile: the new tokens, and in another warp the sink."""
        shape, owner = self.shape, self.tiles.has_token
        heads, lanes = shape.heads, shape.lanes
        part = heads // shape.groups
        extra = f", {change}" if change else ""
        if shape.new > 1:
            # One sixteen of tokens, which is the first warp's.
            end = self.values.spelled(shape.position + 1)
            given = f"fresh, fresh + {shape.new * lanes}, 0, {POSITION}, {first}, {end}"
            there = f"if ({owner}) " if owner else ""
            text.add(f"{there}{name}.template add<{FRAGMENT}>({given}{extra});")
        else:
            there = f"{owner} && mc::warp() == 0" if owner else "mc::warp() == 0"
            places = number * part * lanes, heads * lanes, (heads + 1) * lanes
            given = ", ".join(f"locals + {place}" for place in places)
            text.add(f"if ({there}) {name}.start({given}{extra});")
        if shape.sink is not None:
            splits = self.family.op.sizes[-1]
            first = f"{self.family.op.dims[-1]} == 0 && " if splits > 1 else ""
            head = Expr.var("h")
            self.values.ranges["h"] = (0, part - 1)
            score = self.values.element(shape.sink, (head + number * part,))
            of_head = f"[&](int h) {{ return {score} * mc::LOG2E; }}"
            text.add(f"if ({first}mc::warp() == WARPS - 1) {name}.start_with_sink({of_head});")

    def _leave(self, text: Text, names: Sequence[str], kind: str) -> None:
        shape, give = self.shape, self.tiles.record
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

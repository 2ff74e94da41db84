"""Tiles of cached tokens: how a task's come into the ring, and which are its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from meshc.backends.cuda.tasks.caches import streams_of
from meshc.backends.cuda.tasks.families import Placed
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.neighbours import BEFORE, Neighbours
from meshc.backends.cuda.tasks.spelling import bounds, condition
from meshc.backends.cuda.tasks.statements import OVER, Text
from meshc.backends.cuda.tasks.storage import Storage
from meshc.backends.cuda.tasks.values import Values, extents
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import AHEAD
from meshc.ir.coded_rows import SCALES_TOGETHER
from meshc.ir.ops import task, tile
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail

ZERO = Expr.const(0)


@dataclass
class CachedTiles:
    """The tiles of caches that a family folds; ``ranges`` are those of names around it. Of caches
    whose rows lie side by side a tile has whole rows. Where they are ``paced`` workers say when
    they have what they need of other blocks."""

    family: Placed
    storage: Storage
    ranges: dict[str, tuple[int, int]]
    paced: bool = False

    def __post_init__(self) -> None:
        (self.loop,) = [op for op in self.family.ops if isinstance(op, tile.For) and streams_of(op)]
        ranges = {**self.ranges, **self.family.ranges, **self.storage.scalars}
        self.values = Values(self.storage, self.family.ops, ranges, self.family.waits)
        most = bounds(self.loop.count, self.values.ranges)[1]
        ranges[self.loop.var] = (0, max(most - 1, 0))
        self.streams = streams_of(self.loop)
        self.rows = [op for op in self.streams if not self.storage.cache(op.view.buffer).first]
        self._check_runs()
        self.neighbours = Neighbours(self.family, self.storage)
        if self.storage.owned:
            ranges[BEFORE] = self.storage.scalars[AHEAD]

    def _check_runs(self) -> None:
        """Tokens that are copied together lie in one page. Raises ``cuda-shape``."""
        tokens, together = self.tokens, min(self.storage.page, 16)
        if self.coded and not self.storage.scales_behind and tokens % SCALES_TOGETHER:
            words = f"runs of {tokens} tokens have no whole {SCALES_TOGETHER} scales of coded rows"
            fail("cuda-shape", words)
        if tokens % together and together % tokens:
            words = f"runs of {tokens} tokens do not begin where pages of {self.storage.page} do"
            fail("cuda-shape", words)

    @property
    def tokens(self) -> int:
        """Tokens of a tile."""
        return extents(View(self.streams[0].result))[0]

    @property
    def coded(self) -> bool:
        """Whether rows are floats of eight bits."""
        return self.storage.coded(self.streams[0].view.buffer)

    @property
    def bytes(self) -> int:
        """Bytes of what a round of the fold streams."""
        return sum(map(self._bytes, self.rows))

    def _bytes(self, op: task.Stream) -> int:
        """Bytes of the rows of a tile of one cache."""
        return self.storage.cache(op.view.buffer).tile_bytes(self.tokens)

    def at(self, op: task.Stream) -> int:
        """Where in a tile the rows of a stream begin, in bytes."""
        name = self.storage.cache(op.view.buffer).name
        names = [self.storage.cache(one.view.buffer).name for one in self.rows]
        return sum(map(self._bytes, self.rows[: names.index(name)]))

    def bring(self, text: Text) -> None:
        """Write what the whole warp does: it brings the tiles of the block's tasks."""
        with self.neighbours.each(text):
            first = self.first(self.streams[0])
            _, request, _ = self._places(self.streams[0].view.buffer, self._base(self.streams[0]))
            pages, end = self.storage.pages(request, self.values.ranges), self._end(self.streams[0])
            start = self.values.spelled(first.substitute({self.loop.var: 0}))
            side = len(self.rows) if self._alike() else 1
            given = f"{pages}, {start}, {self._apart(first)}, {end}"
            text.add(f"mc::Pages<{self.storage.page}, {side}, {self.tokens}> from({given});")
            with self.rounds(text, release=False, skip="from.turn()"):
                begin = self.values.spelled(first)
                acquired = f"ring.limit(item, pace), ring.acquire(item, {self._copied()})"
                text.add(
                    f"const int begin = {begin}, count = {self._count(end)};",
                    f"if (mc::lane() == 0) {acquired};",
                    "mc::warp_sync();",
                )
                if side > 1:
                    text.add(self._bring_side_by_side())
                else:
                    for op in self.rows:
                        at = str(self.at(op))
                        text.add(self._bring(op, self._cache_at(op), at, begin="begin"))
                text.add("from.turn();")

    def _copied(self) -> str:
        """Bytes that are copied of ``count`` tokens."""
        caches = [self.storage.cache(op.view.buffer) for op in self.rows]
        if self.coded:
            return " + ".join(cache.copied("count") for cache in caches)
        return f"count * {sum(2 * cache.lanes for cache in caches)}"

    def _count(self, end: str) -> str:
        """How many tokens of a tile are cached; those behind them are new."""
        count = f"min({self.tokens}, {end} - begin)"
        return f"max({count}, 0)" if self.storage.together > 1 else count

    def _apart(self, first: Expr) -> int:
        """How many tokens the ``first`` of a tile is behind that of the one before."""
        return (first.substitute({self.loop.var: Expr.var(self.loop.var) + 1}) - first).constant

    def _alike(self) -> bool:
        """Whether its tiles have rows of two caches of one shape, which lanes copy side by side."""
        caches = [self.storage.cache(op.view.buffer) for op in self.rows]
        return len(caches) == 2 and len({(c.heads, c.lanes, c.layer) for c in caches}) == 1

    def _bring_side_by_side(self) -> str:
        first, second = (self._cache_at(op) for op in self.rows)
        at = f"from.of() * {self._bytes(self.rows[0])}"
        return self._bring(self.rows[0], f"from.of() ? {second} : {first}", at, "begin")

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
        rows = cache.rows(self.storage.page)
        given = f"ring, item, {at}, {cache_at}, from, {self.values.spelled(head)}, {begin}, count"
        return f"{rows}::bring({given});"

    def _base(self, op: task.Stream) -> tuple[Expr, ...]:
        return base(op.view, (ZERO, ZERO))

    def _places(self, value: Value, index: Sequence[Expr]) -> tuple[Expr, Expr, Expr]:
        """Layer, request and head of an element of a cache."""
        at = list(index)
        layer = at.pop(0) if self.storage.cache(value).layer else ZERO
        request = at.pop(0) if self.storage.request_dim in self.storage.cache_dims(value) else ZERO
        return layer, request, at[1] if len(at) == 3 else ZERO

    def first(self, op: task.Stream) -> Expr:
        """The first token of a tile."""
        return self._base(op)[op.dim]

    def _end(self, op: task.Stream) -> str:
        assert op.below is not None
        return self.values.spelled(op.below)

    @contextmanager
    def rounds(self, text: Text, release: bool, skip: str = "") -> Iterator[None]:
        """The loop over the tiles of a task, in which the ring goes on."""
        var, when = self.loop.var, self.streams[0].when
        if when is not None and self.neighbours.most > 1:
            # The first of several neighbours sees what is farthest in front of them.
            when = when.substitute({AHEAD: Expr.var(BEFORE)})
        text.add(f"const int tiles = {self.values.spelled(self.loop.count)};")
        if release and self.paced:
            text.add(OVER)
        with text.within(f"for (int {var} = 0; {var} < tiles; {var}++) {{"):
            if when is not None and not when.is_true:
                with text.within(f"if (!({condition(when, self.values.ranges)})) {{"):
                    text.add(*([f"{skip};"] if skip else []), "continue;")
            yield
            text.add("ring.release(item++);" if release else "item++;")

    # --- the token of the step

    def has_token(self, behind: Expr = ZERO) -> str:
        """Whether the task folds the new tokens, empty where each does: of several neighbours the
        one so many ``behind`` that which ``ahead`` is of."""
        folds = (o for o in self.family.ops if isinstance(o, tile.Compute) and o.kernel == "gemm")
        when = next(folds).when
        return self._there(when and when.substitute({AHEAD: Expr.var(AHEAD) + behind}))

    def give_of(self, view: View) -> task.Give:
        """The op that gives what ``view`` is to its cache."""
        return self._given(view)[0]

    def _given(self, view: View) -> tuple[task.Give, tile.For | None]:
        """The same, and the loop over tokens in which it stands, if it stands in one."""
        for op in self.family.ops:
            loop = op if isinstance(op, tile.For) else None
            for one in loop.regions[0].ops if loop else [op]:
                if isinstance(one, task.Give) and one.source.buffer == view.buffer:
                    return one, loop
        raise AssertionError(f"nothing gives %{view.buffer.name}")

    def kept_row(self, view: View, at: Sequence[Expr]) -> tuple[Value, tuple[Expr, ...], str]:
        """The cache to which the task gives what ``view`` is, where its element ``at``, of the
        tokens that are read, goes there, and if it does; empty where all do."""
        give, loop = self._given(view)
        row, lane = at
        first, count = base(give.source, (ZERO, ZERO))[0], 1
        own: dict[str, Expr | int] = {}
        if loop is not None:
            first, count = first.substitute({loop.var: 0}), loop.count.constant
            own = {loop.var: row - first}
        kept = Cond.eq(row, first) if count == 1 else Cond.between(first, row, first + count)
        if self.neighbours.most > 1:
            # The rows of all neighbours go there, each where it stands in its request.
            own, kept = {AHEAD: row}, Cond.between(Expr.var(BEFORE), row, first + count)
        parts = [] if give.when is None else [give.when.substitute(own)]
        if count < extents(view)[0]:
            parts.append(kept)
        index = (one.substitute(own) for one in base(give.view, (ZERO, lane)))
        return give.view.buffer, tuple(index), self._there(Cond.all(parts))

    def kept(self, view: View) -> str:
        """Whether the task gives what ``view`` is to its cache, empty where each does."""
        return self._there(self.give_of(view).when)

    def _there(self, when: Cond | None) -> str:
        return "" if when is None or when.is_true else condition(when, self.values.ranges)

    @property
    def record(self) -> task.Give:
        """What gives the record of its softmax."""
        (give,) = [
            op
            for op in self.family.ops
            if isinstance(op, task.Give) and self.storage.role(op.view.buffer) != "state"
        ]
        return give

"""Attention of all heads over rows of one cache whose first lanes are the values too (latent
attention), as the library has it (mc_attention.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshc.analysis.cuda.blocks import tile_query_bytes, tile_work_bytes
from meshc.analysis.tasks.tiles import attended_by_tiles, latent_neighbours, padded_heads
from meshc.backends.cuda.tasks.cached_tiles import ZERO, CachedTiles
from meshc.backends.cuda.tasks.caches import with_new
from meshc.backends.cuda.tasks.columns import aligned, hoisted, rounded
from meshc.backends.cuda.tasks.families import NOT_UNROLLED
from meshc.backends.cuda.tasks.library_attention import SCORES, changed_scores
from meshc.backends.cuda.tasks.matrix_places import base
from meshc.backends.cuda.tasks.neighbours import BEFORE
from meshc.backends.cuda.tasks.new_rows import NewRows
from meshc.backends.cuda.tasks.spelling import unflattened
from meshc.backends.cuda.tasks.statements import SYNC, Locals, Text
from meshc.backends.cuda.tasks.values import constant, extents, taken_rows
from meshc.ir.affine import Expr
from meshc.ir.batch import AHEAD, POSITION
from meshc.ir.core import Op
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.ir.views import Range, View


@dataclass(frozen=True)
class LibraryLatents:
    """``heads`` query heads over tiles of ``tokens`` rows, the first ``lanes`` of which are the
    values. Of each cache whose rows lie side by side there are ``queries``, of so many lanes, and
    the ``fresh`` lanes of the new tokens, of which the one at ``position`` asks; where these stand
    in their places among the cached ones it is ``own`` of them. Products are multiplied by
    ``factor``."""

    heads: int
    lanes: int
    tokens: int
    queries: tuple[tuple[Value, int], ...]
    fresh: tuple[View, ...]
    factor: float
    position: Expr
    own: Expr | None

    @property
    def new(self) -> int:
        """How many new tokens there are."""
        return extents(self.fresh[0])[0]

    @property
    def row(self) -> int:
        """Lanes of a token."""
        return sum(lanes for _, lanes in self.queries)


def latent_shape(tiles: CachedTiles) -> LibraryLatents | None:
    """The attention over ``tiles`` as the library has it; None where it does not."""
    body, values, streams = tiles.loop.regions[0].ops, tiles.values, tiles.streams
    seen = with_new(tiles.loop)
    computes = [op for op in _computes(body) if op.views()[0].buffer not in seen.values()]
    if len(tiles.rows) > 1 or not {op.kernel for op in computes} <= SCORES:
        return None
    *scores, fold = (op for op in computes if op.kernel == "gemm")
    asked = {op.views()[2].buffer: op.views()[1] for op in scores}
    order = sorted(streams, key=lambda op: tiles.storage.cache(op.view.buffer).first)
    cached = [seen.get(op.result, op.result) for op in order]
    if fold.views()[2].buffer != cached[0] or [*asked] != cached:
        return None
    lanes = [extents(View(value))[1] for value in cached]
    queries = [asked[value] for value in cached]
    heads, values_of = extents(queries[0])[0], extents(fold.views()[0])[1]
    if not attended_by_tiles(heads, lanes, values_of, tiles.tokens):
        return None
    if any(aligned(values, View(query.buffer), 8) is None for query in queries):
        return None
    new = [op for op in _computes(tiles.family.ops) if op.kernel == "gemm"][: len(cached)]
    start = _computes(tiles.family.ops)
    if any(op.views()[0].indices and op.kernel == "copy" for op in start):
        return None  # a sink
    steps = [op for op in computes if op.kernel == "scale"]
    (position,) = (op.params["query"] for op in computes if op.kernel == "mask_causal")
    assert isinstance(position, Expr)
    fresh = [op.views()[2] for op in new]
    if extents(fresh[0])[0] > tiles.tokens:
        return None
    (first, *_) = fresh[0].indices or (None,)
    return LibraryLatents(
        extents(queries[0])[0],
        lanes[0],
        tiles.tokens,
        tuple((query.buffer, count) for query, count in zip(queries, lanes, strict=True)),
        tuple(View(view.buffer) for view in fresh),
        changed_scores(steps)[0],
        position,
        first.start if seen and isinstance(first, Range) else None,
    )


def _computes(ops: Sequence[Op]) -> list[tile.Compute]:
    return [op for op in ops if isinstance(op, tile.Compute)]


@dataclass
class LatentAttention:
    """The attention ``shape`` of a family over ``tiles``."""

    tiles: CachedTiles
    shape: LibraryLatents
    locals: Locals

    def __post_init__(self) -> None:
        self.tiles.values.taken = taken_rows(self.tiles.family.ops)
        self.new_rows = NewRows(self.tiles, self.shape.new, self.shape.own)

    def attend_at_once(self) -> None:
        """Let a block attend at once for tokens of a batch that stand one behind the other in their
        request, unless that leaves blocks without tasks."""
        shape, several = self.shape, self.tiles.neighbours
        tasks, device = prod(several.family.sizes.values()), several.storage.module.the_device()
        if self.new_rows.some and tasks > device.cores:
            found = latent_neighbours(shape.new, shape.heads, shape.lanes)
            several.most = several.together = found

    @property
    def _several(self) -> bool:
        """Whether it is that of several tokens."""
        return self.tiles.neighbours.most > 1

    @property
    def _of_token(self) -> int:
        """Queries of a token, of several filled up."""
        return padded_heads(self.shape.heads) if self._several else self.shape.heads

    @property
    def _queries(self) -> int:
        """Those of all that are attended for at once."""
        return self.tiles.neighbours.most * self._of_token

    @property
    def parts(self) -> list[tuple[str, int, str]]:
        """What it works in: name, bytes and note."""
        shape = self.shape
        given = self._queries, shape.row
        return [
            ("ASKED", tile_query_bytes(*given, twice=True), "queries as fragments, then sums"),
            ("WORK", tile_work_bytes(*given, shape.tokens, twice=True), "scores and weights"),
            ("STATISTICS", 8 * self._queries, "highest scores and weights"),
        ]

    def compute(self, text: Text) -> None:
        """Write what the workers do: a task, or those of neighbouring tokens."""
        shape, tiles = self.shape, self.tiles
        values, row = tiles.values, shape.row
        values.arrays.clear()
        self.locals.restart()
        self.locals.place(shape.new * row // 2)  # the new rows come first
        sizes = f"{self._queries}, {row}, {shape.lanes}, {shape.tokens}"
        kind = f"mc::TileAttention<T, {sizes}, WARPS, {row}, true>"
        if self._several:
            with tiles.neighbours.each_token(text):
                self._put_queries(text, kind)
            text.add(f"{kind}::put_none(asked, {self._of_token} * (rest + 1), me);")
        else:
            self._put_queries(text, kind)
        if row % 32:
            text.add(f"{kind}::put_zeros(asked, me);")
        text.add("T* const fresh = (T*)locals;")
        own, owner = shape.own, tiles.has_token()
        # Where new tokens stand among the cached ones each task has them.
        with text.within(f"if ({owner}) {{" if owner and own is None else "{"):
            statements = self.new_rows.statements(text, self.locals)
            for number, view in enumerate(shape.fresh):
                values.all_there = False
                statements.add(hoisted(values, view))
                values.all_there = True
                self._put_fresh(text, view, sum(n for _, n in shape.queries[:number]))
        attended = tiles.storage.taken.fresh("attended")
        add, factor = f"{attended}.add", constant(shape.factor)
        given = f"{factor}, [](int, int) {{ return true; }}"
        text.add(SYNC, "me = mc::renewed(me);", f"{kind} {attended}(asked, work, me, 1);")
        first, limit = POSITION, POSITION
        count, rows = values.spelled(shape.position - Expr.var(POSITION) + 1), "fresh"
        if own is not None:
            first = limit = values.spelled(shape.position)
            count, rows = "1", f"fresh + {values.spelled(own * row)}"
        there = f"if ({owner}) " if owner else ""
        if self._several:
            self._start_neighbours(text, f"{there}{add}({rows}, {rows}, {first}, 1, {factor}")
            given = f"{factor}, seen"
        else:
            text.add(f"{there}{add}({rows}, {rows}, {first}, {count}, {given});")
        if own is not None:
            given += f", mc::NewRows<T, {row}>{{fresh, fresh, {POSITION}}}"
        with tiles.rounds(text, release=True):
            begin = values.spelled(tiles.first(tiles.streams[0]))
            count = f"min({shape.tokens}, {limit} - begin)"
            text.add(
                f"const int begin = {begin};",
                "const T* const rows = (const T*)ring.ready(item);",
                f"{add}(rows, rows, begin, {count}, {given});",
            )
        self._leave(text, attended)

    def _start_neighbours(self, text: Text, add: str) -> None:
        """What neighbouring tokens begin with, each itself, and which tokens of tiles they see; of
        the one that is ``ahead`` its own row is ``add``."""
        values, of_token = self.tiles.values, self._of_token
        text.add(NOT_UNROLLED)
        with text.within("for (int nth = 0; nth <= rest; nth++) {"):
            text.add(f"const int {AHEAD} = {BEFORE} + nth;")
            text.add(f"{add}, [=](int query, int) {{ return query / {of_token} == nth; }});")
        with text.within("const auto seen = [=](int query, int position) {", "};"):
            text.add(
                f"const int nth = query / {of_token}, {AHEAD} = {BEFORE} + nth;",
                f"return nth <= rest && position < {values.spelled(self.shape.position)};",
            )

    def _put_queries(self, text: Text, kind: str) -> None:
        first, values = 0, self.tiles.values
        for query, lanes in self.shape.queries:
            found = aligned(values, View(query), 8)
            assert found is not None
            given, kept = f"asked, {found[0]}, {lanes}, me", f"{first}, {lanes}"
            words = values.words(query)
            if self._several:
                kept, words = f"{kept}, {self.shape.heads}", words or ", mc::Plain()"
                words += f", {self._of_token} * nth"
            text.add(f"{kind}::put_lanes<{kept}>({given}{words});")
            first += lanes

    def _put_fresh(self, text: Text, view: View, first: int) -> None:
        """Lanes of the new tokens, into the rows of tasks that fold them and into the cache."""
        tiles, values, wide = self.tiles, self.tiles.values, self.shape.row
        rows, lanes = extents(view)
        count = f"{lanes} * ({self.new_rows.count})" if self.new_rows.some else f"{rows * lanes}"
        head = f"for (int i = me; i < {count}; i += WORKERS) {{"
        with values.within(i=rows * lanes), text.within(head):
            row, lane = unflattened(Expr.var("i"), (rows, lanes))
            cache, index, kept = tiles.kept_row(view, (row, lane))
            to = tiles.storage.cached(cache, index, values.ranges)
            known = not kept or (self.shape.own is None and kept == tiles.has_token())
            guard = "" if known else f"if ({kept}) "
            element = values.element(rounded(values, view), (row, lane))
            begin = f"{values.spelled(row * wide)} + " if rows > 1 else ""
            at = values.spelled(lane + first), values.spelled(row + Expr.var(POSITION))
            text.add(
                f"const T lane = mc::narrow<T>({element});",
                f"fresh[{begin}mc::Swizzle<{wide}>::lane({', '.join(at)})] = lane;",
                f"{guard}{to} = lane;",
            )

    def _leave(self, text: Text, attended: str) -> None:
        text.add(
            "me = mc::renewed(me);",
            "float* const sums = (float*)asked;",
            f"{attended}.finish(sums, statistics, statistics + {self._queries});",
        )
        if not self._several:
            self._leave_token(text, "", "me")
            text.add(SYNC)
            return
        with self.tiles.neighbours.each_token(text):
            of_token = self._of_token
            self._leave_token(
                text, f"{of_token * self.shape.lanes} * nth + ", f"{of_token} * nth + me"
            )
        text.add(SYNC)

    def _leave_token(self, text: Text, first: str, head: str) -> None:
        """The record of a token, whose sums are from the ``first`` on, and statistics those of each
        ``head``."""
        storage, values, shape = self.tiles.storage, self.tiles.values, self.shape
        heads, lanes, give = shape.heads, shape.lanes, self.tiles.record
        value, at = give.view.buffer, base(give.view, (ZERO, ZERO, ZERO))
        stride = storage.shape(value)[-1]
        place = values.spelled(storage.place(value, at))

        def store(place: str, element: str) -> str:
            return storage.store(value, at, values.ranges, element, f"record + {place}")

        text.add(f"float* const record = {storage.scratch(value)} + {place};")
        with text.within(f"for (int i = me; i < {heads * lanes}; i += WORKERS) {{"):
            text.add(store(f"i / {lanes} * {stride} + i % {lanes}", f"sums[{first}i]"))
        with text.within(f"if (me < {heads}) {{"):
            text.add(
                store(f"me * {stride} + {lanes}", f"statistics[{self._queries} + {head}]"),
                store(f"me * {stride} + {lanes + 1}", f"statistics[{head}]"),
            )

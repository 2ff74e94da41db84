"""KV caches: ring buffers per core, filled by prefill, kept balanced while decoding."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import POSITION, REQUEST, requests_of
from meshc.ir.ops import mesh
from meshc.ir.types import BufferType, DType
from meshc.ir.views import Index, View, Whole
from meshc.passes.tile.expand import rings
from meshc.passes.tile.expand.emitter import Emitter, Place, point, window
from meshc.support.diagnostics import fail


class Cache:
    """Caches of one append: ``[caches, groups, slots, lanes]`` and a (head, count) state, of each
    request where there are several. Where ``lanes`` differ from cache to cache (a latent and its
    rotary key), they lie side by side: ``[1, groups, slots, all lanes]``."""

    def __init__(
        self,
        emitter: Emitter,
        lanes: Sequence[int],
        layers: int | None,
        layer: Expr | None,
        dtype: DType,
        slots: int,
        policy: str,
    ) -> None:
        tiling = emitter.tiling
        self.emitter = emitter
        self.lanes, self.dtype = tuple(lanes), dtype
        self.joint = len({*lanes}) > 1
        self.slots, self.policy = slots, policy
        requests = requests_of(emitter.source)
        lead = (() if layers is None else (layers,)) + ((requests,) if requests > 1 else ())
        prefix: tuple[Index, ...] = () if layer is None else (point(layer),)
        if requests > 1:
            prefix += (Whole() if emitter.batch > 1 else point(emitter.scalar(REQUEST)),)
        self.entry = (1, sum(lanes)) if self.joint else (len(lanes), lanes[0])
        shape = (self.entry[0], tiling.key_block, slots, self.entry[1])
        buffer = emitter.buffer("kv_cache", (*lead, *shape), dtype, "state")
        state = emitter.buffer("kv_state", (*lead, 2), DType.I32, "state")
        self.place = Place(buffer, shape, prefix)
        self.state = View(state, prefix)

    def of_request(self, request: Expr | None) -> Cache:
        """The caches of one request."""
        if request is None:
            return self
        own, prefix = copy(self), (*self.place.prefix[:-1], point(request))
        own.place, own.state = (
            replace(self.place, prefix=prefix),
            replace(self.state, indices=prefix),
        )
        return own

    def every(self) -> View:
        """All caches of the append."""
        return View(self.place.buffer, self.place.prefix)

    def one(self, which: int, slots: Index | None = None) -> View:
        """One cache: ``[groups, slots, lanes]``, behind the requests where it is of all; of its
        ``slots`` if not all."""
        rest: tuple[Index, ...] = () if slots is None else (Whole(), slots)
        if self.joint:
            own = window(sum(self.lanes[:which]), self.lanes[which])
            rest = (*(rest or (Whole(), Whole())), own)
        number = 0 if self.joint else which
        return View(self.place.buffer, (*self.place.prefix, point(number), *rest))

    def fill(self, new: Sequence[Place]) -> None:
        """Prefill: the rows a core computed are its slots, in order, behind those of tokens that
        are cached already."""
        emitter, tiling = self.emitter, self.emitter.tiling
        size = emitter.mesh.rows
        total, first, rows = emitter.scalar("len"), Expr.const(0), emitter.rows
        if POSITION in emitter.source.scalars:
            self.check_whole_rows()
            # Rows that only fill up chunks of attention may have no slot behind the cached ones.
            first, rows = emitter.scalar(POSITION) // size, emitter.row_extent
            total = total + emitter.scalar(POSITION)
        for which, place in enumerate(new):
            slots = self.one(which, window(first, rows))
            shape = (tiling.key_block, self.lanes[which])
            emitter.compute("copy", slots, emitter.view(place, shape, (1, 0, 2), rows))
        count = (total + (size - 1) - self.emitter.index_of(self.emitter.mesh.down)) // size
        emitter.compute("ring_set", self.state, count=count)

    def check_lanes(self, op: mesh.Append, new: Sequence[Place]) -> None:
        """Fail with ``unsupported-layout`` where rows have other lanes than their caches: a core
        keeps whole pairs of lanes of a head, up to which ``partition`` fills products up."""
        groups = self.emitter.tiling.key_block
        for place, lanes in zip(new, self.lanes, strict=True):
            if place.width != groups * lanes:
                fail(
                    "unsupported-layout",
                    f"a core has {place.width} lanes of a row and keeps {groups * lanes}",
                    op.span,
                    help="partition fills heads up to whole pairs of lanes",
                )

    def check_whole_rows(self) -> None:
        """Fail with ``unsupported-layout`` unless the tokens of a chunk lie on the cores on which
        the cache has them: those of a prompt are dealt to rows of cores from its first token on."""
        size, multiple = self.emitter.mesh.rows, self.emitter.source.multiples.get(POSITION, 1)
        if multiple % size:
            fail(
                "unsupported-layout",
                f"chunks of a prompt may begin at any multiple of {multiple} tokens, but the mesh "
                f"deals tokens to {size} rows of cores",
                help=f"let them begin at multiples of {size}: chunk-prompts{{multiple={size}}}",
            )

    def check_positions(self, op: mesh.Mask) -> None:
        """Fail with ``unsupported-layout`` unless the position of the token in each slot is known,
        which a window needs: rows that are handed on lose it."""
        if self.policy != "cyclic" and self.emitter.mesh.rows > 1:
            fail(
                "unsupported-layout",
                f"a window of {op.window} tokens over a cache of policy '{self.policy}', whose "
                "slots do not tell the positions of their tokens",
                op.span,
                help="use --kv cyclic",
            )

    def append(self, op: mesh.Append, new: Sequence[Place]) -> None:
        """Decode: one new row of each request enters its caches."""
        emitter = self.emitter
        with emitter.every_request() as request:
            rows = [emitter.of_request(place, request) for place in new]
            own = self.of_request(request)
            if emitter.may_be_absent:
                # Another request may have had these caches before.
                with emitter.under(Cond.eq(emitter.scalar(POSITION), 0)):
                    emitter.compute("ring_set", own.state, count=Expr.const(0))
            own.enter(op, rows)

    def enter(self, op: mesh.Append, new: Sequence[Place]) -> None:
        """One new row enters, by the policy of the op."""
        size = self.emitter.mesh.rows
        row, pos = self.emitter.index_of(self.emitter.mesh.down), self.emitter.scalar("pos")
        there = self.emitter.present
        if size == 1:
            self.push(new, there)
        elif op.policy == "shift":
            self.shift(new, row, pos)
        elif op.policy == "concat":
            self.push(new, there & Cond.eq(row, size - 1))
        else:
            self.push(new, there & Cond.eq(row, pos % size))

    def shift(self, new: Sequence[Place], row: Expr, pos: Expr) -> None:
        """Oldest rows move up so that every core keeps its share (WaferLLM section 4.3).

        With m = pos mod rows: rows beyond m hand their oldest entry up, row m only receives, and
        the last row takes the new one; until every row has one, row pos takes it.
        """
        emitter = self.emitter
        size = emitter.mesh.rows
        full = Cond.ge(pos, size)
        gives = full & Cond.gt(row, pos % size)
        takes = full & Cond.ge(row, pos % size) & Cond.le(row, size - 2)
        stores = (Cond.lt(pos, size) & Cond.eq(row, pos)) | (full & Cond.eq(row, size - 1))
        shape = (self.entry[0], emitter.tiling.key_block, self.entry[1])
        kind = self.place.buffer.type
        assert isinstance(kind, BufferType)
        oldest = View(emitter.buffer("kv_oldest", shape, kind.dtype))
        risen = View(emitter.buffer("kv_risen", shape, kind.dtype))
        with emitter.under(gives):
            emitter.compute("ring_oldest", oldest, self.every(), self.state)
            emitter.compute("ring_drop", self.state, capacity=self.slots)
        up = rings.ring(emitter, emitter.mesh.down)
        got = emitter.recv(up, risen, when=takes)
        sent = emitter.send(up, oldest, when=gives)
        emitter.wait(sent, got)
        with emitter.under(takes):
            emitter.compute("ring_push", self.every(), risen, self.state)
            emitter.compute("ring_grow", self.state)
        self.push(new, stores)

    def push(self, new: Sequence[Place], where: Cond | None) -> None:
        """The new row into the next free slot."""
        groups = self.emitter.tiling.key_block
        with self.emitter.under(where):
            for which, place in enumerate(new):
                row = self.emitter.view(place, (groups, self.lanes[which]))
                self.emitter.compute("ring_push", self.one(which), row, self.state)
            self.emitter.compute("ring_grow", self.state)

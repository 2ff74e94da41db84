"""Emits tile statements: buffers, places of values in them, channels, loops and guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from meshc.analysis.layout.tiling import Tiling, has_many_rows
from meshc.ir.affine import AffineMap, Cond, Expr
from meshc.ir.batch import BATCH, POSITION, REQUEST, batch_of
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Mesh
from meshc.ir.module import Buffer, Channel, Module, Port, Role
from meshc.ir.ops import tile
from meshc.ir.types import BufferType, DType, TensorType, TokenType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, Range, Symbol, View, Whole
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.spans import Span

Number = Expr | int


def expr(value: Number) -> Expr:
    """``value`` as an expression."""
    return Expr.const(value) if isinstance(value, int) else value


def window(start: Number, extent: Number, step: int = 1) -> Range:
    """A range index."""
    return Range(expr(start), expr(extent), step)


def point(at: Number) -> Point:
    """A point index."""
    return Point(expr(at))


@dataclass(frozen=True)
class Place:
    """Where a value lives: lanes ``offset .. offset + width`` of the last dim of a joint buffer,
    or a buffer of its own (``offset`` None).

    ``prefix`` indexes leading dims of the buffer; ``rows`` says that rows come next, those of
    tokens or of the requests of a step; ``shape`` are the local extents of the other dims.
    ``chunked`` scores have the shape ``[heads, chunks, keys per chunk]`` and lie chunk by chunk,
    each ``[rows, heads, keys]``, of whose keys a run uses the first.
    """

    buffer: Value
    shape: tuple[int, ...]
    prefix: tuple[Index, ...] = ()
    rows: bool = False
    offset: int | None = None
    chunked: bool = False

    @property
    def width(self) -> int:
        """Number of lanes per row."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    def overlaps(self, other: Place) -> bool:
        """Whether both have lanes in common."""
        if self.buffer is not other.buffer:
            return False
        if self.offset is None or other.offset is None:
            return True
        first, second = sorted((p.offset or 0, p.width) for p in (self, other))
        return second[0] < sum(first)


class Emitter:
    """Builds one tile-level module."""

    def index_of(self, axis: str) -> Expr:
        """Which part of ``axis`` a core holds."""
        return Expr.var(self.mesh.index(axis))

    def __init__(self, source: Module, tiling: Tiling) -> None:
        self.source = source
        self.mesh: Mesh = source.the_mesh()
        self.tiling = tiling
        self.module = Module(
            source.name,
            "tile",
            dict(source.dims),
            dict(source.scalars),
            dict(source.options),
            source.rows,
            source.attention,
            dict(source.paired),
            source.device,
            source.mesh,
            multiples=dict(source.multiples),
        )
        self.block = Block()
        self.guards: list[Cond] = []
        self._of_requests: tuple[tile.For | None, list[Cond]] = None, []
        self.span: Span | None = None
        self.names: set[str] = set()
        self.row_dim = source.row_dim
        self.many_rows = has_many_rows(source, self.row_dim)
        self.batch = 1 if self.many_rows else batch_of(source)
        self.held_first = self.row_dim if self.many_rows else BATCH if self.batch > 1 else ""

    # --- extents that depend on the run

    @property
    def rows(self) -> Expr:
        """Rows a core works on in this run: of tokens whole chunks, at most ``row_room``; or one
        for each request of the step."""
        if not self.many_rows and self.batch > 1:
            return Expr.const(self.batch)
        return self.tiling.chunks_y * self.chunk_rows if self.tiling.heads else self.row_extent

    @property
    def row_room(self) -> int:
        """Rows a core has room for."""
        return self.tiling.row_lanes if self.many_rows else self.batch

    def scalar(self, name: str) -> Expr:
        """A run-time scalar. Fails with ``unsupported-op`` where the module declares none."""
        if name not in self.source.scalars:
            fail(
                "unsupported-op",
                f"a cache needs the run-time scalar '{name}', which module '{self.source.name}' "
                "does not declare",
                help=f"declare it in the header, such as: scalars {name} = 1..8",
            )
        return Expr.var(name)

    @property
    def row_extent(self) -> Expr:
        """Rows per core without attention: all of them, padded to equal shares."""
        if "len" in self.source.scalars:
            return (Expr.var("len") + (self.mesh.rows - 1)) // self.mesh.rows
        return Expr.const(self.tiling.row_lanes)

    @property
    def chunk_rows(self) -> Expr:
        """Rows of queries in one chunk of attention's rings."""
        chunks = self.tiling.chunks
        if "len" in self.source.scalars:
            return (Expr.var("len") + (chunks - 1)) // chunks
        return Expr.const(self.tiling.row_lanes // self.tiling.chunks_y)

    @property
    def known_rows(self) -> Expr | None:
        """Tokens of the prompt that are known after the run: those of the run, and those that were
        cached before; None where the run does not say."""
        if "len" not in self.source.scalars:
            return None
        before = POSITION in self.source.scalars
        return Expr.var("len") + (Expr.var(POSITION) if before else 0)

    @property
    def chunk_keys(self) -> Expr:
        """Cached keys in one chunk of attention's rings."""
        chunks, known = self.tiling.chunks, self.known_rows
        return self.chunk_rows if known is None else (known + (chunks - 1)) // chunks

    @property
    def may_be_absent(self) -> bool:
        """Whether a step may be told, by the position -1, that a request is not there."""
        least, _ = self.source.scalars.get(POSITION, (0, 0))
        return least < 0 and not self.many_rows

    @property
    def present(self) -> Cond:
        """That the request whose position is known is there."""
        return Cond.ge(Expr.var(POSITION), 0) if self.may_be_absent else Cond.true()

    # --- names, buffers, channels

    def fresh(self, name: str) -> str:
        """A name not used before."""
        found, count = name, 0
        while found in self.names:
            count += 1
            found = f"{name}_{count}"
        self.names.add(found)
        return found

    def buffer(self, name: str, shape: Sequence[int], dtype: DType, role: Role | str = "") -> Value:
        """Declare memory on every core."""
        value = Value(self.fresh(name), BufferType(dtype, tuple(shape)))
        self.module.buffers.append(Buffer(value, role))  # type: ignore[arg-type]
        return value

    def mark(self, value: Value, role: Role) -> None:
        """Give a scratch buffer a role."""
        for buffer in self.module.buffers:
            if buffer.value is value and not buffer.role:
                buffer.role = role

    def rename(self, value: Value, name: str) -> None:
        """Call a scratch buffer by ``name`` if that is free and it was only numbered, as a partial
        sum of what has the name."""
        scratch = any(b.value is value and not b.role for b in self.module.buffers)
        if scratch and name not in self.names and value.name.startswith(f"{name}_"):
            self.names = (self.names - {value.name}) | {name}
            value.name = name

    def channel(
        self, name: str, route: AffineMap, multicast: bool = False, turns: int = 0
    ) -> Symbol:
        """The channel with this geometry; channels of equal route are one channel."""
        for known in self.module.channels:
            if (known.route, known.multicast, known.turns) == (route, multicast, turns):
                return Symbol(known.name)
        self.module.channels.append(Channel(self.fresh(name), route, multicast, turns))
        return Symbol(self.module.channels[-1].name)

    def port(self, port: Port) -> None:
        """Declare how a logical tensor fills a buffer."""
        self.module.ports.append(port)

    def order_outputs(self, names: Sequence[str]) -> None:
        """Let the out-ports follow each other as ``names`` do."""
        ports = self.module.ports
        outputs = {port.name: port for port in ports if port.direction == "out"}
        following = iter([outputs[name] for name in names])
        ports[:] = [next(following) if p.direction == "out" else p for p in ports]

    # --- statements

    def append(self, op: Op) -> Op:
        """Add a statement under the guards in force, at the place of what is being expanded."""
        op.span = self.span
        if self.guards:
            op.when = Cond.all([*self.guards, *([op.when] if op.when else [])])
        self.block.ops.append(op)
        return op

    @contextmanager
    def under(self, guard: Cond | None) -> Iterator[None]:
        """Statements inside run only where ``guard`` holds."""
        if guard is None or guard.is_true:
            yield
            return
        self.guards.append(guard)
        yield
        self.guards.pop()

    @contextmanager
    def loop(self, var: str, count: Number) -> Iterator[Expr]:
        """A counted loop; yields its variable. Guards in force move onto the loop itself. What is
        done once stands without one."""
        if expr(count) == Expr.const(1):
            yield Expr.const(0)
            return
        op = tile.For(var=self.fresh(var), count=expr(count))
        with self._region(op):
            yield Expr.var(op.var)

    @contextmanager
    def every_request(self) -> Iterator[Expr | None]:
        """What depends on the position of a request, once for each: yields which one it is, None
        where a step has a single request. Statements that follow each other share a loop: those of
        a request touch nothing of another."""
        if self.batch == 1:
            yield None
            return
        loop, guards = self._of_requests
        if loop is None or self.block.ops[-1:] != [loop] or guards != self.guards:
            each = (POSITION,) if POSITION in self.source.scalars else ()
            loop = tile.For(var=self.fresh(REQUEST), count=Expr.const(self.batch), each=each)
            self._of_requests = loop, list(self.guards)
            self.append(loop)
        with self._body_of(loop):
            yield Expr.var(loop.var)

    def of_request(self, place: Place, request: Expr | None) -> Place:
        """What ``place`` holds of a request. Fails with ``unsupported-op`` where that is the same
        of all, though each has its own position."""
        if request is None:
            return place
        if not place.rows:
            fail(
                "unsupported-op",
                f"{place.buffer} has no dim {BATCH}, but each of {self.batch} requests has its own "
                "position",
                self.span,
            )
        return replace(place, prefix=(*place.prefix, point(request)), rows=False)

    @contextmanager
    def sweep(self, rank: Expr, count: int, guard: Cond | None = None) -> Iterator[None]:
        """The body once per core, messages going from each rank to the next."""
        with self.under(guard), self._region(tile.Sweep(rank=rank, count=count)):
            yield

    @contextmanager
    def _region(self, op: Op) -> Iterator[None]:
        self.append(op)
        with self._body_of(op):
            yield

    @contextmanager
    def _body_of(self, op: Op) -> Iterator[None]:
        """Statements inside come behind those in the body of ``op``."""
        outer, self.block = self.block, op.regions[0] if op.regions else Block()
        guards, self.guards = self.guards, []
        yield
        op.regions = [self.block]
        self.block, self.guards = outer, guards

    def compute(self, kernel: str, *views: View, **params: tile.ParamValue) -> None:
        """A microkernel. Fails with ``unsupported-op`` for views that do not fit it: the values of
        the op that is expanded go together, but have no tile program."""
        call = tile.Compute(list(views), kernel=kernel, params=dict(params))
        try:
            call.verify(self.module.dims)
        except MeshcError as error:
            (found,) = error.diagnostics
            fail(
                "unsupported-op",
                f"no tile program for values that lie so: {found.message}",
                self.span,
                notes=found.notes,
                help=found.help,
            )
        self.append(call)

    def compute_where(self, guard: Cond, kernel: str, *views: View) -> None:
        """A microkernel without parameters on the cores where ``guard`` holds."""
        with self.under(guard):
            self.compute(kernel, *views)

    def send(self, channel: Symbol, view: View, when: Cond | None = None) -> Value:
        """Start a send; returns its token."""
        return self._transfer(tile.Send([channel, view], when=when), "sent")

    def recv(
        self, channel: Symbol, view: View, when: Cond | None = None, combine: str = "store"
    ) -> Value:
        """Start a receive; returns its token."""
        return self._transfer(tile.Recv([channel, view], when=when, combine=combine), "got")

    def relay(self, channel: Symbol, view: View, combine: str, when: Cond | None = None) -> Value:
        """Pass a message on along ``channel``, combined with ``view``; returns the token."""
        return self._transfer(
            tile.Relay([channel, channel, view], when=when, combine=combine), "passed"
        )

    def _transfer(self, op: Op, name: str) -> Value:
        token = Value(self.fresh(name), TokenType())
        op.results = [token]
        self.append(op)
        return token

    def wait(self, *tokens: Value) -> None:
        """Join transfers."""
        self.append(tile.Wait(list(tokens)))

    # --- places

    def local_dims(self, kind: TensorType) -> tuple[str, ...]:
        """Dims that take room on a core: not a single row, not a single request."""
        single = {BATCH, self.row_dim} - {self.held_first}
        return tuple(d for d in kind.dims if d not in single)

    def held_dims(self, kind: TensorType) -> list[str]:
        """The dims of ``local_dims`` in the order of a buffer: the rows first."""
        dims = self.local_dims(kind)
        return sorted(dims, key=lambda d: d != self.held_first)

    def local_shape(self, kind: TensorType) -> tuple[int, ...]:
        """Extents per core of the dims of ``local_dims`` other than the rows."""
        extents = dict(zip(kind.dims, kind.local_shape(self.source.dims), strict=True))
        return tuple(extents[d] for d in self.local_dims(kind) if d != self.held_first)

    def has_rows(self, kind: TensorType) -> bool:
        """Whether the value has rows, of tokens or of requests."""
        return self.held_first in kind.dims

    def new_place(
        self, name: str, kind: TensorType, role: Role | str = "", layers: int = 0
    ) -> Place:
        """A buffer of its own for a value, or for as many as there are ``layers``."""
        shape, rows = self.local_shape(kind), self.has_rows(kind)
        room = ((layers,) if layers else ()) + self._room(shape, rows)
        return Place(self.buffer(name, room, kind.dtype, role), shape, rows=rows)

    def place_like(self, place: Place, name: str, dtype: DType) -> Place:
        """A buffer for a value of the extents of the one at ``place``."""
        kind = View(place.buffer).buffer_type
        room = kind.shape if place.chunked else self._room(place.shape, place.rows)
        buffer = self.buffer(name, room, dtype)
        return Place(buffer, place.shape, rows=place.rows, chunked=place.chunked)

    def _room(self, shape: tuple[int, ...], rows: bool) -> tuple[int, ...]:
        """Extents of a buffer for one value."""
        return (self.row_room, *shape) if rows else shape or (1,)

    def joint_places(self, name: str, kinds: Sequence[TensorType]) -> list[Place]:
        """One buffer for several values side by side."""
        shapes = [self.local_shape(k) for k in kinds]
        rows = self.has_rows(kinds[0])
        widths = [Place(Value("", kinds[0]), s).width for s in shapes]
        full = ((self.row_room,) if rows else ()) + (sum(widths),)
        buffer = self.buffer(name, full, kinds[0].dtype)
        offsets = [sum(widths[:i]) for i in range(len(widths))]
        return [Place(buffer, s, rows=rows, offset=o) for s, o in zip(shapes, offsets, strict=True)]

    def view(
        self,
        place: Place,
        shape: tuple[Number, ...] = (),
        order: Sequence[int] = (),
        rows: Expr | None = None,
    ) -> View:
        """The value as a view: rows first, then its local dims, or ``shape`` instead of those.
        ``rows`` are the first ones of the run if not all."""
        indices, rows = list(place.prefix), self.rows if rows is None else rows
        if place.chunked:
            _, chunks, _ = place.shape
            chunk = (window(0, rows), Whole(), window(0, self.chunk_keys))
            return View(place.buffer, (window(0, chunks), *chunk), (), (1, 2, 0, 3))
        if place.rows:
            indices.append(window(0, rows) if self.many_rows else Whole())
        if place.offset is not None:
            indices.append(window(place.offset, place.width))
        wanted = shape or (place.shape if place.offset is not None else ())
        same = wanted == place.shape and (place.offset is None or len(place.shape) == 1)
        reshape: tuple[Expr, ...] = ()
        if place.rows and place.offset is not None and not wanted:
            reshape = (rows,)
        elif wanted and not same:
            lead = (rows,) if place.rows else ()
            reshape = (*lead, *(expr(n) for n in wanted))
        while indices and isinstance(indices[-1], Whole):
            indices.pop()
        return View(place.buffer, tuple(indices), reshape, tuple(order))

    def flat(self, place: Place) -> View:
        """The value as ``[rows, lanes]``; a vector becomes one row."""
        if place.rows:
            return self.view(place, (place.width,))
        plain = self.view(
            replace(place, shape=(place.width,)) if place.offset is not None else place
        )
        return View(plain.buffer, plain.indices, (expr(1), expr(place.width)), ())

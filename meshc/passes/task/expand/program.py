"""The program that is made: buffers, ports, phases, and the task that is being written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from meshc.analysis.rotary_angles import rope_frequencies
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import AHEAD, LENGTH, OWNER, POSITION, most_of_request, request_dim, rows_of
from meshc.ir.builder import Names
from meshc.ir.core import Block, Op
from meshc.ir.kernels import KERNELS
from meshc.ir.module import Buffer, Module, Port, Program, Role
from meshc.ir.ops import graph, task, tile
from meshc.ir.ranks import RANK
from meshc.ir.rows import Paired
from meshc.ir.types import BufferType, DType, TensorType
from meshc.ir.values import Value
from meshc.ir.views import Index, Point, Range, View, Whole
from meshc.support.spans import Span

ROWS = ("B", "L")
"""Dims of the rows of a program: the requests of a step, and the tokens of each that it reads, one
but for drafts; the tokens of a batch of these; or the tokens of a prompt."""


def constant(value: int) -> Expr:
    """An expression that is a number."""
    return Expr.const(value)


def span(start: Expr | int, count: int) -> Range:
    """``count`` positions from ``start``."""
    return Range(start if isinstance(start, Expr) else constant(start), constant(count))


def region(value: Value, *indices: Index) -> View:
    """A view of ``value``; dims that are whole are left out at the end."""
    kept = list(indices)
    while kept and isinstance(kept[-1], Whole):
        kept.pop()
    return View(value, tuple(kept))


@dataclass(frozen=True)
class Part:
    """Elements ``start .. start + count`` of a value's lanes, which are its dims but those of rows,
    flattened; of the rows of all tokens, or of so ``many`` from the one on that ``token`` says."""

    start: Expr
    count: int
    token: Expr | None = None
    many: int = 1

    def rows(self, tokens: int) -> int:
        """How many rows it has."""
        return tokens if self.token is None else self.many

    def of(self, value: Value, lead: tuple[Index, ...] = ()) -> View:
        """Its place in a buffer ``[.., tokens, lanes]``, at ``lead``."""
        rows = Whole() if self.token is None else span(self.token, self.many)
        return region(value, *lead, rows, self.lanes_of(value))

    def lanes_of(self, value: Value) -> Index:
        """Its lanes among the last dim of a buffer."""
        assert isinstance(value.type, BufferType)
        whole = self.start == constant(0) and self.count == value.type.shape[-1]
        return Whole() if whole else span(self.start, self.count)


@dataclass
class Origin:
    """The place in the source of the graph op that is being expanded, which what is written
    keeps."""

    span: Span | None = None

    @contextmanager
    def at(self, op: Op) -> Iterator[None]:
        """Ops that are written in the block are of ``op``."""
        before, self.span = self.span, op.span
        try:
            yield
        finally:
            self.span = before


@dataclass(eq=False)
class OpenTask:
    """A family whose body is being written. ``own`` are the lanes that each of its tasks gives,
    ``phase`` the number of its phase; ``known`` has what was computed in it already. One that is
    ``routed`` is of the expert of this number, and does nothing if no row is sent to it."""

    family: task.Family
    phase: int
    names: Names
    own: Part
    origin: Origin
    routed: Expr | None = None
    known: dict[tuple[object, object], Value] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = [self.family.regions[0]]

    def add(self, op: Op, name: str = "", kind: BufferType | None = None) -> Value:
        """Append an op, whose result, if it has one, is called ``name``."""
        if name:
            kinds = [kind] if kind is not None else op.infer({})
            assert kinds is not None
            op.results = [Value(self.names.fresh(name), kinds[0])]
        op.span = self.origin.span
        self.blocks[-1].ops.append(op)
        return op.results[0] if name else Value("", BufferType(DType.F32, ()))

    def local(self, name: str, shape: Sequence[int], dtype: DType = DType.F32) -> Value:
        """Memory of the task."""
        op = task.Local(span=self.origin.span)
        op.results = [Value(self.names.fresh(name), BufferType(dtype, tuple(shape)))]
        self.blocks[-1].ops.append(op)
        return op.result

    def compute(self, kernel: str, *views: View | Value, **params: object) -> None:
        """Call a microkernel; values stand for views of all of them."""
        operands = [View(v) if isinstance(v, Value) else v for v in views]
        assert len(operands) == len(KERNELS[kernel].operands_of(params)), kernel
        self.add(tile.Compute(operands, kernel=kernel, params=params))  # type: ignore[arg-type]

    def loop(self, var: str, count: Expr, each: tuple[str, ...] = ()) -> Block:
        """Write into a loop, until :meth:`leave`."""
        op = tile.For(var=var, count=count, each=each, regions=[Block()])
        self.add(op)
        self.blocks.append(op.regions[0])
        return op.regions[0]

    def leave(self) -> None:
        """Write behind the loop again."""
        self.blocks.pop()


class TaskProgram:
    """The module of tasks that a graph becomes, and where in it one writes. Lanes of buffers are
    padded to a whole number of ``rows``, so that a task owns as many as any other; products whose
    left side has ``wide`` bytes are divided into ``parts`` of their width where they can be."""

    def __init__(self, source: Module, rows: int, parts: int, wide: int) -> None:
        self.source, self.rows, self.parts, self.wide = source, rows, parts, wide
        self.of_prompt = LENGTH in source.scalars
        self.tokens = rows_of(source)
        self.owned = OWNER in source.scalars
        self.requests = request_dim(source)
        self.together = 1 if self.of_prompt else most_of_request(source)
        self.module = Module(
            source.name,
            "task",
            dims=dict(source.dims),
            scalars=dict(source.scalars),
            options=dict(source.options),
            device=source.device,
            ranks=source.ranks,
            paired={},
            multiples=dict(source.multiples),
        )
        self.ranks = 1 if source.ranks is None else source.ranks.count
        if source.ranks is not None:
            self.module.scalars[RANK] = (0, self.ranks - 1)
        if self.owned:
            self.module.scalars[POSITION] = (0, source.scalars[POSITION][1])
            self.module.scalars[AHEAD] = (0, self.tokens - 1)
        self.module.programs = [Program(source.function.name, Block())]
        self.origin = Origin()
        self.names = Names()
        self.family_names = Names()
        self.phase_names = Names()
        self.variables = Names({"part", "b", "t", "h", "g", "s", "n", *self.module.scalars})
        self.blocks = [self.module.program.body]
        self.layer: Expr | None = None
        self.layers = 1
        self.opened: list[Block] = []
        self.packed: dict[object, Value] = {}
        self.undivided: list[tuple[str, int]] = []

    # --- where one writes

    def phase(self, name: str) -> Block:
        """A new phase at the end of what there is."""
        name, span = self.phase_names.fresh(name), self.origin.span
        op = task.Phase(name=name, regions=[Block()], span=span)
        self.blocks[-1].ops.append(op)
        self.opened.append(op.regions[0])
        return op.regions[0]

    @property
    def phases(self) -> int:
        """How many phases there are, which is the number of the last one."""
        return len(self.opened)

    def family(
        self, phase: Block, name: str, domain: dict[str, int], own: Part, each: tuple[str, ...] = ()
    ) -> OpenTask:
        """A new family in ``phase``, to be written."""
        op = task.Family(
            name=self.family_names.fresh(name),
            dims=tuple(domain),
            sizes=tuple(domain.values()),
            each=each,
            regions=[Block()],
            span=self.origin.span,
        )
        phase.ops.append(op)
        number = next(n for n, block in enumerate(self.opened, 1) if block is phase)
        return OpenTask(op, number, self.names, own, self.origin)

    # --- buffers

    @property
    def at_layer(self) -> tuple[Index, ...]:
        """The place of the present layer in a stack, nothing outside of loops over layers."""
        return () if self.layer is None else (Point(self.layer),)

    def buffer(
        self, name: str, shape: Sequence[int], dtype: DType = DType.F32, role: Role | str = ""
    ) -> Value:
        """A buffer of the GPU's memory."""
        value = Value(self.names.fresh(name), BufferType(dtype, tuple(shape)))
        self.module.buffers.append(Buffer(value, role))  # type: ignore[arg-type]
        return value

    def scratch(
        self, name: str, shape: Sequence[int], dtype: DType = DType.F32, of_ranks: bool = False
    ) -> Value:
        """A buffer of what tasks give, with an element for each layer where there are layers; or of
        what ranks give to all, which the first dim of ``shape`` counts."""
        lead = () if self.layer is None else (self.layers,)
        found = self.buffer(name, (*lead, *shape), dtype)
        if of_ranks:
            self.module.buffers[-1].ranks = len(lead)
        return found

    # --- tokens

    def position(self, token: Expr) -> Expr:
        """Where a token stands in its request: those that are read of one stand behind the first
        one, whose position a run is told."""
        first = Expr.var(POSITION)
        if self.of_prompt:
            return first + token
        return first + self.number(token) if self.together > 1 else first

    def number(self, token: Expr) -> Expr:
        """Which of the tokens that are read of its request a token is, of several. In a batch of
        these it is a token of the request of the row ``b``."""
        return token - self.first_of(Expr.var("b")) if self.owned else token % self.together

    def first_of(self, token: Expr) -> Expr:
        """The first of the tokens that are read of the request of a token, of several."""
        if self.owned:
            return token - Expr.var(AHEAD)
        return token // self.together * self.together

    def request(self, token: Expr) -> Expr:
        """Which request a token is of."""
        if self.of_prompt:
            return constant(0)
        if self.owned:
            return Expr.var(OWNER)
        return token // self.together if self.together > 1 else token

    @property
    def each(self) -> tuple[str, ...]:
        """The scalars of which each token has its own."""
        if self.owned:
            return (POSITION, OWNER, AHEAD)
        return () if self.of_prompt else (POSITION,)

    def there(self, token: Expr) -> Cond | None:
        """Where a run has a token; None where it has each."""
        room = Cond.lt(self.position(token), self.source.capacity)
        if self.owned:
            return room
        if not self.of_prompt:
            return None
        return Cond.lt(token, Expr.var(LENGTH)) & room

    def lanes(self, kind: TensorType) -> int:
        """How many lanes a value has: elements of one row."""
        return prod(self.source.dims[d] for d in kind.dims if d not in ROWS)

    def padded(self, lanes: int) -> int:
        """How many lanes a buffer has for so many of a value."""
        return -(-lanes // self.rows) * self.rows

    # --- what comes from outside

    def matrix(
        self,
        param: Value,
        stacked: bool,
        heads: Sequence[str],
        down: Sequence[str],
        across: Sequence[str],
        padded: bool = True,
    ) -> Value:
        """A weight as ``[(layers,) (heads,) lanes given, lanes taken]``: a row for each lane of the
        dims ``down``, ``padded`` unless lanes of one head stand behind those of another, and in it
        the lanes of ``across``."""
        key = (param, *heads, tuple(down), tuple(across))
        if key not in self.packed:
            counts = [prod(self.source.dims[d] for d in dims) for dims in (heads, down, across)]
            parts = [(down, self.padded(counts[1]) if padded else counts[1]), (across, counts[2])]
            first = [(heads, counts[0])] if heads else []
            self.packed[key] = self._weight(param, _tensor(param), stacked, [*first, *parts])
        return self.packed[key]

    def vector(self, param: Value, stacked: bool, dims: Sequence[str]) -> Value:
        """A weight as ``[(layers,) lanes]`` of ``dims``, repeated over those that it lacks."""
        key = (param, tuple(dims))
        if key not in self.packed:
            lanes = self.padded(prod(self.source.dims[d] for d in dims))
            self.packed[key] = self._weight(param, _tensor(param), stacked, ((dims, lanes),))
        return self.packed[key]

    def _weight(
        self,
        param: Value,
        kind: TensorType,
        stacked: bool,
        parts: Sequence[tuple[Sequence[str], int]],
    ) -> Value:
        """A buffer of role weight with a dim for each of ``parts`` (dims of the tensor, flattened,
        and lanes), behind that of the stack; and its port."""
        lead = (self.source.dims[kind.dims[0]],) if stacked else ()
        value = self.buffer(param.name, (*lead, *(n for _, n in parts)), kind.dtype, "weight")
        lanes, elements = [], {}
        if stacked:
            lanes.append("layer")
            elements[kind.dims[0]] = Expr.var("layer")
        paired = self.source.paired.get(param.name)
        if paired is not None:
            self.module.paired[param.name] = paired
        for number, (dims, _) in enumerate(parts):
            lanes.append(f"i{number}")
            elements |= self._elements(dims, Expr.var(f"i{number}"), paired)
        element = tuple(elements[d] for d in kind.dims)
        self.module.ports.append(Port(param.name, "in", kind, value, tuple(lanes), (), element))
        return value

    def _elements(self, dims: Sequence[str], lane: Expr, paired: Paired | None) -> dict[str, Expr]:
        """The index in each of ``dims`` of lane ``lane`` of all of them, flattened."""
        found = {}
        step = prod(self.source.dims[d] for d in dims)
        for number, dim in enumerate(dims):
            inner = lane % step if number else lane
            extent = self.source.dims[dim]
            step //= extent
            index = inner // step
            if paired is not None and dim == paired.dim:
                index = paired.element(index, extent)
            found[dim] = index
        return found

    def rows_in(self, name: str, kind: TensorType) -> Value:
        """An input ``[tokens, lanes]``."""
        return self._edge(name, kind, "in")

    def rows_out(self, name: str, kind: TensorType) -> Value:
        """A result ``[tokens, lanes]``."""
        return self._edge(name, kind, "out")

    def _edge(self, name: str, kind: TensorType, role: Role) -> Value:
        dtype = DType.F32 if role == "out" else kind.dtype
        dims = [d for d in kind.dims if d not in ROWS]
        lanes = self.padded(self.lanes(kind)) if dims else 1
        value = self.buffer(name, (self.tokens, lanes), dtype, role)
        row = Expr.var("b")
        rows = {"B": self.request(row), "L": row if self.of_prompt else row % self.together}
        if self.owned:
            rows = {"B": row, "L": constant(0)}
        elements = rows | self._elements(dims, Expr.var("i"), None)
        element = tuple(elements[d] for d in kind.dims)
        direction = "in" if role == "in" else "out"
        self.module.ports.append(Port(name, direction, kind, value, ("b", "i"), (), element))  # type: ignore[arg-type]
        return value

    def frequencies(self, op: graph.Rope) -> Value:
        """Angles of the pairs of a rotation, ``[pairs]``, or ``[layers, pairs]`` where layers have
        different ones."""
        lanes = self.source.dims[op.dim]
        one = rope_frequencies(op, lanes)
        values = one
        if op.period:
            other = rope_frequencies(op, lanes, between=True)
            chosen = (one if (n + 1) % op.period == 0 else other for n in range(self.layers))
            values = tuple(f for layer in chosen for f in layer)
        key = ("frequencies", values)
        if key not in self.packed:
            name = self.names.fresh("rope_frequency")
            dim = f"{op.dim}_pairs" if not op.period else f"{op.dim}_pairs_of_layers"
            self.module.dims.setdefault(dim, len(values))
            self.module.constants[name] = values
            shape = (self.layers, lanes // 2) if op.period else (lanes // 2,)
            value = self.buffer(f"{name}_lanes", shape, DType.F32, "weight")
            at = Expr.var("i")
            element = Expr.var("layer") * (lanes // 2) + at if op.period else at
            own = ("layer", "i") if op.period else ("i",)
            tensor = TensorType(DType.F32, (dim,))
            self.module.ports.append(Port(name, "in", tensor, value, own, (), (element,)))
            self.packed[key] = value
        return self.packed[key]


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type

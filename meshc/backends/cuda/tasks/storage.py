"""Where the buffers of a program of tasks lie in the memory of a GPU, and how elements are read.

Matrices lie in the order of tensor cores, group of rows after group of rows as tasks stream them;
rows that a task multiplies together are one group. Caches lie in pages, the rows of tokens
swizzled. What tasks give lies as in the program, of as many versions as are kept; last dims are
filled up to whole groups of four. Rounded left sides of products lie in blocks of sixteen lanes of
all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm, prod

from meshc.analysis.cuda.blocks import FRAGMENT, FRAGMENT_BYTES
from meshc.analysis.tasks.tiles import tile_bytes
from meshc.backends.cuda.program import AHEAD_OF, OWNERS, Buffer, Gathered, Weight, numbered
from meshc.backends.cuda.tasks.caches import RowOrder, side_by_side
from meshc.backends.cuda.tasks.matrix_places import Cache, Matrix, Table, positions_of
from meshc.backends.cuda.tasks.prompt_weights import Known, Place
from meshc.backends.cuda.tasks.reserved import TAKEN, fresh, indices
from meshc.backends.cuda.tasks.spelling import Ranges, flattened, spelled, unflattened
from meshc.ir.affine import Expr
from meshc.ir.batch import (
    AHEAD,
    LENGTH,
    OWNER,
    POSITION,
    most_of_request,
    request_dim,
    rows_of,
)
from meshc.ir.builder import Names
from meshc.ir.coded_rows import SCALES_TOGETHER, row_bytes_with_scale
from meshc.ir.module import Module, Port
from meshc.ir.ops import graph
from meshc.ir.types import BufferType, DType, TensorType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

RUNS_BEFORE = "past"
"""What the kernel calls the number of runs before it, as far as tags depend on that."""
LOGITS, CHOSEN = "logits", "token"
"""What a step gives, and what a choice among it gives, in the memory of the GPU."""
CACHE_PAGES = "cache_pages"
"""The option of a graph that says how many pages caches of all requests have, where the host deals
them out; else each request has pages for all its tokens."""
OF_GPUS = "_of_all"
"""Behind the name of what ranks give each other: its memory on all GPUs, or where it is on each."""


@dataclass
class Storage:
    """The memory of ``module``, whose graph was ``source``; caches have pages of ``page`` tokens.
    What is ``known`` lies already as other kernels read it. Rows of scratch are of ``tokens``:
    those of a prompt, or those of each request that a step reads."""

    module: Module
    source: Module
    page: int
    known: Known = field(default_factory=Known)
    weights: dict[str, Weight] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    frequencies: list[tuple[float, ...]] = field(default_factory=list)
    names: dict[Value, str] = field(default_factory=dict)
    doubling: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        kept = {*self.known.weights, *self.known.buffers}
        self.taken = Names(TAKEN | kept | indices(self.module))
        self.ports = {port.buffer: port for port in self.module.ports}
        self.roles = {buffer.value: buffer for buffer in self.module.buffers}
        self.matrices: dict[object, Matrix] = {}
        self.side_by_side = side_by_side(self.module)
        self.rows = RowOrder.of(self.source)
        self.dtype = self.module.dtype()

    # --- what is there

    def name(self, value: Value) -> str:
        """What a buffer is called in the kernel."""
        if value not in self.names:
            self.names[value] = fresh(self.taken, value.name)
        return self.names[value]

    def role(self, value: Value) -> str:
        """The role of a buffer, empty for scratch."""
        return self.roles[value].role

    def matrix(self, values: Sequence[Value], rows: int) -> Matrix:
        """Weights of which a task multiplies ``rows`` rows each, together."""
        kinds = [_kind(value) for value in values]
        *lead, _, width = kinds[0].shape
        named = ", ".join(str(value) for value in values)
        if len({k.shape for k in kinds}) > 1:
            fail("cuda-shape", f"weights {named} have no common shape")
        gathered = tuple(self.gathered(self.ports[value]) for value in values)
        sources = tuple(self.ports[value].name for value in values)
        key = (sources, tuple(g.element for g in gathered), rows)
        if key not in self.matrices:
            stacked = self.stacked(values[0])
            layers, inner = (lead[0], lead[1:]) if stacked else (0, lead)
            groups, blocks = kinds[0].shape[-2] // rows, -(-width // FRAGMENT)
            place = self.known.matrix(sources, gathered, rows, layers)
            every = 0 if place is None or inner else self._every(place, groups, blocks)
            if place is not None and every:
                self.weights[place.name] = self.known.weights[place.name]
            else:
                weight = Weight(
                    str(self.dtype),
                    "tasks",
                    sources,
                    tuple(self.extents(self.ports[value]) for value in values),
                    (*inner, groups, blocks, 32, 8),
                    layers,
                    fragments=True,
                    gathered=gathered,
                    rows=rows,
                )
                place, every = Place(self.packed(weight, values[0].name)), groups
            self.matrices[key] = Matrix(place, tuple(lead), groups, blocks, every)
        return self.matrices[key]

    def _every(self, place: Place, groups: int, blocks: int) -> int:
        """How many groups the matrix at ``place`` has in all; 0 where it has not as many of a
        weight as tasks read, who fill the last ones up, or rows of another width."""
        *lead, width, _, _ = self.known.weights[place.name].shape
        every = prod(lead)
        own = every * place.own // place.every if place.own else every
        return every if (own, width) == (groups, blocks) else 0

    def vector(self, value: Value) -> str:
        """A weight without rows, or whose rows no task multiplies: the name of its memory."""
        shape, stacked, port = _kind(value).shape, self.stacked(value), self.ports[value]
        gathered, layers = self.gathered(port), shape[0] if stacked else 0
        if (name := self.known.vector(port.name, gathered, layers)) is not None:
            self.weights[name] = self.known.weights[name]
            return name
        weight = Weight(
            str(self.dtype),
            "tasks",
            (port.name,),
            (self.extents(port),),
            shape[1:] if stacked else shape,
            layers,
            gathered=(gathered,),
        )
        return self.packed(weight, value.name)

    def packed(self, weight: Weight, called: str) -> str:
        """The name of a weight, of an equal one that there is already if there is one."""
        for one, other in (*self.weights.items(), *self.known.weights.items()):
            if other == weight:
                self.weights[one] = other
                return one
        name = fresh(self.taken, called)
        self.weights[name] = weight
        return name

    def table(self, value: Value) -> tuple[str, str, int, int]:
        """Angles by position, from the frequencies ``value``: the names of their cosines and sines,
        how many a position has and how many of them a layer."""
        (port,) = (port for port in self.module.ports if port.buffer == value)
        angles = self.module.constants[port.name]
        if angles not in self.frequencies:
            self.frequencies.append(angles)
        place = self.frequencies.index(angles)
        names = numbered("cosines", place), numbered("sines", place)
        for name in names:
            self.buffers[name] = Buffer("f32", (self.capacity, len(angles)), "constant")
        shape = _kind(value).shape
        return *names, len(angles), shape[-1] if len(shape) > 1 else 0

    def cache(self, value: Value) -> Cache:
        """A cache of requests. Rows of several without heads lie side by side."""
        kind, dims = _kind(value), self.cache_dims(value)
        stacked = dims[0] in self._stacks
        layers = kind.shape[0] if stacked else 0
        own = [d for d in dims[int(stacked) :] if d != self.request_dim]
        heads = kind.shape[-2] if len(own) == 3 else 1
        of_row = self.side_by_side.get(value, (value,))
        coded = self.coded(value)
        widths = [_kind(one).shape[-1] for one in of_row]
        widths = widths if coded else [-(-width // 8) * 8 for width in widths]
        lanes, first = sum(widths), sum(widths[: of_row.index(value)])
        usual = (self.known.requests or self.requests) * self.capacity_pages
        pages = int(self.source.option(CACHE_PAGES, usual))
        width = lanes
        if coded:
            width = row_bytes_with_scale(lanes) if self.scales_behind else lanes + 1
        heads_of_rows = heads if len(own) == 3 else 0
        shape = self.rows.pool(value, pages, self.page, heads_of_rows, lanes, width)
        full = (layers, *shape) if stacked else shape
        name = self.known.cache(value.name, full) or self.name(of_row[0])
        dtype = str(self.roles[value].coded if coded else self.dtype)
        self.buffers.setdefault(name, Buffer(dtype, full, "state"))
        size = prod(shape) if stacked else 0
        return Cache(name, heads, lanes, size, first, coded, self.scales_behind)

    def coded(self, value: Value) -> bool:
        """Whether a cache is coded. Raises ``cuda-shape`` for one whose rows cannot be."""
        if self.roles[value].coded is None:
            return False
        if len(self.side_by_side.get(value, ())) > 1:
            fail("cuda-shape", f"rows of heads are coded, not those of %{value.name}")
        return True

    @property
    def scales_behind(self) -> bool:
        """Whether rows that are coded have their scales behind them: those whose neighbours in
        memory are no tokens of the same head."""
        return self.page % SCALES_TOGETHER != 0 or self.rows.nhd

    @property
    def codes_caches(self) -> bool:
        """Whether some caches are coded."""
        return any(buffer.coded is not None for buffer in self.module.buffers)

    def cache_dims(self, value: Value) -> tuple[str, ...]:
        """The dims of a cache in the model."""
        for param in self.source.function.params:
            if param.value.name == value.name and isinstance(param.value.type, TensorType):
                return param.value.type.dims
        fail("cuda-graph", f"the model has no cache '{value.name}'")

    @property
    def _stacks(self) -> frozenset[str]:
        """Dims that count layers."""
        return frozenset(op.dim for op in self.source.walk() if isinstance(op, graph.Repeat))

    @property
    def tile_blocks(self) -> int:
        """Blocks of a matrix that are asked for at once."""
        return tile_bytes(self.module.the_device()) // FRAGMENT_BYTES

    @property
    def of_prompt(self) -> bool:
        """Whether the tokens are those of a prompt, one behind the other."""
        return LENGTH in self.module.scalars

    @property
    def choices(self) -> int:
        """Among how many tokens one is chosen, by logits that are there; 0 where these are read."""
        draws = (op for op in self.source.walk() if isinstance(op, graph.Draw))
        return next((self.source.dims[op.dim] for op in draws), 0)

    @property
    def tokens(self) -> int:
        """Tokens that are read: those of each request of a step, or those of a prompt."""
        return rows_of(self.module)

    @property
    def requests(self) -> int:
        """Requests whose pages are known."""
        return self.module.dims.get(self.request_dim, 1)

    @cached_property
    def request_dim(self) -> str:
        """The dim of caches that counts requests."""
        return request_dim(self.source)

    @property
    def owned(self) -> bool:
        """Whether the tokens are a batch, each of which a run tells the request of."""
        return OWNER in self.module.scalars

    @property
    def together(self) -> int:
        """Tokens of a request that a step reads at the most."""
        return most_of_request(self.module)

    @property
    def scalars(self) -> dict[str, tuple[int, int]]:
        """What a run is told, and what it may be."""
        if self.choices:
            return {}
        if self.owned:
            return {name: self.module.scalars[name] for name in (POSITION, OWNER, AHEAD)}
        found = {POSITION: (0, self.capacity - self.together)}
        return found | ({LENGTH: (1, self.tokens)} if self.of_prompt else {})

    @property
    def deals_pages(self) -> bool:
        """Whether the host deals out pages to the requests of a step, of which some may be nobody,
        whose token is -1: these are sent to no experts."""
        return CACHE_PAGES in self.source.options and not self.of_prompt

    @property
    def has_lengths(self) -> bool:
        """Whether each token has a position of its own."""
        several = self.tokens > 1 or self.owned
        return several and not self.of_prompt and not self.choices

    def told(self, row: str, attends: bool = False) -> str:
        """The declaration of what a run tells of the token in a row, for tasks that may read its
        caches."""
        found = [f"{POSITION} = lengths[{row}]"]
        if self.owned:
            found += [f"{AHEAD} = {AHEAD_OF}[{row}]"]
            found += [f"{OWNER} = {OWNERS}[{row}]"] if attends else []
        return f"const int {', '.join(found)};"

    @property
    def capacity(self) -> int:
        """Tokens that a cache keeps."""
        return self.source.capacity

    @property
    def capacity_pages(self) -> int:
        """Pages of a request."""
        return -(-self.capacity // self.page)

    def cached(self, value: Value, index: Sequence[Expr], ranges: Ranges) -> str:
        """The place of a lane of a token in a cache."""
        cache = self.cache(value)
        layer, request, token, head, lane = self._in_cache(value, index)
        place = token, head, self.rows.lane(value, lane) + cache.first
        asked = (spelled(one, ranges) for one in place)
        found = f"{cache.rows(self.page)}::lane({', '.join((self.pages(request, ranges), *asked))})"
        return f"{cache.name}[{self.of_layer(cache.layer, layer, ranges)}{found}]"

    def stored_row(
        self,
        value: Value,
        index: Sequence[Expr],
        ranges: Ranges,
        row: str,
        ordered: bool = False,
    ) -> str:
        """A statement of a warp that stores a ``row`` that it has coded, that of the element
        ``index``, in a cache, which may have its lanes in another order unless it is ``ordered``
        already."""
        cache = self.cache(value)
        layer, request, token, head, _ = self._in_cache(value, index)
        offset = self.of_layer(cache.layer, layer, ranges).removesuffix(" + ")
        at = f"{cache.name} + {offset}" if offset else cache.name
        given = at, self.pages(request, ranges), spelled(token, ranges), spelled(head, ranges), row
        order = "" if ordered else self.order_of(value)
        return f"{cache.rows(self.page)}::store({', '.join(given)}{order});"

    def order_of(self, value: Value) -> str:
        """The last argument of what stores a row that is coded, with a comma in front: where the
        cache ``value`` has each lane. Nothing where lanes lie in order."""
        lane, extent = Expr.var("lane"), _kind(value).shape[-1]
        place = self.rows.lane(value, lane)
        if place == lane:
            return ""
        return f", [&](int lane) {{ return {spelled(place, {'lane': (0, extent - 1)})}; }}"

    def _in_cache(self, value: Value, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Layer, request, token, head and lane of an element of a cache."""
        at = list(index)
        layer = at.pop(0) if self.cache(value).layer else Expr.const(0)
        request = at.pop(0) if self.request_dim in self.cache_dims(value) else Expr.const(0)
        token, *head, lane = at
        return layer, request, token, *(head or [Expr.const(0)]), lane

    def pages(self, request: Expr, ranges: Ranges) -> str:
        """Where the pages of a request stand."""
        text = spelled(request * self.capacity_pages, ranges)
        return "pages" if text == "0" else f"pages + {text}"

    def of_layer(self, size: int, layer: Expr, ranges: Ranges) -> str:
        """The offset of a layer of ``size`` elements, with a sign behind it; nothing for none."""
        text = spelled(layer, ranges)
        at = text if text.isidentifier() else f"({text})"
        return f"(size_t){at} * {size} + " if size and text != "0" else ""

    def embedding(self, value: Value) -> list[Table]:
        """The tables whose rows the input ``value`` is the sum of: that of words, and that of
        positions where these are learned. None for another input."""
        port = self.ports[value]
        for op in self.source.walk():
            if isinstance(op, graph.Embed) and op.result.name == port.name:
                tables = op.tensors()[1:]
                asked = ("tokens", "cached")
                dims = (op.dim, positions_of(tables))
                return [self._table(*one) for one in zip(tables, dims, asked, strict=False)]
        return []

    def _table(self, table: Value, words: str, asked: str) -> Table:
        """A table of embeddings, in the order of a matrix, which logits may share."""
        kind, dims = table.type, self.source.dims
        assert isinstance(kind, TensorType)
        across = [d for d in kind.dims if d != words]
        width = prod(dims[d] for d in across)
        rows = -(-dims[words] // FRAGMENT) * FRAGMENT
        lanes = unflattened(Expr.var("i1"), [dims[d] for d in across])
        parts = {words: Expr.var("i0"), **dict(zip(across, lanes, strict=True))}
        gathered = Gathered(("i0", "i1"), (rows, width), tuple(str(parts[d]) for d in kind.dims))
        key = ((table.name,), (gathered.element,), FRAGMENT)
        if key not in self.matrices:
            blocks, groups = -(-width // FRAGMENT), rows // FRAGMENT
            place = self.known.matrix((table.name,), (gathered,), FRAGMENT, 0)
            if place is not None and self._every(place, groups, blocks):
                self.weights[place.name] = self.known.weights[place.name]
            else:
                weight = Weight(
                    str(self.dtype), "tasks", (table.name,), (tuple(kind.shape(dims)),),
                    (groups, blocks, 32, 8), 0, fragments=True, gathered=(gathered,), rows=FRAGMENT,
                )  # fmt: skip
                place = Place(self.packed(weight, table.name))
            self.matrices[key] = Matrix(place, (), groups, blocks, groups)
        return Table(self.matrices[key].place.name, dims[words], width, asked)

    # --- elements

    def shape(self, value: Value) -> tuple[int, ...]:
        """Extents of the memory of scratch and results."""
        *lead, last = _kind(value).shape
        buffer = self.roles[value]
        if buffer.role in ("in", "out"):
            return (*lead, self._lanes_outside(value))
        if buffer.kept is not None and lead:
            lead[0] = buffer.kept
        if self.of_columns(value):
            return (*lead[:-1], -(-last // FRAGMENT), lead[-1], FRAGMENT)
        found = [*lead, last + -last % 4]
        if buffer.cluster is not None:
            dim, extent = buffer.cluster
            found[dim] = extent if dim < len(lead) else extent + -extent % 4
        return tuple(found)

    def _lanes_outside(self, value: Value) -> int:
        dims = self.ports[value].tensor.dims
        return prod(self.module.dims[d] for d in dims if d not in ("B", "L"))

    def of_columns(self, value: Value) -> bool:
        """Whether a buffer has rounded left sides of products, ``[.., tokens, lanes]``."""
        return self.role(value) == "" and _kind(value).dtype is not DType.F32

    def of_cluster(self, value: Value) -> bool:
        """Whether a buffer lies in the memory of clusters."""
        return self.roles[value].cluster is not None

    def of_ranks(self, value: Value) -> bool:
        """Whether GPUs of all ranks have what one of them gives."""
        return self.roles[value].ranks is not None

    def store(
        self, value: Value, index: Sequence[Expr], ranges: Ranges, given: str, at: str = ""
    ) -> str:
        """A statement that stores a float as the element ``index`` of scratch or of a result, or at
        ``at``, of the same version."""
        at = at or f"{self.scratch(value)} + {spelled(self.place(value, index), ranges)}"
        if self.of_cluster(value):
            return f"mc::cluster_put<CLUSTER>({at}, {given});"
        name, _, place = at.partition(" + ")
        tag = self.tag(value, index, ranges)
        if self.of_ranks(value):
            to = f"{name}{OF_GPUS}, {place}, {given}"
            if tag:
                return f"mc::gpus_give<RANKS, {self.roles[value].tags}>({to}, {tag});"
            return f"mc::gpus_put<RANKS>({to});"
        if tag:
            return f"mc::give<{self.roles[value].tags}>({at}, {given}, {tag});"
        if self.of_columns(value):
            return f"{name}[{place}] = mc::narrow<T>({given});"
        return f"{name}[{place}] = {given};"

    def where_result(self, value: Value, index: Sequence[Expr], ranges: Ranges) -> str:
        """In front of a statement that stores the element ``index``: that it is one of a result, of
        whose lanes tasks give whole groups of rows; empty where each is one."""
        lanes = self.shape(value)[-1]
        if self.role(value) != "out" or _kind(value).shape[-1] == lanes:
            return ""
        return f"if ({spelled(index[-1], ranges)} < {lanes}) "

    def scratch(self, value: Value) -> str:
        """The name of scratch or of a result, which is added to the buffers but where it lies in
        the memory of clusters."""
        if self.of_cluster(value):
            return self.name(value)
        role = self.role(value)
        name = self.name(value)
        if role == "out" and not self.of_prompt:
            name = CHOSEN if self.choices else LOGITS
        own = "scratch"
        if self.of_ranks(value):
            own = "symmetric" if self.roles[value].tags is None else "words"
        dtype = str(self.dtype) if self.of_columns(value) else "f32"
        made = Buffer(dtype, self.shape(value), "output" if role == "out" else own)
        self.buffers.setdefault(name, made)
        return name

    def place(self, value: Value, index: Sequence[Expr]) -> Expr:
        """Where an element of scratch or of a result is."""
        shape, at = self.shape(value), list(index)
        kept = self.roles[value].kept
        if kept is not None:
            at[0] = at[0] % kept if kept > 1 else Expr.const(0)
        cluster = self.roles[value].cluster
        if cluster is not None:
            dim, extent = cluster
            at[dim] = at[dim] % extent
        if self.of_columns(value):
            *lead, token, lane = at
            at = [*lead, lane // FRAGMENT, token, lane % FRAGMENT]
        return flattened(at, shape)

    def load(self, value: Value, index: Sequence[Expr], ranges: Ranges, waits: bool = False) -> str:
        """An element of scratch, of a weight that is no matrix, or of an input, as a float."""
        role = self.role(value)
        if role == "":
            at, name = spelled(self.place(value, index), ranges), self.scratch(value)
            words = self.words(value, index, ranges, waits)
            if self.of_columns(value):
                return f"mc::widen({name}[{at}])"
            return f"{words}.one({name} + {at})" if words else f"{name}[{at}]"
        if role == "weight":
            place = flattened(index, _kind(value).shape)
            return f"mc::widen({self.vector(value)}[{spelled(place, ranges)}])"
        if role == "in":
            tables = self.embedding(value)
            row, lane = (spelled(one, ranges) for one in index)
            if tables:
                width = tables[0].width
                lane_there = "" if _kind(value).shape[-1] == width else f" && {lane} < {width}"
                rows = [table.row(row, lane, lane_there) for table in tables]
                return rows[0] if len(rows) == 1 else f"({' + '.join(rows)})"
            if self.choices:
                name, shape = self.ports[value].name, self.shape(value)
                self.buffers.setdefault(name, Buffer(str(_kind(value).dtype), shape, "input"))
                return f"{name}[{spelled(flattened(index, shape), ranges)}]"
        fail("cuda-graph", f"tasks read elements of %{value.name}, which no kernel does")

    # --- words with tags

    def words(self, value: Value, index: Sequence[Expr], ranges: Ranges, waits: bool) -> str:
        """How words of scratch with tags are read, nothing of others: as soon as they are those of
        the version that ``index`` names, or as they are where a task waits for nothing."""
        tag = self.tag(value, index, ranges)
        if not tag:
            return ""
        return f"mc::Tagged<{self.words_of(value)}>({tag if waits else 0})"

    def words_of(self, value: Value) -> str:
        """How many bits tags of words of scratch have, 0 for none, and whether GPUs of all ranks
        store them, as the library is told."""
        bits = self.roles[value].tags or 0
        return f"{bits}, mc::OF_GPUS" if bits and self.of_ranks(value) else str(bits)

    def tag(self, value: Value, index: Sequence[Expr], ranges: Ranges) -> str:
        """The tag of words of scratch, of the version that ``index`` names; empty without tags."""
        buffer = self.roles[value]
        if buffer.tags is None:
            return ""
        before = RUNS_BEFORE
        if buffer.kept is not None:
            rounds = -(-buffer.type.shape[0] // buffer.kept)
            version = spelled(index[0] // buffer.kept, ranges)
            before = f"{before} * {rounds} + {version}" if rounds > 1 else before
        return f"mc::tag_of<{buffer.tags}>({before})"

    @property
    def runs_apart(self) -> int:
        """After how many runs the tags of all words are the same again; 0 without tags."""
        found = [(1 << b.tags) - 1 for b in self.module.buffers if b.tags is not None]
        return lcm(*found) if found else 0

    # --- how weights are packed

    def stacked(self, value: Value) -> bool:
        """Whether the tensor behind a port has a first dim of layers."""
        return "layer" in self.ports[value].lanes

    def extents(self, port: Port) -> tuple[int, ...]:
        """The extents of the whole tensor behind a port, as a model names its dims."""
        return tuple(port.tensor.shape(self.module.dims))

    def gathered(self, port: Port) -> Gathered:
        """The elements of a tensor, of a layer where it has layers, by lanes."""
        stacked = "layer" in port.lanes
        shape, lanes, element = _kind(port.buffer).shape, port.lanes, port.element
        if stacked:
            if element[0] != Expr.var("layer") or any("layer" in e.free_vars for e in element[1:]):
                fail("cuda-graph", f"%{port.name} has layers that are no first dim")
            shape, lanes, element = shape[1:], lanes[1:], element[1:]
        if any(len(e.free_vars) > 1 for e in element):
            fail("cuda-graph", f"%{port.name} lies along lanes of two dims")
        return Gathered(tuple(lanes), tuple(shape), tuple(map(str, element)))


def _kind(value: Value) -> BufferType:
    assert isinstance(value.type, BufferType)
    return value.type


def element_type(value: Value) -> DType:
    """The element type of a buffer or of a value of a task."""
    return _kind(value).dtype

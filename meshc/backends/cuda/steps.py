"""A fused decode graph as kernels and launches.

The residual stream stays in f32 in two buffers. The attention block adds its output and the
residual to ``sums``, which holds zeros; the feed-forward block reads ``sums``, writes the next
residual and leaves zeros in ``sums`` again. So no kernel writes what another block of it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

from meshc.analysis.blocks import FRAGMENT, THREADS
from meshc.analysis.dsmem import LatentAttention
from meshc.analysis.rotary import rope_frequencies
from meshc.backends.cuda.kernels import attention, latent, rows
from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.program import Buffer, Kernel, Launch, Prefill, StepProgram, Weight
from meshc.ir.core import Op, Operand, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

_OpType = TypeVar("_OpType", bound=Op)
_KINDS = ("f16", "bf16")
CHUNKS = (16, 8, 4, 2)
"""Tokens of a chunk of a prompt; the first that fits is taken."""


@dataclass
class _Step:
    """What is gathered while the graph is read."""

    module: Module
    page: int
    cores: int
    dtype: str
    chunk: int = 0  # tokens of one request whose columns products share; 0 for a decode step
    texts: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    frequencies: tuple[float, ...] = ()
    shared_products: list[rows.RowsProduct] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Requests of a decode step."""
        return self.module.dims.get("B", 1)

    @property
    def batch(self) -> int:
        """Requests whose attention a launch computes."""
        return 1 if self.chunk else self.requests

    @property
    def columns(self) -> int:
        """Vectors of a product with weights."""
        return self.chunk or self.requests

    def own(self, name: str) -> str:
        """A kernel or buffer of this step."""
        return f"chunk_{name}" if self.chunk else name

    def row(self, name: str) -> str:
        """Of a buffer with a row for each column, what attention and logits take."""
        return f"chunk_{name}[t]" if self.chunk else name

    def shared(self, name: str) -> str:
        """A kernel for one request, which chunks and decode steps of one request share."""
        return self.own(name) if self.requests > 1 else name

    def extent(self, value: Value, dim: str) -> int:
        """Extent of a dim of a value."""
        assert dim in tensor_type(value).dims
        return self.module.dims[dim]

    def paired(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those weights whose lanes the graph has in the order of pairs."""
        known = str(self.module.option("paired", "")).split(",")
        return tuple(name for name in names if name in known)


def step_program(module: Module, model: str, page: int) -> tuple[StepProgram, dict[str, str]]:
    """The step of a fused decode graph, and the text of each file.

    Raises ``cuda-graph`` for what is not fused into kernels, ``cuda-dtype`` for element types
    other than f16 and bf16, ``cuda-shape`` for what does not fit a block.
    """
    dtype = str(module.dtype())
    if dtype not in _KINDS:
        fail(
            "cuda-dtype",
            f"kernels have weights and caches of f16 or bf16, not {dtype}",
            help="--dtype f16 or --dtype bf16",
        )
    step = _Step(module, page, int(module.device.get("cores", 132)), dtype)
    launches, layers = _launches(step)
    prefill = _prefill(step)
    program = StepProgram(
        model,
        str(module.device.get("name", "")),
        step.batch,
        module.dims["S"],
        step.buffers["logits"].shape[-1],
        page,
        layers,
        step.frequencies,
        step.kernels,
        step.buffers,
        step.weights,
        **launches,
        prefill=prefill,
    )
    return program, step.texts


def _launches(step: _Step) -> tuple[dict[str, tuple[Launch, ...]], int]:
    """The launches before the layers, of each and behind them, and how many layers there are."""
    origin = {p.value: p.value.name for p in step.module.function.params}
    found: dict[str, tuple[Launch, ...]] = {"before": (), "layer": (), "after": ()}
    layers = 0
    for op in step.module.function.body.ops:
        if isinstance(op, graph.Repeat):
            layers = step.module.dims[op.dim]
            found["layer"] += tuple(_layer(step, op, origin, layers))
        elif isinstance(op, graph.Fuse):
            found["after" if layers else "before"] += (_fused(step, op, origin, 0),)
        elif not isinstance(op, graph.Return):
            _unfused(op)
    _fixed_buffers(step)
    return found, layers


def _prefill(step: _Step) -> Prefill | None:
    """How a prompt is read, its kernels and buffers put with those of ``step``; None where products
    of more than one column do not fit."""
    columns = _most_columns(step)
    if columns == 1:
        return None
    chunk = _Step(step.module, step.page, step.cores, step.dtype, columns)
    launches, _ = _launches(chunk)
    step.texts |= chunk.texts
    step.kernels |= chunk.kernels
    step.buffers |= {n: b for n, b in chunk.buffers.items() if n not in step.buffers}
    return Prefill(columns, **launches)


def _most_columns(step: _Step) -> int:
    """The columns of the largest chunk whose products fit a block."""
    for columns in CHUNKS:
        try:
            for shape in step.shared_products:
                rows.plan(replace(shape, batch=columns), step.cores)
        except DoesNotFit:
            continue
        return columns
    return 1


def _unfused(op: Op) -> None:
    fail(
        "cuda-graph",
        f"{op.NAME} is part of no kernel",
        op.span,
        help="the remarks of fuse-cluster say what it could not fuse (--remarks)",
    )


def _layer(step: _Step, op: graph.Repeat, origin: Mapping[Value, str], layers: int) -> list[Launch]:
    (block,) = op.regions
    inner = {
        argument: origin.get(operand, "")
        for argument, operand in zip(block.args, op.operands, strict=True)
        if isinstance(operand, Value)
    }
    found = []
    for part in block.ops:
        if isinstance(part, graph.Fuse):
            if part.kernel == "ffn_block":
                found += _feed_forward(step, part, inner, layers)
            else:
                found.append(_fused(step, part, inner, layers))
        elif not isinstance(part, graph.Yield):
            _unfused(part)
    return found


def _fused(step: _Step, op: graph.Fuse, outer: Mapping[Value, str], layers: int) -> Launch:
    try:
        if op.kernel == "latent_block":
            return _latent(step, op, outer, layers)
        if op.kernel == "attention_block":
            return _attention(step, op, outer, layers)
        if op.kernel == "head":
            return _head(step, op, outer)
        return _embed(step, op, outer)
    except DoesNotFit as reason:
        fail("cuda-shape", f"no kernel for this {op.kernel}: {reason}", op.span)


# --- reading the body of a fused op


class _Body:
    """The ops of a fused op, and which tensor outside each of its values is."""

    def __init__(self, op: graph.Fuse, outer: Mapping[Value, str]) -> None:
        self.op = op
        (self.block,) = op.regions
        self.names: dict[Value, str] = {}
        for argument, operand in zip(self.block.args, op.operands, strict=True):
            if isinstance(operand, Value):
                self.names[argument] = outer.get(operand, "")

    def all(self, kind: type[_OpType]) -> list[_OpType]:
        """Ops of a kind, in order."""
        return [op for op in self.block.ops if isinstance(op, kind)]

    def one(self, kind: type[_OpType]) -> _OpType:
        """The one op of a kind."""
        (found,) = self.all(kind)
        return found

    def name(self, op: Op, place: int) -> str:
        """The tensor outside that is an operand of ``op``."""
        value = op.operands[place]
        return self.names[value] if isinstance(value, Value) else ""

    def operand(self, op: Op, place: int) -> Operand:
        """What outside is an operand of ``op`` inside."""
        return self.op.operands[self.block.args.index(_value(op, place))]

    def inputs(self, first: int, end: int | None = None) -> list[str]:
        """Tensors outside in these places among the operands, whose order :class:`graph.Fuse`
        says."""
        return [self.names[argument] for argument in self.block.args[first:end]]

    def users(self, value: Value, kind: type[_OpType]) -> list[_OpType]:
        """Ops of a kind that take ``value``."""
        return [op for op in self.all(kind) if value in op.operands]


def _value(op: Op, place: int = 0) -> Value:
    found = op.operands[place]
    assert isinstance(found, Value)
    return found


# --- kernels


def _attention(step: _Step, op: graph.Fuse, outer: Mapping[Value, str], layers: int) -> Launch:
    body = _Body(op, outer)
    norm, keys = body.one(graph.RmsNorm), body.all(graph.Append)[0]
    scores = body.users(keys.results[0], graph.Matmul)[0]
    last = op.operands.index(body.operand(body.all(graph.Matmul)[-1], 1))
    weights, biases = body.inputs(2, 5), body.inputs(5, last - 2)
    out, out_bias = body.inputs(last, last + 1), body.inputs(last + 1)
    lane = scores.contract[0]
    head = step.module.dims[lane]
    queries, keys_of = (tensor_type(op.operands[n]).dims[1:-1] for n in (2, 3))
    for place, between in ((2, queries), (3, keys_of), (4, keys_of)):
        _check_dims(op, place, (norm.dim, *between, lane), {3} if place == 2 else {2, 3})
    _check_dims(op, last, (*queries, lane, norm.dim), {3})
    heads, kv_heads = (prod(step.module.dims[d] for d in dims) for dims in (queries, keys_of))
    factor = body.all(graph.Scale)
    shape = attention.Attention(
        step.batch,
        step.module.dims[norm.dim],
        heads,
        kv_heads,
        head,
        step.dtype,
        step.page,
        norm.eps,
        factor[0].factor if factor else 1.0,
        bool(biases),
        out_bias=bool(out_bias),
    )
    rope = body.all(graph.Rope)[0]
    step.frequencies = rope_frequencies(rope, head)
    plan = attention.plan(shape, op.cluster, op.dataflow, step.module.dims["S"], op.resident)
    parts = op.cluster if op.dataflow == "split_head" else 1
    name = step.shared("attention_block")
    _add_kernel(
        step, name, attention.text(plan, name), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes([plan.context or step.module.dims["S"]] * step.batch),
    )  # fmt: skip
    _weight(step, "norm_of_attention", "plain", (body.name(norm, 1),), (shape.hidden,), layers)
    _weight(
        step, "qkv", "projections", weights, (kv_heads, shape.rows, shape.hidden), layers, parts
    )
    _weight(
        step, "out", "output", out,
        (kv_heads, shape.hidden, shape.attended), layers, parts,
    )  # fmt: skip
    if biases:
        _weight(step, "bias_of_qkv", "projections", biases, (kv_heads, shape.rows), layers, parts)
    if out_bias:
        _weight(step, "bias_of_out", "plain", out_bias, (shape.hidden,), layers)
    pages = step.batch * -(-step.module.dims["S"] // step.page)
    pool = (layers, pages, kv_heads, step.page, head)
    step.buffers["keys"] = Buffer(step.dtype, pool, "state")
    step.buffers["values"] = Buffer(step.dtype, pool, "state")
    return Launch(
        name,
        (
            step.row("residual"), step.row("sums"), "norm_of_attention[]", "qkv[]",
            *(["bias_of_qkv[]"] if biases else []),
            "out[]",
            *(["bias_of_out[]"] if out_bias else []),
            "keys[]", "values[]", step.own("pages"), pages // step.batch, step.row("cached"),
            "cosines", "sines",
        ),
    )  # fmt: skip


def _latent(step: _Step, op: graph.Fuse, outer: Mapping[Value, str], layers: int) -> Launch:
    body = _Body(op, outer)
    dims = step.module.dims
    norm, latent_norm = body.all(graph.RmsNorm)
    query, rotary = (tensor_type(op.operands[n]).dims for n in (2, 3))
    value = tensor_type(op.operands[-1]).dims[1]
    hidden, heads, lane, turned, rank = norm.dim, query[1], query[-1], rotary[-1], latent_norm.dim
    ordered = [(hidden, heads, lane), (hidden, heads, turned), (hidden, rank), (hidden, turned)]
    ordered_last = [(lane, heads, rank), (rank, heads, value), (heads, value, hidden)]
    for place, wanted in [*enumerate(ordered, 2), *enumerate(ordered_last, -3)]:
        _check_dims(op, place, wanted, {len(wanted)})
    sizes = LatentAttention(
        dims[hidden], dims[heads], dims[rank], dims[turned], dims[lane], dims[value],
        step.batch, op.heads,
    )  # fmt: skip
    factor = body.all(graph.Scale)
    shape = latent.Latent(
        sizes,
        step.dtype,
        step.page,
        norm.eps,
        latent_norm.eps,
        factor[0].factor if factor else 1.0,
    )
    step.frequencies = rope_frequencies(body.all(graph.Rope)[0], sizes.rope)
    plan = latent.plan(shape, op.cluster)
    name = step.shared("latent_block")
    _add_kernel(
        step, name, latent.text(plan, name), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes,
    )  # fmt: skip
    plain, turning, to_latent, to_key = body.inputs(2, 6)
    absorb, expand, out = body.inputs(-3)
    lanes = sizes.query + sizes.rope
    for weight, pack, sources, extents in (
        ("norm_of_attention", "plain", (body.name(norm, 1),), (sizes.hidden,)),
        ("norm_of_latent", "plain", (body.name(latent_norm, 1),), (sizes.latent,)),
        ("queries", "latent_queries", (plain, turning), (sizes.heads, lanes, sizes.hidden)),
        ("latent_keys", "latent_keys", (to_latent, to_key), (sizes.key, sizes.hidden)),
        ("absorb", "by_heads", (absorb,), (sizes.heads, sizes.latent, sizes.query)),
        ("expand", "by_heads", (expand,), (sizes.heads, sizes.value, sizes.latent)),
        ("out", "output", (out,), (sizes.clusters, sizes.hidden, sizes.attended)),
    ):
        _weight(step, weight, pack, sources, extents, layers)
    pages = step.batch * -(-dims["S"] // step.page)
    step.buffers["latents"] = Buffer(step.dtype, (layers, pages, step.page, sizes.key), "state")
    return Launch(
        name,
        (
            step.row("residual"), step.row("sums"), "norm_of_attention[]", "norm_of_latent[]",
            "queries[]", "latent_keys[]", "absorb[]", "expand[]", "out[]", "latents[]",
            step.own("pages"), pages // step.batch, step.row("cached"), "cosines", "sines",
        ),
    )  # fmt: skip


def _check_dims(op: graph.Fuse, place: int, dims: tuple[str, ...], ranks: set[int]) -> None:
    """A weight is packed by the order of its dims, which are as many as one of ``ranks``."""
    given = tensor_type(op.operands[place]).dims
    if given != dims or len(dims) not in ranks:
        fail(
            "cuda-shape",
            f"weight {op.operands[place]} of the {op.kernel} is over {list(given)}, in whose order "
            "it is not packed",
            op.span,
            help="hidden before heads before lanes, as in the library's models",
        )


def _feed_forward(
    step: _Step, op: graph.Fuse, outer: Mapping[Value, str], layers: int
) -> list[Launch]:
    body = _Body(op, outer)
    norm = body.one(graph.RmsNorm)
    outer_product = body.all(graph.Matmul)[-1]
    down = op.operands.index(body.operand(outer_product, 1))
    inner = (norm.dim, outer_product.contract[0])
    sides = 2 if body.all(graph.Mul) else 1
    gates, inner_bias = body.inputs(2, 2 + sides), body.inputs(2 + sides, down)
    for place in range(2, 2 + sides):
        _check_dims(op, place, inner, {2})
    _check_dims(op, down, inner[::-1], {2})
    outer_bias = body.inputs(down + 1)
    hidden = step.module.dims[norm.dim]
    features = step.module.dims[outer_product.contract[0]]
    output, pack = ("gated", "gated") if sides > 1 else ("activated", "transposed")
    first = rows.RowsProduct(
        step.columns, hidden, sides * features, step.dtype, "normed", output, norm.eps,
        _activation(body), bool(inner_bias),
    )  # fmt: skip
    second = rows.RowsProduct(
        step.columns, features, hidden, step.dtype, "plain", "residual", bias=bool(outer_bias)
    )
    step.shared_products += [first, second]
    _rows_kernel(step, step.own("ffn_inner"), first, op)
    _rows_kernel(step, step.own("ffn_outer"), second, op)
    _weight(step, "norm_of_ffn", "plain", (body.name(norm, 1),), (hidden,), layers)
    inner_name = "gate_up" if sides > 1 else "up"
    _matrix(step, inner_name, pack, gates, sides * features, hidden, layers)
    if inner_bias:
        name = f"bias_of_{inner_name}"
        _weight(step, name, pack, inner_bias, (sides * features,), layers)
    down_name = (body.name(outer_product, 1),)
    _matrix(step, "down", "transposed", down_name, hidden, features, layers)
    if outer_bias:
        _weight(step, "bias_of_down", "plain", outer_bias, (hidden,), layers)
    step.buffers[step.own("features")] = Buffer("f32", (step.columns, features), "scratch")
    return [
        Launch(
            step.own("ffn_inner"),
            (
                step.own("sums"),
                "norm_of_ffn[]",
                f"{inner_name}[]",
                *([f"bias_of_{inner_name}[]"] if inner_bias else []),
                step.own("features"),
            ),
        ),
        Launch(
            step.own("ffn_outer"),
            (
                step.own("features"),
                "down[]",
                *(["bias_of_down[]"] if outer_bias else []),
                step.own("sums"),
                step.own("residual"),
            ),
        ),
    ]


def _activation(body: _Body) -> str:
    """The activation of a feed-forward layer by its name in a template."""
    if body.all(graph.Silu):
        return "silu"
    return "gelu_tanh" if body.one(graph.Gelu).form == "tanh" else "gelu"


def _head(step: _Step, op: graph.Fuse, outer: Mapping[Value, str]) -> Launch:
    body = _Body(op, outer)
    norm, product = body.one(graph.RmsNorm), body.one(graph.Matmul)
    matrix = _value(product, 1)
    (vocabulary,) = (d for d in tensor_type(matrix).dims if d not in product.contract)
    hidden, words = step.module.dims[norm.dim], step.module.dims[vocabulary]
    shape = rows.RowsProduct(step.batch, hidden, words, step.dtype, "normed", "stored", norm.eps)
    kernel = step.shared("head")
    _rows_kernel(step, kernel, shape, op)
    name = body.name(product, 1)
    by_rows = tensor_type(matrix).dims[0] == vocabulary
    _weight(step, "norm_of_head", "plain", (body.name(norm, 1),), (hidden,), 0)
    stored = _table(step, name, (words, hidden), "plain" if by_rows else "transposed")
    step.buffers[step.own("logits")] = Buffer("f32", (step.batch, words), "output")
    return Launch(kernel, (step.row("residual"), "norm_of_head", stored, step.own("logits")))


def _embed(step: _Step, op: graph.Fuse, outer: Mapping[Value, str]) -> Launch:
    body = _Body(op, outer)
    lookup = body.one(graph.Embed)
    kind = tensor_type(_value(lookup, 1))
    words = step.module.dims[lookup.dim]
    (hidden,) = (step.module.dims[d] for d in kind.dims if d != lookup.dim)
    name = step.own("embed")
    text = rows.embed_text(name, hidden, words, step.dtype)
    _add_kernel(step, name, text, step.columns, 1, Arena(), 256)
    table = _table(step, body.name(lookup, 1), (words, hidden), "plain")
    stream = (step.own("residual"), step.own("sums"))
    for part in stream:
        step.buffers[part] = Buffer("f32", (step.columns, hidden), "scratch")
    return Launch(name, (step.own("tokens"), table, *stream))


def _table(step: _Step, source: str, shape: tuple[int, int], pack: str) -> str:
    """The name of a table of the vocabulary; one that is tied to another is kept once."""
    for name, weight in step.weights.items():
        if weight.sources == (source,) and weight.pack == pack:
            return name
    name = "logits_of" if "embedding" in step.weights else "embedding"
    _matrix(step, name, pack, (source,), *shape, 0)
    return name


def _rows_kernel(step: _Step, name: str, shape: rows.RowsProduct, op: graph.Fuse) -> None:
    try:
        plan = rows.plan(shape, step.cores)
    except DoesNotFit as reason:
        fail("cuda-shape", f"no kernel for this {op.kernel}: {reason}", op.span)
    _add_kernel(
        step, name, rows.text(plan, name), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes,
    )  # fmt: skip


def _add_kernel(
    step: _Step,
    name: str,
    text: str,
    blocks: int,
    cluster: int,
    arena: Arena,
    threads: int,
    dsmem_bytes: int = 0,
) -> None:
    shared = {part.name.lower(): (part.at, part.bytes) for part in arena.parts}
    file = f"{name}.cu"
    step.texts[file] = text
    step.kernels[name] = Kernel(file, blocks, threads, cluster, arena.bytes, shared, dsmem_bytes)


def _weight(
    step: _Step,
    name: str,
    pack: str,
    sources: Iterable[str],
    shape: tuple[int, ...],
    layers: int,
    parts: int = 1,
) -> None:
    named = tuple(sources)
    step.weights[name] = Weight(step.dtype, pack, named, shape, layers, step.paired(named), parts)


def _matrix(
    step: _Step, name: str, pack: str, sources: Iterable[str], rows: int, width: int, layers: int
) -> None:
    """A matrix in the order of tensor cores."""
    shape = (-(-rows // FRAGMENT), -(-width // FRAGMENT), 32, 8)
    step.weights[name] = Weight(step.dtype, pack, tuple(sources), shape, layers, fragments=True)


def _fixed_buffers(step: _Step) -> None:
    """What the host gives: tokens, lengths, pages and angles."""
    capacity, pairs = step.module.dims["S"], len(step.frequencies)
    step.buffers |= {
        step.own("tokens"): Buffer("i32", (step.columns,), "input"),
        step.own("cached"): Buffer("i32", (step.columns,), "input"),
        step.own("pages"): Buffer("i32", (step.batch, -(-capacity // step.page)), "input"),
        "cosines": Buffer("f32", (capacity, pairs), "constant"),
        "sines": Buffer("f32", (capacity, pairs), "constant"),
    }

"""Every emitted kernel on the device, beside float64 and beside the executor on the CPU.

Cases are many and large: each makes its arrays when it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from kernels import Cubins, load
from numpy.typing import NDArray
from references import attention_block, embedded, rows_product, to_words, values

from meshc import devices
from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.driver.device import Device
from meshc.backends.cuda.executor import CXX, Grid, Library
from meshc.backends.cuda.kernels.attention_block import kernel as attention
from meshc.backends.cuda.kernels.attention_block.kernel import Attention, AttentionPlan
from meshc.backends.cuda.kernels.embed import kernel as embed
from meshc.backends.cuda.kernels.rows_product import kernel as rows
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.packing import in_fragments

Array = NDArray[Any]
# As a share of the largest value that is expected: sums of thousands of f32 products, the device's
# approximate exponential and inverse root, and a new key or value that rounds the other way.
BOUNDS = {"f16": 1e-4, "bf16": 1e-3}
# One step of rounding to bf16.
STORED_BOUND = 2.0**-7
DATAFLOWS = ("split_token", "split_head")
CLUSTERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Case:
    """A kernel ``name`` of ``text``. ``make`` gives its arguments by name, and what is expected of
    ``output``, the one that is judged; the executor judges ``caches``, those of 16 bits."""

    title: str
    name: str
    text: str
    grid: Grid
    make: Callable[[], tuple[dict[str, Array], Array]]
    output: str
    dtype: str
    caches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """Largest errors of a kernel, as shares of the largest value expected.

    ``beside_cpu`` and ``caches``, the error of what is stored in 16 bits, are None where the
    executor did not run.
    """

    title: str
    beside_float64: float
    beside_cpu: float | None
    caches: float | None
    bound: float

    @property
    def passed(self) -> bool:
        """Whether all are within their bounds; NaN is not."""
        beside = (self.beside_float64, self.beside_cpu or 0.0)
        near = all(error <= self.bound for error in beside)
        return near and (self.caches is None or self.caches <= STORED_BOUND)


def check(device: Device, case: Case, cubins: Cubins | None, executor: bool) -> Iterator[Check]:
    """Run a case on the device, then in the executor where it is wanted and can be compiled; what
    is known after each. Raises MeshcError."""
    given, expected = case.make()
    kernel = load(device, case.text, cubins)[case.name]
    # A scalar goes by value, an array by address.
    held = {n: device.upload(a) for n, a in given.items() if a.ndim}
    arguments = [held[n] if a.ndim else a[()] for n, a in given.items()]
    kernel.launch(case.grid, arguments, device.stream)
    found = {
        name: held[name].read(given[name].dtype, given[name].shape)
        for name in (case.output, *case.caches)
    }
    for buffer in held.values():
        buffer.free()
    first = Check(
        case.title, _error(found[case.output], expected, expected), None, None, BOUNDS[case.dtype]
    )
    yield first
    if not executor or CXX.path() is None:
        return
    own = {n: a.copy() if a.ndim else a[()] for n, a in given.items()}
    Library(case.text).run(case.name, case.grid, list(own.values()))
    caches = [
        _error(*(values(a[name], case.dtype) for a in (found, own, own))) for name in case.caches
    ]
    beside_cpu = _error(found[case.output], own[case.output], expected)
    yield replace(first, beside_cpu=beside_cpu, caches=max(caches, default=None))


def _error(found: Array, wanted: Array, scale: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(scale).max())


def cases(
    shape: Attention,
    chosen: tuple[int, str, int, int],
    features: int,
    vocabulary: int,
    contexts: Sequence[int],
    gpu: devices.Device,
) -> Iterator[Case]:
    """All kernels at a model's sizes, the simplest first: look-up and products, for ``shape.batch``
    requests and for two; attention in clusters of every size that fits, by both dataflows, in the
    variants of ``_variants``, and last as a program has ``chosen`` it (cluster, dataflow, blocks on
    a core, heads)."""
    hidden, kind = shape.hidden, shape.dtype
    yield _embed(hidden, vocabulary, kind)
    for batch in sorted({shape.batch, 2}):
        inner = RowsProduct(batch, hidden, 2 * features, kind, "normed", "gated", 1e-5)
        outer = RowsProduct(batch, features, hidden, kind, "plain", "residual")
        head = RowsProduct(batch, hidden, vocabulary, kind, "normed", "stored", 1e-5)
        for name, one in (("ffn_inner", inner), ("ffn_outer", outer), ("head", head)):
            yield _rows(one, f"{name}_{batch}", gpu)
    for number, (plan, cached) in enumerate(_plans(shape, gpu, chosen, contexts)):
        yield _attention(plan, f"attention_{number}", cached)


def _plans(
    shape: Attention,
    gpu: devices.Device,
    chosen: tuple[int, str, int, int],
    contexts: Sequence[int],
) -> Iterator[tuple[AttentionPlan, tuple[int, ...]]]:
    found = _variants(shape, chosen, min(contexts), max(contexts))
    for one, cluster, dataflow, resident, heads, cached in found:
        try:
            plan = attention.plan(one, gpu, cluster, dataflow, max(cached) + 1, resident, heads)
            yield plan, cached
        except DoesNotFit:
            continue


def _variants(
    shape: Attention, chosen: tuple[int, str, int, int], short: int, long: int
) -> Iterator[tuple[Attention, int, str, int, int, tuple[int, ...]]]:
    for cluster in CLUSTERS:
        for dataflow in DATAFLOWS:
            yield shape, cluster, dataflow, 1, shape.sizes.group, (short,) * shape.batch
    other = "bf16" if shape.dtype == "f16" else "f16"
    yield replace(shape, batch=2), 2, "split_token", 1, 1, (0, short)
    yield replace(shape, batch=2), 2, "split_head", 1, shape.sizes.group, (short, 0)
    yield replace(shape, batch=1, dtype=other), 2, "split_token", 2, 1, (short,)
    cluster, dataflow, resident, heads = chosen
    yield shape, cluster, dataflow, resident, heads, (long,) * shape.batch


def _words(
    rng: np.random.Generator, dtype: str, shape: Sequence[int], spread: float = 1.0
) -> Array:
    return to_words(rng.standard_normal(shape, np.float32) * np.float32(spread), dtype)


def _attention(plan: AttentionPlan, name: str, cached: Sequence[int]) -> Case:
    shape = plan.shape
    lengths = " and ".join(map(str, dict.fromkeys(cached)))
    title = (
        f"attention block, {plan.dataflow}, clusters of {plan.cluster} for {plan.heads} heads, "
        f"{plan.resident} on a core, {shape.dtype}, batch {shape.batch}, {lengths} cached"
    )
    return Case(
        title,
        name,
        attention.text(plan, name),
        Grid(plan.blocks, THREADS, plan.cluster, plan.arena.bytes),
        partial(_attention_data, plan, name, cached),
        "sums",
        shape.dtype,
        ("keys", "values"),
    )


def _attention_data(
    plan: AttentionPlan, name: str, cached: Sequence[int]
) -> tuple[dict[str, Array], Array]:
    shape, rng = plan.shape, np.random.default_rng(len(name))
    kind, kv, page, attended = shape.dtype, shape.kv_heads, shape.page, shape.sizes.attended
    most = max(cached) // page + 1
    pages = rng.permutation(shape.batch * most).astype(np.int32).reshape(shape.batch, most)
    half = np.arange(shape.head // 2) / (shape.head // 2)
    angles = np.arange(max(cached) + 1)[:, None] * 10000.0**-half
    pool = (pages.size, kv, page, shape.head)
    given = {
        "residual": rng.standard_normal((shape.batch, shape.hidden), np.float32),
        "sums": np.zeros((shape.batch, shape.hidden), np.float32),
        "norm": _words(rng, kind, [shape.hidden]),
        "qkv": _words(rng, kind, (kv, shape.sizes.rows, shape.hidden), shape.hidden**-0.5),
        "out": _words(rng, kind, (kv, shape.hidden, attended), (kv * attended) ** -0.5),
        "keys": _words(rng, kind, pool),
        "values": _words(rng, kind, pool),
        "pages": pages,
        "most": np.array(most, np.int32),
        "cached": np.array(cached, np.int32),
        "cosines": np.cos(angles).astype(np.float32),
        "sines": np.sin(angles).astype(np.float32),
    }
    expected = attention_block(plan, given)
    parts = plan.cluster if plan.dataflow == "split_head" else 1
    by_part = given["out"].reshape(kv, parts, shape.hidden, -1)
    if plan.sharers > 1:
        # [kv, hidden, clusters of a key/value head, what one has attended]
        split = by_part.reshape(kv, shape.hidden, plan.sharers, -1)
        by_part = split.swapaxes(1, 2).reshape(plan.clusters, shape.hidden, -1)
    for matrix, rows_of in (("qkv", given["qkv"]), ("out", by_part)):
        given[matrix] = np.ascontiguousarray(in_fragments(rows_of))
    return given, expected


def _rows(shape: RowsProduct, name: str, gpu: devices.Device) -> Case:
    plan = rows.plan(shape, gpu)
    grid = Grid(plan.blocks, THREADS, plan.cluster, plan.arena.bytes)
    title = f"{name[: name.rindex('_')]}, {shape.dtype}, batch {shape.batch}"
    make = partial(_rows_data, shape)
    return Case(title, name, rows.text(plan, name), grid, make, "output", shape.dtype)


def _rows_data(shape: RowsProduct) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(shape.batch)
    width, kind = shape.width, shape.dtype
    given = {"input": rng.standard_normal((shape.batch, width), np.float32)}
    if shape.input == "normed":
        given["gain"] = _words(rng, kind, [width])
    given["matrix"] = _words(rng, kind, (shape.rows, width), width**-0.5)
    if shape.output == "residual":
        given["sums"] = rng.standard_normal((shape.batch, shape.rows), np.float32)
    expected = rows_product(shape, given)
    given["matrix"] = np.ascontiguousarray(in_fragments(given["matrix"]))
    given["output"] = np.full(expected.shape, np.nan, np.float32)
    return given, expected


def _embed(hidden: int, vocabulary: int, kind: str) -> Case:
    tokens = np.array([vocabulary - 1, 0, vocabulary // 2], np.int32)
    text = embed.text("embed_0", hidden, vocabulary, kind)
    make = partial(_embed_data, tokens, hidden, vocabulary, kind)
    grid = Grid(len(tokens), 256, 1, 0)
    return Case(f"embed, {kind}", "embed_0", text, grid, make, "residual", kind)


def _embed_data(
    tokens: Array, hidden: int, vocabulary: int, kind: str
) -> tuple[dict[str, Array], Array]:
    table = _words(np.random.default_rng(0), kind, (vocabulary, hidden))
    residual, sums = np.full((2, len(tokens), hidden), np.nan, np.float32)
    packed = np.ascontiguousarray(in_fragments(table))
    given = {"tokens": tokens, "table": packed, "residual": residual, "sums": sums}
    return given, embedded(tokens, table, kind)

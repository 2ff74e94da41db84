"""Every emitted kernel on the device, beside float64 and beside the executor on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from kernels import load
from numpy.typing import NDArray
from references import attention_block, embedded, rows_product, to_words, values

from meshc.analysis.blocks import THREADS
from meshc.backends.cuda.device import Device
from meshc.backends.cuda.executor import CXX, Grid, Library
from meshc.backends.cuda.kernels import attention, rows
from meshc.backends.cuda.kernels.attention import Attention, AttentionPlan
from meshc.backends.cuda.kernels.rows import RowsProduct
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
    """A kernel ``name`` of ``text`` with its arguments; ``output`` names the one that is judged by
    ``expected``, ``caches`` those of 16 bits that are judged by the executor."""

    title: str
    name: str
    text: str
    grid: Grid
    given: dict[str, Array]
    output: str
    expected: Array
    dtype: str
    caches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """Largest errors of a kernel, as shares of the largest value expected.

    ``beside_cpu`` and ``caches``, the error of what is stored in 16 bits, are None where the
    executor has no compiler.
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


def check(device: Device, case: Case) -> Check:
    """Run a case on the device and in the executor. Raises MeshcError."""
    kernel = load(device, case.text)[case.name]
    # A scalar goes by value, an array by address.
    held = {n: device.upload(a) for n, a in case.given.items() if a.ndim}
    arguments = [held[n] if a.ndim else a[()] for n, a in case.given.items()]
    kernel.launch(case.grid, arguments, device.stream)
    found = {
        name: held[name].read(case.given[name].dtype, case.given[name].shape)
        for name in (case.output, *case.caches)
    }
    for buffer in held.values():
        buffer.free()
    out = found[case.output]
    exact = _error(out, case.expected, case.expected)
    if CXX.path() is None:
        return Check(case.title, exact, None, None, BOUNDS[case.dtype])
    own = {n: a.copy() if a.ndim else a[()] for n, a in case.given.items()}
    Library(case.text).run(case.name, case.grid, list(own.values()))
    beside_cpu = _error(out, own[case.output], case.expected)
    caches = [
        _error(*(values(a[name], case.dtype) for a in (found, own, own))) for name in case.caches
    ]
    return Check(case.title, exact, beside_cpu, max(caches, default=None), BOUNDS[case.dtype])


def _error(found: Array, wanted: Array, scale: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(scale).max())


def cases(
    shape: Attention,
    chosen: tuple[int, str, int],
    features: int,
    vocabulary: int,
    contexts: Sequence[int],
    cores: int,
) -> Iterator[Case]:
    """All kernels at a model's sizes: attention as a program has ``chosen`` it (cluster, dataflow,
    blocks on a core), by both dataflows in clusters of every size that fits, and in the variants of
    ``_variants``; the rest for ``shape.batch`` requests and for two."""
    for number, (plan, cached) in enumerate(_plans(shape, chosen, contexts)):
        yield _attention(plan, f"attention_{number}", cached)
    hidden, kind = shape.hidden, shape.dtype
    for batch in sorted({shape.batch, 2}):
        inner = RowsProduct(batch, hidden, 2 * features, kind, "normed", "gated", 1e-5)
        outer = RowsProduct(batch, features, hidden, kind, "plain", "residual")
        head = RowsProduct(batch, hidden, vocabulary, kind, "normed", "stored", 1e-5)
        for name, one in (("ffn_inner", inner), ("ffn_outer", outer), ("head", head)):
            yield _rows(one, f"{name}_{batch}", cores)
    yield _embed(hidden, vocabulary, kind)


def _plans(
    shape: Attention, chosen: tuple[int, str, int, int], contexts: Sequence[int]
) -> Iterator[tuple[AttentionPlan, tuple[int, ...]]]:
    found = _variants(shape, chosen, min(contexts), max(contexts))
    for one, cluster, dataflow, resident, heads, cached in found:
        try:
            plan = attention.plan(one, cluster, dataflow, max(cached) + 1, resident, heads)
            yield plan, cached
        except DoesNotFit:
            continue


def _variants(
    shape: Attention, chosen: tuple[int, str, int, int], short: int, long: int
) -> Iterator[tuple[Attention, int, str, int, int, tuple[int, ...]]]:
    cluster, dataflow, resident, heads = chosen
    yield shape, cluster, dataflow, resident, heads, (long,) * shape.batch
    for dataflow in DATAFLOWS:
        for cluster in CLUSTERS:
            yield shape, cluster, dataflow, 1, shape.group, (short,) * shape.batch
    other = "bf16" if shape.dtype == "f16" else "f16"
    yield replace(shape, batch=2), 2, "split_token", 1, 1, (0, short)
    yield replace(shape, batch=2), 2, "split_head", 1, shape.group, (short, 0)
    yield replace(shape, batch=1, dtype=other), 2, "split_token", 2, 1, (short,)


def _words(
    rng: np.random.Generator, dtype: str, shape: Sequence[int], spread: float = 1.0
) -> Array:
    return to_words(rng.standard_normal(shape, np.float32) * np.float32(spread), dtype)


def _attention(plan: AttentionPlan, name: str, cached: Sequence[int]) -> Case:
    shape, rng = plan.shape, np.random.default_rng(len(name))
    kind, kv, page = shape.dtype, shape.kv_heads, shape.page
    most = max(cached) // page + 1
    pages = rng.permutation(shape.batch * most).astype(np.int32).reshape(shape.batch, most)
    half = np.arange(shape.head // 2) / (shape.head // 2)
    angles = np.arange(max(cached) + 1)[:, None] * 10000.0**-half
    pool = (pages.size, kv, page, shape.head)
    given = {
        "residual": rng.standard_normal((shape.batch, shape.hidden), np.float32),
        "sums": np.zeros((shape.batch, shape.hidden), np.float32),
        "norm": _words(rng, kind, [shape.hidden]),
        "qkv": _words(rng, kind, (kv, shape.rows, shape.hidden), shape.hidden**-0.5),
        "out": _words(rng, kind, (kv, shape.hidden, shape.attended), (kv * shape.attended) ** -0.5),
        "keys": _words(rng, kind, pool),
        "values": _words(rng, kind, pool),
        "pages": pages,
        "most": np.array(most, np.int32),
        "cached": np.array(cached, np.int32),
        "cosines": np.cos(angles).astype(np.float32),
        "sines": np.sin(angles).astype(np.float32),
    }
    lengths = " and ".join(map(str, dict.fromkeys(cached)))
    title = (
        f"attention block, {plan.dataflow}, clusters of {plan.cluster} for {plan.heads} heads, "
        f"{plan.resident} on a core, {kind}, batch {shape.batch}, {lengths} cached"
    )
    grid = Grid(plan.blocks, THREADS, plan.cluster, plan.arena.bytes)
    expected = attention_block(plan, given)
    parts = plan.cluster if plan.dataflow == "split_head" else 1
    by_part = given["out"].reshape(kv, parts, shape.hidden, -1)
    if plan.sharers > 1:
        # [kv, hidden, clusters of a key/value head, what one has attended]
        split = by_part.reshape(kv, shape.hidden, plan.sharers, -1)
        by_part = split.swapaxes(1, 2).reshape(plan.clusters, shape.hidden, -1)
    for matrix, rows_of in (("qkv", given["qkv"]), ("out", by_part)):
        given[matrix] = np.ascontiguousarray(in_fragments(rows_of))
    return Case(
        title,
        name,
        attention.text(plan, name),
        grid,
        given,
        "sums",
        expected,
        kind,
        ("keys", "values"),
    )


def _rows(shape: RowsProduct, name: str, cores: int) -> Case:
    plan, rng = rows.plan(shape, cores), np.random.default_rng(shape.batch)
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
    grid = Grid(plan.blocks, THREADS, plan.cluster, plan.arena.bytes)
    title = f"{name[: name.rindex('_')]}, {kind}, batch {shape.batch}"
    return Case(title, name, rows.text(plan, name), grid, given, "output", expected, kind)


def _embed(hidden: int, vocabulary: int, kind: str) -> Case:
    tokens = np.array([vocabulary - 1, 0, vocabulary // 2], np.int32)
    table = _words(np.random.default_rng(0), kind, (vocabulary, hidden))
    residual, sums = np.full((2, len(tokens), hidden), np.nan, np.float32)
    given = {
        "tokens": tokens,
        "table": np.ascontiguousarray(in_fragments(table)),
        "residual": residual,
        "sums": sums,
    }
    text = rows.embed_text("embed_0", hidden, vocabulary, kind)
    expected = embedded(tokens, table, kind)
    return Case(
        f"embed, {kind}",
        "embed_0",
        text,
        Grid(len(tokens), 256, 1, 0),
        given,
        "residual",
        expected,
        kind,
    )

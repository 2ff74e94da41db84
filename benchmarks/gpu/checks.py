"""Kernels on the device, beside float64 and beside the executor on the CPU.

Cases are large: each makes its arrays when it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from kernels import Cubins, load
from numpy.typing import NDArray
from references import embedded, logits, to_words
from references import values as from_words

from meshc import devices
from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.executor import CXX, Grid, Library
from meshc.backends.cuda.kernels.chunk_product import kernel as product
from meshc.backends.cuda.kernels.chunk_product.kernel import ChunkProduct
from meshc.backends.cuda.kernels.embed import kernel as embed
from meshc.backends.cuda.kernels.head import kernel as head
from meshc.backends.cuda.kernels.head.kernel import Head
from meshc.backends.cuda.packing import in_fragments

Array = NDArray[Any]
# As a share of the largest value that is expected: sums of thousands of f32 products, the device's
# approximate inverse root.
BOUNDS = {"f16": 1e-4, "bf16": 1e-3}
_CHUNKS, _ROWS = (256, 248), 512  # tokens of products, whole tiles of warpgroups and not


@dataclass(frozen=True)
class Case:
    """A kernel ``name`` of ``text``. ``make`` gives its arguments by name, and what is expected of
    ``output``, the one that is judged."""

    title: str
    name: str
    text: str
    grid: Grid
    make: Callable[[], tuple[dict[str, Array], Array]]
    output: str
    dtype: str


@dataclass(frozen=True)
class Check:
    """Largest errors of a kernel, as shares of the largest value expected; ``beside_cpu`` is None
    where the executor did not run."""

    title: str
    beside_float64: float
    beside_cpu: float | None
    bound: float

    @property
    def passed(self) -> bool:
        """Whether all are within their bounds; NaN is not."""
        beside = (self.beside_float64, self.beside_cpu or 0.0)
        return all(error <= self.bound for error in beside)


def check(device: Device, case: Case, cubins: Cubins | None, executor: bool) -> Iterator[Check]:
    """Run a case on the device, then in the executor where it is wanted and can be compiled; what
    is known after each. Raises MeshcError."""
    given, expected = case.make()
    kernel = load(device, case.text, cubins)[case.name]
    # A scalar goes by value, an array by address.
    held = {n: device.upload(a) for n, a in given.items() if a.ndim}
    arguments = [held[n] if a.ndim else a[()] for n, a in given.items()]
    kernel.launch(case.grid, arguments, device.stream)
    found = held[case.output].read(given[case.output].dtype, given[case.output].shape)
    for buffer in held.values():
        buffer.free()
    first = Check(case.title, _error(found, expected, expected), None, BOUNDS[case.dtype])
    yield first
    if not executor or CXX.path() is None:
        return
    own = {n: a.copy() if a.ndim else a[()] for n, a in given.items()}
    Library(case.text).run(case.name, case.grid, list(own.values()))
    yield replace(first, beside_cpu=_error(found, own[case.output], expected))


def _error(found: Array, wanted: Array, scale: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(scale).max())


def cases(hidden: int, vocabulary: int, kind: str, gpu: devices.Device) -> Iterator[Case]:
    """What can be judged alone at a model's sizes, the simplest first: the look-up, products of 256
    tokens of a chunk of a prompt, by warpgroups where the device has such and by warps, and the
    logits of a chunk, normed there or by all ranks together in front. A whole step is judged beside
    another one, or in the executor."""
    yield _embed(hidden, vocabulary, kind)
    for tokens in _CHUNKS:
        yield _product(ChunkProduct(tokens, hidden, _ROWS, kind), gpu)
    for normed in (False, True):
        yield _head(Head(hidden, vocabulary, kind, normed, 1e-5), gpu)


def _words(
    rng: np.random.Generator, dtype: str, shape: Sequence[int], spread: float = 1.0
) -> Array:
    return to_words(rng.standard_normal(shape, np.float32) * np.float32(spread), dtype)


def _head(shape: Head, gpu: devices.Device) -> Case:
    plan, name = head.plan(shape, gpu), "head_1" if shape.normed else "head_0"
    grid = Grid(plan.blocks, THREADS, 1, plan.arena.bytes)
    title = f"logits, {'normed, ' if shape.normed else ''}{shape.dtype}"
    make = partial(_head_data, shape)
    return Case(title, name, head.text(plan, name), grid, make, "output", shape.dtype)


def _head_data(shape: Head) -> tuple[dict[str, Array], Array]:
    rng = np.random.default_rng(shape.width)
    width, kind, count = shape.width, shape.dtype, 2 if shape.normed else 1
    given: dict[str, Array] = {"input": rng.standard_normal((count, width), np.float32)}
    if shape.normed:
        given["count"] = np.array([count], np.int32)
        given["gain"] = _words(rng, kind, [width])
    given["matrix"] = _words(rng, kind, (shape.rows, width), width**-0.5)
    expected = logits(shape, given)
    given["matrix"] = np.ascontiguousarray(in_fragments(given["matrix"]))
    given["output"] = np.full(expected.shape, np.nan, np.float32)
    return given, expected


def _product(shape: ChunkProduct, gpu: devices.Device) -> Case:
    plan, name = product.plan(shape, gpu), f"product_{shape.tokens}"
    grid = Grid(plan.blocks, THREADS, plan.tile.cluster, plan.arena.bytes)
    title = f"product of {shape.tokens} tokens, {shape.dtype}"
    make = partial(_product_data, shape)
    return Case(title, name, product.text(plan, name), grid, make, "output", shape.dtype)


def _product_data(shape: ChunkProduct) -> tuple[dict[str, Array], Array]:
    rng, kind = np.random.default_rng(shape.tokens), shape.dtype
    values = _words(rng, kind, (shape.tokens, shape.width))
    matrix = _words(rng, kind, (shape.rows, shape.width), shape.width**-0.5)
    given = {
        "input": _columns(values),
        "matrix": np.ascontiguousarray(in_fragments(matrix)),
        "count": np.array([shape.tokens], np.int32),
        "output": np.full((shape.tokens, shape.rows), np.nan, np.float32),
    }
    return given, from_words(values, kind) @ from_words(matrix, kind).T


def _columns(values: Array) -> Array:
    """Words [tokens, width] as products of a chunk read them, [width / 16, tokens, 16]: of each
    four values of 16 two in either half, which tokens 4 to 7 of eight have the other way round."""
    tokens, width = values.shape
    blocks = -(-width // 16)
    filled = np.zeros((tokens, 16 * blocks), np.uint16)
    filled[:, :width] = values
    halves = filled.reshape(tokens, blocks, 4, 2, 2).transpose(1, 0, 3, 2, 4)
    exchanged = np.arange(tokens) // 4 % 2 == 1
    made = np.where(exchanged[:, None, None, None], halves[:, :, ::-1], halves)
    return np.ascontiguousarray(made).reshape(blocks, tokens, 16)


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

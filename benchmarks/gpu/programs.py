"""A compiled decode step on a device, with weights and caches that the device makes up itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from kernels import Cubins, load, probes
from numpy.typing import DTypeLike, NDArray

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.backends.cuda.driver.device_memory import Buffer
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel
from meshc.backends.cuda.driver.streams import Graph
from meshc.backends.cuda.executor import Grid
from meshc.backends.cuda.launches import Launch, part_of
from meshc.backends.cuda.packing.codes import CodedRows
from meshc.backends.cuda.packing.matrix_rows import GROUP, Rows
from meshc.backends.cuda.program import (
    AHEAD_OF,
    OWNERS,
    Prefill,
    StepProgram,
    Weight,
    numbered,
)
from meshc.ir.codes import CODE_FORMATS, LEAST, LEAST_UNITS, SCALES, UNITS, CodeFormat
from meshc.ir.types import DType
from meshc.support.diagnostics import fail

_NOISE_THREADS = 256
_NOISE_BLOCKS = 63
"""Blocks of codes that noise repeats, of no power of two, so that rows differ."""


def of_batch(tokens: int, requests: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The owner of each of so many ``tokens`` of a batch, of which each of the ``requests`` has one
    and the last one all that are left; and how many of its tokens stand in front of it."""
    rows = np.arange(tokens, dtype=np.int32)
    owners = np.minimum(rows, np.int32(requests - 1))
    return owners, rows - owners


@dataclass(frozen=True)
class Sizes:
    """What the shapes of a program say of its model."""

    batch: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    features: int
    vocabulary: int
    layers: int
    dtype: str
    page: int


def sizes(program: StepProgram) -> Sizes:
    """The sizes of a program's model. Raises MeshcError for a model that caches something else
    than keys and values of heads, in one loop of layers."""
    caches = [buffer for buffer in program.buffers.values() if buffer.role == "state"]
    if len(caches) != 2 or any(len(cache.shape) != 5 for cache in caches):
        fail("no-program", f"{program.model} caches no keys and values of one loop of layers")
    layers, _, kv_heads, page, head = caches[0].shape
    shapes = [s for weight in program.weights.values() for s in weight.source_shapes]
    hidden = next(s[0] if s[0] != program.vocabulary else s[1] for s in shapes if len(s) == 2
                  and program.vocabulary in s)  # fmt: skip
    heads = max(s[2] for s in shapes if len(s) == 4 and s[1] == hidden and s[3] == head)
    features = max(s[2] for s in shapes if len(s) == 3 and s[1] == hidden)
    return Sizes(
        program.batch, hidden, heads, kv_heads, head, features, program.vocabulary, layers,
        caches[0].dtype, page,
    )  # fmt: skip


def spread_of(weight: Weight) -> float:
    """The largest of uniform values of a weight that keep sums of products of the order of one:
    the root of 3 over the values that a sum has, and one for vectors. A matrix in fragments has its
    width in blocks."""
    if not weight.fragments:
        return (3.0 / weight.shape[-1]) ** 0.5 if len(weight.shape) > 1 else 1.0
    return (3.0 / (weight.shape[-3] * FRAGMENT)) ** 0.5


class Step:
    """A program's kernels and memory on a device. Weights and caches hold noise of the spread
    that keeps values of the order of one, the same in all programs of a model."""

    def __init__(
        self, device: Device, program: StepProgram, texts: dict[str, str], cubins: Cubins | None
    ) -> None:
        """Raises MeshcError, ``cuda-memory`` when it does not fit."""
        self.device = device
        self.program = program
        self.texts = texts
        self._kernels: dict[str, tuple[Kernel, Grid]] = {}
        used = {launch.kernel for launch, _ in program.launches()}
        for reader in program.prefills:
            used |= {launch.kernel for launch in reader.every_launch()}
        for name in sorted(used):
            kernel = program.kernels[name]
            loaded = load(device, texts[kernel.file], cubins)[name]
            self._kernels[name] = loaded, loaded.resident(Grid.of(kernel))
        self._noise = load(device, probes(), cubins)
        self._memory: dict[str, tuple[Buffer, int]] = {}
        self._fill()

    def alone(self, launches: Sequence[tuple[Launch, int]]) -> None:
        """Run launches one by one, each of which starts when the one in front of it has ended.
        What a kernel must be told before its first launch it is told here. Raises MeshcError."""
        for launch, layer in launches:
            self._launch(launch, layer, early=False)
            self.device.stream.synchronize()

    def capture(self, launches: Sequence[tuple[Launch, int]]) -> Graph:
        """A graph of launches with their layers, which start while the ones in front of them end as
        in ``meshc run``. Each has run alone before. Raises MeshcError."""
        with self.device.stream.capture() as graph:
            for n, (launch, layer) in enumerate(launches):
                self._launch(launch, layer, early=n > 0)
        return graph

    def set_cached(self, count: int) -> None:
        """Let every request have ``count`` tokens. Of a batch of tokens each request has one, and
        the last one all that are left. Raises MeshcError."""
        rows, ahead = self.program.tokens, np.zeros(self.program.tokens, np.int32)
        if OWNERS in self._memory:
            owners, ahead = of_batch(rows, self.program.batch - 1)  # the last one is nobody
            self._memory[OWNERS][0].write(owners)
            self._memory[AHEAD_OF][0].write(ahead)
        self._memory["cached"][0].write(np.full(rows, count, np.int32) + ahead)

    def set_chunk(self, reader: Prefill, cached: int) -> None:
        """Let a chunk of ``reader`` be full, behind ``cached`` tokens. Raises MeshcError."""
        size = reader.tokens
        tokens = np.random.default_rng(1).integers(0, self.program.vocabulary, size)
        behind = np.arange(cached, cached + size, dtype=np.int32)
        given = {"tokens": tokens.astype(np.int32), "cached": behind}
        for name, values in (given | {"count": np.array([size], np.int32)}).items():
            self._memory[f"{reader.inputs}_{name}"][0].write(values)

    def read(self, name: str, dtype: DTypeLike) -> NDArray[np.generic]:
        """The buffer ``name`` as values of ``dtype``. Raises MeshcError."""
        held = self._memory[name][0]
        return held.read(dtype, (held.nbytes // np.dtype(dtype).itemsize,))

    def logits(self) -> NDArray[np.float32]:
        """What the last step gave, [batch, vocabulary]. Raises MeshcError."""
        found = self._memory["logits"][0].read(np.float32, self.program.buffers["logits"].shape)
        return np.asarray(found)

    def free(self) -> None:
        """Give the memory back. Raises MeshcError."""
        for buffer, _ in self._memory.values():
            buffer.free()

    def _launch(self, launch: Launch, layer: int, early: bool) -> None:
        kernel, grid = self._kernels[launch.kernel]
        arguments = [self._argument(a, layer) for a in launch.arguments]
        overlaps = early and kernel.may_start_early(grid)
        kernel.launch(grid, arguments, self.device.stream, programmatic=overlaps)

    def _argument(self, argument: str | int, layer: int) -> np.generic:
        if isinstance(argument, int):
            return np.int32(argument)
        name, part = part_of(argument, layer)
        buffer, of_layer = self._memory[name]
        return buffer.address((part or 0) * of_layer)

    def _fill(self) -> None:
        program = self.program
        for name, weight in program.weights.items():
            self._make(name, weight.dtype, weight.bytes, max(weight.layers, 1), spread_of(weight))
            if weight.codes:
                self._repeat(name, coded_noise(weight))
        for name, held in program.buffers.items():
            # Pools are stacked by layer; nothing else of a buffer is.
            layers = held.shape[0] if held.role == "state" else 1
            self._make(name, held.dtype, held.bytes, layers, 1.0)
        for place, frequencies in enumerate(program.frequencies):
            angles = np.arange(program.capacity)[:, None] * np.array(frequencies)
            for name, values in (("cosines", np.cos(angles)), ("sines", np.sin(angles))):
                self._memory[numbered(name, place)][0].write(values.astype(np.float32))
        pages = np.arange(math.prod(program.buffers["pages"].shape), dtype=np.int32)
        self._memory["pages"][0].write(pages)
        for reader in program.prefills:
            shape = program.buffers[f"{reader.inputs}_pages"].shape
            self._memory[f"{reader.inputs}_pages"][0].write(pages[: math.prod(shape)])
        tokens = np.random.default_rng(0).integers(0, program.vocabulary, program.tokens)
        self._memory["tokens"][0].write(tokens.astype(np.int32))

    def _make(self, name: str, dtype: str, nbytes: int, layers: int, spread: float) -> None:
        buffer = self.device.allocate(nbytes)
        self._memory[name] = buffer, nbytes // layers
        if dtype in ("f16", "bf16"):
            fill_noise(self.device, self._noise, buffer, dtype, spread, crc32(name.encode()))
        else:
            buffer.fill()

    def _repeat(self, name: str, words: NDArray[np.uint16]) -> None:
        """Fill memory with ``words``, over and over."""
        buffer, held = self._memory[name][0], self.device.upload(words)
        count = buffer.nbytes // 2
        arguments = [buffer, np.uint64(count), held, np.uint64(len(words))]
        grid = Grid(32 * self.device.facts.multiprocessors, _NOISE_THREADS, 1, 0)
        self._noise["repeated"].launch(grid, arguments, self.device.stream)
        self.device.stream.synchronize()
        held.free()


def coded_noise(weight: Weight) -> NDArray[np.uint16]:
    """Words of some blocks of a weight that stays quantised: all codes alike, of numbers around 0
    that keep sums of products of the order of one."""
    form, rng = CODE_FORMATS[weight.codes], np.random.default_rng(len(weight.codes))
    rows, width = GROUP, _NOISE_BLOCKS * form.span
    codes = _drawn_codes(form, (rows, width), rng)
    mean, size = codes.mean(), (weight.shape[-2] * form.span) ** -0.5 / codes.std()
    if form.codes is DType.E2M1:
        size = 2.0 ** np.round(np.log2(size))
    own = {SCALES: size, UNITS: size / 16, LEAST: -mean * size, LEAST_UNITS: -mean * size / 16}
    numbers = []
    for part, kind in form.parts.items():
        shape = rows, width // form.elements(part)
        coded = 16 + (form.scale_zero if part == SCALES else 0)
        numbers.append(np.full(shape, coded if kind is DType.U8 else own[part]))
    held = Rows.whole(codes), [Rows.whole(one) for one in numbers]
    found = CodedRows(form, *held, weight.dtype)
    words = np.empty(found.words, np.uint16)
    found.fill(words)
    return words


def _drawn_codes(
    form: CodeFormat, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    if form.whole:
        return rng.integers(0, 1 << form.codes.bits, shape).astype(np.float64)
    low, high, bits = (0, 3, 1) if form.codes is DType.E2M1 else (-6, 4, 3)
    exponents = rng.integers(low, high, shape)
    fractions = rng.integers(0, 1 << bits, shape) / (1 << bits)
    signs = rng.choice([-1.0, 1.0], shape)
    return np.asarray(signs * (1 + fractions) * 2.0**exponents)


def fill_noise(
    device: Device, kernels: dict[str, Kernel], buffer: Buffer, dtype: str, spread: float, seed: int
) -> None:
    """Fill a buffer with 16-bit values, uniform up to ``spread``. Raises MeshcError."""
    count = buffer.nbytes // 2
    blocks = min(-(-count // _NOISE_THREADS), 32 * device.facts.multiprocessors)
    arguments = [buffer, np.uint64(count), np.float32(spread), np.uint32(seed)]
    kernel = kernels[f"noise_{dtype}"]
    kernel.launch(Grid(blocks, _NOISE_THREADS, 1, 0), arguments, device.stream)


def step_bytes(program: StepProgram, cached: int) -> int:
    """Bytes that a decode step reads: the weights its launch names, once (of a table of the look-up
    that no logits share one row for each request), and cached keys and values."""
    found = sizes(program)
    total = 4 * found.layers * found.batch * cached * found.kv_heads * found.head
    names = {str(a) for launch, _ in program.launches() for a in launch.arguments}
    read = {name: program.weights[name].bytes for name in sorted(names & program.weights.keys())}
    tables = [name for name in read if not program.weights[name].layers
              and any(program.vocabulary in s for s in program.weights[name].source_shapes)
              ]  # fmt: skip
    if len(tables) > 1:
        read[tables[0]] = 2 * found.batch * found.hidden
    return total + sum(read.values())

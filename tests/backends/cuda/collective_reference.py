"""Collectives of several GPUs in the executor, and what they ought to give, in float64."""

from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from kernel_reference import from_kind, to_kind

from meshc.backends.cuda.executor import Grid, Mode, symmetric_memory
from meshc.backends.cuda.kernels.collective import kernel as collective
from meshc.backends.cuda.kernels.collective.kernel import Collective, CollectivePlan

UNWRITTEN = 0xABAB


def plan(shape, blocks=2, threads=None):
    """A plan; with ``threads`` that of rows so long that each thread has several words."""
    with patch.object(collective, "_MOST_THREADS", threads or collective._MOST_THREADS):
        return collective.plan(shape, blocks)


def held(values, dtype):
    """Numbers as memory holds them."""
    return values.astype(np.float32) if dtype == "f32" else to_kind(values, dtype)


def numbers(words, dtype):
    """What memory holds, in float64."""
    if dtype == "f32":
        return words.astype(np.float64)
    return from_kind(np.ascontiguousarray(words), dtype)


@dataclass
class Case:
    """Inputs as memory holds them: ``partial`` [gpus, rows, hidden], of which an all_gather takes
    the first, ``residual`` [rows, hidden], ``gain`` [hidden]."""

    shape: Collective
    rows: int
    gpus: int

    def __post_init__(self):
        random = np.random.default_rng([self.rows, self.gpus])
        size = (self.gpus, self.rows, self.shape.hidden)
        scales = 2.0 ** random.integers(-3, 4, size)
        self.partial = held(random.standard_normal(size) * scales, self.shape.dtype)
        self.residual = random.standard_normal(size[1:]).astype(np.float32)
        self.gain = held(random.standard_normal(size[2]), self.shape.dtype)

    def wanted(self, side=0):
        """The rows, and the residual stream where there is one. Sums are rounded twice, to f32 and
        to their type; ``side`` -1 and 1 tell those that the first may bring over a tie."""
        dtype = self.shape.dtype
        if not self.shape.reduces:
            return numbers(self.partial[0], dtype), None
        terms = numbers(self.partial, dtype)
        exact = terms.sum(0) + side * self.gpus * 2.0**-24 * np.abs(terms).sum(0)
        sums = numbers(held(exact, dtype), dtype)
        if not self.shape.norms:
            return sums, None
        stream = sums + self.residual
        mean = np.square(stream).mean(-1, keepdims=True)
        return stream / np.sqrt(mean + self.shape.epsilon) * numbers(self.gain, dtype), stream


@dataclass
class Found:
    """What each GPU holds behind a run: rows, its residual stream; bytes over links."""

    rows: list
    stream: list
    link_bytes: int

    def same(self, other):
        """Whether all bits are equal."""
        pairs = zip(self.rows + self.stream, other.rows + other.stream, strict=True)
        return all(a.tobytes() == b.tobytes() for a, b in pairs)


def padded(values, pitch):
    """Rows ``pitch`` values apart, NaNs between them."""
    nan = 0xFFFF if values.dtype == np.uint16 else np.nan
    return np.pad(values, ((0, 0), (0, pitch - values.shape[1])), constant_values=nan)


def as_it_is(array):
    return array


def run(
    library, name, chosen: CollectivePlan, case: Case, mode=None, in_place=False, guard=as_it_is
):
    """The kernel on all GPUs, ``in_place`` with what is given to all where the partial sums are.
    ``guard`` may put arrays of one GPU elsewhere, such as in front of memory that none may use."""
    shape, gpus, rows = chosen.shape, case.gpus, case.rows
    word = case.partial.dtype
    partial, spread = (symmetric_memory(n, gpus, [rows, shape.pitch], word) for n in range(2))
    signals = symmetric_memory(2, gpus, [chosen.signals(gpus)], np.uint32, signals=True)
    target = partial if in_place else spread
    stream, kept, arguments = [], [], []
    for rank in range(gpus):
        own = slice(rank, None, gpus)
        spread.parts[rank][...] = UNWRITTEN
        partial.parts[rank][...] = padded(case.partial[rank], shape.pitch)
        rows_of_rank = padded(case.partial[0][own], shape.pitch)
        stream.append(guard(padded(case.residual[own], shape.pitch)))
        kept.append(guard(np.full_like(rows_of_rank, UNWRITTEN)))
        given = reach(partial, shape) if shape.reduces else guard(rows_of_rank)
        gain = guard(padded(case.gain[None], shape.pitch)[0])
        norm = [stream[rank], gain] if shape.norms else []
        gives = reach(target, shape) if shape.spreads else kept[rank]
        sizes = map(np.int32, (rows, rank, gpus))
        arguments.append([given, *norm, gives, signals.addresses, *sizes])
    grid = Grid(chosen.blocks, chosen.threads, 1, max(chosen.arena.bytes, 16))
    memories = [partial, spread, signals]
    moved = library.run_on_gpus(name, grid, arguments, memories, mode or Mode())
    written = target.parts if shape.spreads else kept
    values = [part[:, : shape.hidden].copy() for part in written]
    return Found(values, [part[:, : shape.hidden].copy() for part in stream], moved)


def reach(memory, shape):
    """What a kernel is told of symmetric memory."""
    return np.uint64(memory.multicast) if shape.transport == "multimem" else memory.addresses


def units(found, wanted, dtype):
    """The differences in units in the last place of ``dtype``; infinite for NaNs."""
    digits, least = {"bf16": (7, -126), "f16": (10, -14), "f32": (23, -126)}[dtype]
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(wanted))), least)
    difference = np.abs(numbers(found, dtype) - wanted) / 2.0 ** (exponent - digits)
    return np.where(np.isnan(difference), np.inf, difference)


def mistakes(found: Found, case: Case):
    """The largest difference of rows in units in the last place of their type, and of the stream in
    those of the largest sum in f32."""
    sides = [case.wanted(side) for side in (-1, 0, 1)]
    worst, worst_stream = 0.0, 0.0
    for rank in range(case.gpus):
        own = slice(rank, None, case.gpus)
        given = slice(None) if case.shape.spreads else own
        off = [units(found.rows[rank], rows[given], case.shape.dtype) for rows, _ in sides]
        worst = max(worst, np.min(off, 0).max(initial=0))
        if case.shape.norms:
            off = [np.abs(found.stream[rank] - stream[own]) for _, stream in sides]
            most = np.abs(sides[1][1]).max(initial=1)
            worst_stream = max(worst_stream, np.min(off, 0).max(initial=0) / most * 2**23)
    return worst, worst_stream

"""What the event model of a step (meshc/cost/tasks) rests on, by the kernels of rates.cu."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ceiling import block_bytes
from numpy.typing import NDArray
from programs import fill_noise
from timing import Task, in_turn

from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.driver.launch import Kernel
from meshc.backends.cuda.executor import Grid

Kernels = dict[str, Kernel]
Facts = NDArray[np.uint64]
THREADS, WORKERS = 288, 256
TILE_BYTES = 16384
"""What a tile of weights has beside everything but streams."""
_BARRIERS, _PIECES = 1024, 4  # of a block's shared memory, see rates.cu
_FACTS, _STAMPS, _NORM_WIDTH = 8, 32, 4096


class Wrong(Exception):
    """What a kernel got wrong, in words."""


@dataclass(frozen=True)
class Scale:
    """What is measured, and how much of it.

    ``weights`` are the bytes of all weights; ``read`` those that a block reads of the same in a
    launch, in reads of each of ``sizes``; ``meetings`` and ``launches`` how many there are at a
    time; ``repeats`` the launches of which the median counts. ``widths`` are values that all blocks
    give each other: the stream and the features of an 8B model, and eight streams. ``beside`` are
    tiles of weights on their way meanwhile; ``tiles`` and ``flying`` the bytes and numbers of tiles
    where there is nothing else.
    """

    weights: int = 2 << 30
    read: int = 8 << 20
    meetings: int = 200
    launches: int = 100
    repeats: int = 9
    sizes: Sequence[int] = tuple(8192 << n for n in range(8))
    widths: Sequence[int] = (4096, 14336, 32768)
    beside: Sequence[int] = (0, 3, 4, 8)
    tiles: Sequence[int] = (4096, 8192, 16384, 32768)
    flying: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


class Bench:
    """The kernels on a device, and memory that they share."""

    def __init__(self, device: Device, kernels: Kernels, noise: Kernels, scale: Scale) -> None:
        """``noise`` has the kernels that fill memory. Raises MeshcError, and ValueError for fewer
        weights than a tile for each block."""
        self.device, self.kernels, self.scale = device, kernels, scale
        self.blocks = device.facts.multiprocessors
        self.part = scale.weights // self.blocks // (4 * TILE_BYTES) * (4 * TILE_BYTES)
        if not self.part:
            raise ValueError(
                f"{scale.weights} bytes of weights are too few for {self.blocks} blocks"
            )
        self.weights = device.allocate(self.blocks * self.part)
        most = max(scale.sizes)
        self.same = device.allocate(most)
        for seed, buffer in enumerate((self.weights, self.same)):
            fill_noise(device, noise, buffer, "f16", 1.0, seed)
        self.words = self.same.read(np.uint32, most // 4)
        self.counter = device.allocate(4)
        self.facts = device.allocate(8 * _FACTS * self.blocks)

    def run(
        self,
        kernel: str,
        grid: Grid,
        before: Sequence[object],
        flying: int,
        after: Sequence[object] = (),
        tile: int = TILE_BYTES,
    ) -> Facts:
        """Launch a kernel that streams ``flying`` tiles of weights at once: the facts [blocks, 8]
        that it left. Raises MeshcError."""
        self.counter.fill()
        weights = [self.weights, np.uint64(self.part), np.uint32(tile), np.int32(flying)]
        self.kernels[kernel].launch(grid, [*before, *weights, *after], self.device.stream)
        return self.facts.read(np.uint64, (self.blocks, _FACTS))[: grid.blocks]

    def grid(
        self, blocks: int, cluster: int = 1, threads: int = THREADS, meets: bool = True
    ) -> Grid:
        """Blocks of which a multiprocessor has room for one."""
        return Grid(blocks, threads, cluster, block_bytes(self.device, 1), meets)

    def fitting(self, kernel: str, cluster: int) -> int:
        """Blocks in clusters that are on the device at once. Raises MeshcError."""
        blocks = self.blocks // cluster * cluster
        if cluster == 1:
            return blocks
        at_once = self.kernels[kernel].active_clusters(self.grid(blocks, cluster, meets=False))
        return min(blocks, at_once * cluster)


def _ns_of_cycle(facts: Facts) -> float:
    return float(np.median(facts[:, 1] / np.maximum(facts[:, 0], 1)))


def _streamed(facts: Facts, tile: int = TILE_BYTES) -> float:
    """Bytes per second of the weights that all blocks streamed."""
    return float(facts[:, 6].sum()) * tile / max(float(facts[:, 1].max()), 1.0) * 1e9


def _medians(found: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*found, strict=True)]


# --- all blocks read the same


@dataclass(frozen=True)
class Read:
    """``blocks`` blocks read the same ``bytes`` beside ``flying`` tiles of weights: by ``loads``,
    by ``copies`` to shared memory, or each its part for all of its ``cluster`` (``shared``).

    ``rate`` is what all blocks get, in bytes per second, of reads one behind another, and
    ``weights`` that of the weights meanwhile. Where all blocks meet before each read, ``mean_ns``
    is the time of a block and ``last_ns`` of the slowest one, means over the reads.
    """

    how: str
    cluster: int
    bytes: int
    flying: int
    blocks: int
    rate: float
    weights: float
    mean_ns: float
    last_ns: float


HOWS = (("loads", 1), ("copies", 1), ("shared", 2), ("shared", 4))


def reads(bench: Bench) -> Iterator[Read]:
    """All ways of reading. Raises MeshcError and Wrong."""
    room = block_bytes(bench.device, 1) - _BARRIERS
    for how, cluster in HOWS:
        for size in bench.scale.sizes:
            for flying in bench.scale.beside:
                if (_PIECES + flying) * TILE_BYTES <= room:
                    yield _read(bench, how, cluster, size, flying)


def _read(bench: Bench, how: str, cluster: int, size: int, flying: int) -> Read:
    kernel, scale = f"read_{how}", bench.scale
    blocks = bench.fitting(kernel, cluster)
    piece = min(TILE_BYTES, size // _PIECES)
    # Loads add all words, copies one of every block's part of a piece.
    step = 1 if how == "loads" else piece // cluster // 4
    counted = bench.words[: size // 4 : step].sum(dtype=np.uint32)
    sums = bench.device.allocate(4 * WORKERS * blocks)

    def once(rounds: int, apart: bool) -> Facts:
        given = [
            bench.same, np.uint32(size), np.int32(rounds), np.int32(apart), np.uint32(piece),
            bench.counter,
        ]  # fmt: skip
        facts = bench.run(kernel, bench.grid(blocks, cluster), given, flying, [bench.facts, sums])
        found = sums.read(np.uint32, (blocks, WORKERS)).sum(axis=1, dtype=np.uint32)
        if np.any(found != np.uint32(int(counted) * rounds % (1 << 32))):
            raise Wrong(f"{kernel} read other words than lie in {size} bytes")
        return facts

    rows = []
    for _ in range(scale.repeats):
        rounds = max(scale.read // size, 1)
        facts = once(rounds, apart=False)
        rate = blocks * size * rounds / max(float(facts[:, 1].max()), 1.0) * 1e9
        row = [rate, _streamed(facts)]
        facts = once(scale.meetings, apart=True)
        each = facts[:, 3] / scale.meetings * _ns_of_cycle(facts)
        rows.append([*row, float(each.mean()), float(each.max())])
    sums.free()
    return Read(how, cluster, size, flying, blocks, *_medians(rows))


# --- meetings


class Form(NamedTuple):
    """How blocks tell each other what each has: the kernel, values of a word, bytes of a word."""

    kernel: str
    what: str
    values: int
    word: int


FORMS = (
    Form("meet_counter", "counter, f32", 4, 16),
    Form("meet_counter", "counter, f16", 8, 16),
    Form("meet_words_8", "8-byte words, one f32", 1, 8),
    Form("meet_words_8", "8-byte words, two f16", 2, 8),
    Form("meet_words_16", "16-byte words, three f32", 3, 16),
    Form("meet_words_16", "16-byte words, six f16", 6, 16),
    Form("meet_normed", "counter, f32, norm to columns", 4, 16),
)


@dataclass(frozen=True)
class Meet:
    """All blocks give each other ``width`` values beside ``flying`` tiles of weights; each reads
    ``bytes``.

    Nanoseconds, means over meetings: ``round_ns`` from one to the next; ``told_ns`` from when the
    last block has written to when the last one knows that (0 for words, which say it themselves);
    ``read_ns`` until the last one has read all; ``mean_ns`` from when a block has written to when
    it has read all, of a mean block. ``weights`` are bytes per second of the weights. The clock of
    all but ``mean_ns`` has ticks of ``tick_ns``.
    """

    form: str
    width: int
    bytes: int
    flying: int
    round_ns: float
    told_ns: float
    read_ns: float
    mean_ns: float
    weights: float
    tick_ns: float


def meetings(bench: Bench) -> Iterator[Meet]:
    """All forms of meetings. Raises MeshcError and Wrong."""
    for form in FORMS:
        for width in (_NORM_WIDTH,) if form.kernel == "meet_normed" else bench.scale.widths:
            for flying in bench.scale.beside:
                yield _meet(bench, form, width, flying)


def _meet(bench: Bench, form: Form, width: int, flying: int) -> Meet:
    scale, blocks, device = bench.scale, bench.blocks, bench.device
    count = -(-width // form.values)
    count += count % 2  # two words of 8 bytes are read at once
    words = device.allocate(2 * count * form.word)
    stamps = device.allocate(8 * _STAMPS * 3 * blocks)
    gain = device.upload(np.ones(_NORM_WIDTH, np.float16))
    columns = device.allocate(4 * blocks)
    rounds = max(scale.meetings, _STAMPS)
    rows = []
    for _ in range(scale.repeats):
        words.fill()
        facts = bench.run(
            form.kernel, bench.grid(blocks),
            [words, np.uint32(count), np.int32(rounds), gain, bench.counter], flying,
            [bench.facts, stamps, columns],
        )  # fmt: skip
        if facts[:, 5].any():
            raise Wrong(f"{form.kernel} gave {facts[:, 5].sum()} words that are not of their round")
        if form.kernel == "meet_normed":
            _check_columns(columns.read(np.float32, blocks), rounds)
        when = stamps.read(np.uint64, (_STAMPS, 3, blocks))
        tick = float(np.diff(np.unique(when[when > 0])).min())
        written, told, read = when.astype(float).swapaxes(0, 1)
        last = written.max(1)
        known = float((told.max(1) - last).mean()) if told.any() else 0.0
        rows.append(
            [
                float(facts[:, 1].max()) / rounds, known, float((read.max(1) - last).mean()),
                float(facts[:, 3].mean()) / rounds * _ns_of_cycle(facts), _streamed(facts), tick,
            ]
        )  # fmt: skip
    for buffer in (words, stamps, gain, columns):
        buffer.free()
    return Meet(form.what, width, count * form.word, flying, *_medians(rows))


def _check_columns(found: NDArray[np.float32], rounds: int) -> None:
    """The first value of the normed vector, whose values rates.cu makes of the round."""
    values = np.array([[i % 13 + 1, rounds, 1, 2] for i in range(_NORM_WIDTH // 4)], float)
    wanted = 1 / np.sqrt((values**2).mean() + 1e-5)
    if np.any(np.abs(found / wanted - 1) > 1e-3):
        raise Wrong(f"meet_normed gave {found[0]} in place of {wanted}")


# --- weights alone


@dataclass(frozen=True)
class Stream:
    """``blocks`` blocks stream weights, ``flying`` tiles of ``tile`` bytes at once: bytes per
    second, and nanoseconds of a tile where each is waited for before the next."""

    blocks: int
    tile: int
    flying: int
    rate: float
    tile_ns: float


def streams(bench: Bench) -> Iterator[Stream]:
    """All weights once, by all blocks; single tiles by one block too. Raises MeshcError and
    Wrong."""
    room = block_bytes(bench.device, 1) - _BARRIERS
    for tile in bench.scale.tiles:
        yield _stream(bench, 1, tile, 1)
        for flying in bench.scale.flying:
            if flying * tile <= room:
                yield _stream(bench, bench.blocks, tile, flying)


def _stream(bench: Bench, blocks: int, tile: int, flying: int) -> Stream:
    count = max(bench.part // tile, 1)
    grid = bench.grid(blocks, threads=32, meets=False)
    rows = []
    for _ in range(bench.scale.repeats):
        given = [np.int32(count), bench.facts]
        facts = bench.run("stream_alone", grid, (), flying, given, tile)
        if np.any(facts[:, 6] != count):
            raise Wrong(f"{facts[:, 6].min()} tiles came of {count}")
        each = float(facts[:, 1].mean()) / count if flying == 1 else 0.0
        rows.append([_streamed(facts, tile), each])
    return Stream(blocks, tile, flying, *_medians(rows))


# --- launches


@dataclass(frozen=True)
class Launched:
    """Microseconds of a launch of a kernel that does nothing, one behind another: on the device,
    and of the host's thread."""

    what: str
    us: float
    host_us: float


def launches(bench: Bench) -> Iterator[Launched]:
    """Launches by themselves and as nodes of graphs, cooperative and not. Raises MeshcError."""
    device, count = bench.device, bench.scale.launches
    ran = device.allocate(4 * bench.blocks)
    kernel = bench.kernels["nothing"]
    tasks = []
    for what, meets in (("kernel", False), ("cooperative kernel", True)):

        def launch(meets: bool = meets) -> None:
            kernel.launch(bench.grid(bench.blocks, meets=meets), [ran], device.stream)

        launch()
        with device.stream.capture() as one:
            launch()
        with device.stream.capture() as many:
            for _ in range(count):
                launch()
        tasks += [
            Task(what, _repeated(launch, count), parts=count),
            Task(f"graph of one {what}", _repeated(one.launch, count), parts=count),
            Task(f"node of a graph of {count}, {what}", many.launch, parts=count),
        ]
    timed = in_turn(device, tasks, bench.scale.repeats)
    for task, one_timed in zip(tasks, timed, strict=True):
        device.stream.synchronize()
        begin = time.perf_counter()
        task.launch()
        host = (time.perf_counter() - begin) / task.parts
        device.stream.synchronize()
        yield Launched(task.name, 1e6 * one_timed.median, 1e6 * host)
    if not np.all(ran.read(np.uint32, bench.blocks) == 1):
        raise Wrong("blocks of an empty kernel did not run")
    ran.free()


def _repeated(launch: Callable[[], None], count: int) -> Callable[[], None]:
    def all_of_them() -> None:
        for _ in range(count):
            launch()

    return all_of_them

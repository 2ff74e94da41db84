"""Steps of task programs as CUDA, and how tests run one: caches that hold what a test says, in
pages that lie anywhere, and nothing but NaN where no token is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import coded_caches
import numpy as np
from drawn_decoders import Drawn
from float64_decoders import Left, rounded
from kept_weights import kept_weights
from step_caches import Caches, DealtCaches
from turned_sides import Measures, nearest

import meshc
from meshc.backends.cuda import CpuMachine, CpuNode, LanguageModel
from meshc.backends.cuda.executor import FIRST, QUICK, SCHEDULES, Library, Mode, headers
from meshc.backends.cuda.gpu_divisions import dealing
from meshc.backends.cuda.tasks.step import TaskGraph, step_of_tasks
from meshc.ir.clone import clone_module
from meshc.support.diagnostics import MeshcError
from meshc.support.native import Toolchain

# As a part of the largest logit. A few requests have left sides of products in two values, so what
# is left is the noise of sums of f32, and keys and values that are rounded the other way: an
# element in some thousand, by 2^-10 or 2^-7 of itself. The left sides of more are rounded once, and
# those of float64 too; where the two round differently, one term of many differs by as much. Each
# bound is about twice what the worst of the drawn decoders has.
BOUNDS = {("f16", False): 5e-5, ("bf16", False): 1.5e-3, ("f16", True): 2e-3, ("bf16", True): 1e-2}
WIDE = 1024
"""Elements of a left side of which more lie in the middle of two numbers than are turned at once;
steps of many requests of fewer have most of them within the bounds of few."""
OTHER_WAY = {False: 1 / 25, True: 1 / 3}
"""Which part of the elements of rows may be, of a few requests and of more: those that are rounded
down instead are every second."""
_HOW = (
    "dtype", "capacity", "batch", "page", "rows", "tokens", "parts", "merge", "meet", "columns",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step's program and its texts."""

    program: object
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The kernel."""
        return self.texts["step.cu"]

    @property
    def nhd(self) -> bool:
        """Whether caches lie as those of other programs do."""
        return "MC_NHD" in self.text

    @property
    def coded(self) -> bool:
        """Whether caches keep floats of eight bits."""
        return any(buffer.dtype == "e4m3" for buffer in self.program.buffers.values())

    def edited(self, file: str, old: str, new: str) -> Step:
        """The same with ``new`` in the one place where ``file`` has ``old``."""
        assert self.texts[file].count(old) == 1
        return replace(self, texts={**self.texts, file: self.texts[file].replace(old, new)})

    def replaced(self, file: str, old: str, new: str) -> Step:
        """The same with ``new`` in the first place where ``file`` has ``old``."""
        assert old in self.texts[file]
        return replace(self, texts={**self.texts, file: self.texts[file].replace(old, new, 1)})

    def with_blocks(self, blocks: int) -> Step:
        """The same, each kernel launched with so many blocks."""
        kernels = self.program.kernels.items()
        fewer = {name: replace(kernel, blocks=blocks) for name, kernel in kernels}
        return replace(self, program=replace(self.program, kernels=fewer))


def step_of(
    model: str | Path, *, dtype="f16", capacity=64, batch=1, page=16, rows=16, tokens=32, parts=1,
    merge=False, meet="counter", device="h200", cluster=0, split="splits", ranks=1,
    transport="peers", keep="", columns=False, drafts=0, kv_layout="", coded=False,
    requests=0,
) -> Step:  # fmt: skip
    """The step of a model in a file; of clusters of so many blocks, that attend by heads and
    ``split`` tokens of these (splits) or lanes (lanes); of each of several ``ranks``. All weights
    that can stay quantised in the format ``keep``. With ``meet`` kernel it is cut. It verifies so
    many ``drafts`` of a request; caches lie as ``kv_layout`` says, and are perhaps ``coded``. With
    ``columns`` left sides of products lie in memory. With ``requests`` it is one of a batch of
    tokens of so many of them."""
    flags = {}
    if drafts:
        flags = {"target": "cuda", "serving": "chunks", "drafts": drafts}
    graph = meshc.compile(
        str(model), dtype=dtype, compile_to="graph", phase="decode",
        seq=capacity, device=device, batch=batch, **flags,
    ).modules["decode"]  # fmt: skip
    graph.options.pop("cache_pages", None)  # each request has pages of its own
    if kv_layout:
        graph.options["kv_layout"] = kv_layout
    if requests:
        batched = meshc.parse_pipeline(f"batch-tokens{{tokens={batch},requests={requests}}}")
        graph = meshc.PassManager(batched).run(graph)
    if ranks > 1:
        deal = dealing(graph, ranks, (f"all={keep}",) if keep else ())
        graph = meshc.PassManager(meshc.parse_pipeline(deal)).run(graph)
    if coded:
        graph = meshc.PassManager(meshc.parse_pipeline("code-caches")).run(graph)
    by_heads, placed = "", "place-tasks"
    if cluster:
        by_heads = f",heads=true,{split}={cluster}"
        placed = f"place-tasks,fuse-cluster{{cluster={cluster}}}"
    merges = str(merge and not cluster).lower()
    keeping = f'stream-quantised{{formats=["all={keep}"]}},' if keep else ""
    passes = meshc.parse_pipeline(
        f"expand-tasks{{rows={rows},tokens={tokens},parts={parts},merge={merges}{by_heads}"
        f"{',columns=true' if columns else ''}}},"
        f"{keeping}"
        f"{placed},meet{{kind={'counter' if meet == 'kernel' else meet}}},fold-scratch"
        f"{',cut' if meet == 'kernel' else ''}"
    )
    module = meshc.PassManager(passes).run(clone_module(graph))
    program, texts = step_of_tasks(TaskGraph(module, graph), "model", page, transport=transport)
    return Step(program, {**texts, **headers()})


def machine_of(
    step: Step, mode: Mode = FIRST, toolchain: Toolchain = QUICK
) -> CpuMachine | CpuNode:
    """The executor with the kernels of a step, over its own texts of the library: a GPU, or one for
    each of several ranks."""
    given, ranks = (step.program.kernels, step.texts), step.program.ranks
    machine = (
        CpuNode(*given, ranks.count, mode, toolchain)
        if ranks
        else CpuMachine(*given, mode, toolchain)
    )
    own = {name: step.texts.get(name, text) for name, text in headers().items()}
    if own != headers():
        for name, kernel in step.program.kernels.items():
            made = Library(step.texts[kernel.file], own, toolchain)
            for gpu in gpus_of(machine):
                gpu._libraries[name] = made
    return machine


def gpus_of(machine: CpuMachine | CpuNode) -> Sequence[CpuMachine]:
    """Those of a machine, by rank."""
    return getattr(machine, "gpus", [machine])


class Run(Caches):
    """A step's model in the executor, with pages that lie anywhere."""

    def __init__(
        self,
        step: Step,
        tensors: Mapping[str, np.ndarray],
        mode: Mode = FIRST,
        toolchain: Toolchain = QUICK,
        seed: int = 0,
    ) -> None:
        machine = machine_of(step, mode, toolchain)
        self.model = LanguageModel(step.program, machine, tensors)
        super().__init__(step, machine, pages_of(step, seed))
        machine.write("pages", self.pages)

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """Logits of a step; a token may be -1, which is none."""
        self.machine.write("tokens", np.array(tokens, np.int32))
        self.machine.write("cached", np.array(positions, np.int32))
        self.machine.run(self.step.program.launches())
        return self.machine.read("logits")


def pages_of(step: Step, seed: int) -> np.ndarray:
    """Pages of requests [requests, pages], in an order that is drawn."""
    program = step.program
    count = program.batch * program.capacity_pages
    pages = np.random.default_rng(seed).permutation(count).astype(np.int32)
    return pages.reshape(program.batch, -1)


@dataclass
class Judge:
    """Compares steps of a drawn decoder with float64: logits, the new rows of the caches, of which
    nothing else changes, and the counter of meetings, which is left at 0."""

    drawn: Drawn
    seed: int
    step: Step
    worst: float = 0.0

    @classmethod
    def of(
        cls,
        drawn: Drawn,
        seed: int,
        folder: Path,
        cluster: int = 0,
        split: str = "splits",
        tile: int = 0,
        **how: object,
    ) -> Self:
        """The judge of a decoder, which is compiled as :func:`step_of` is told, perhaps for a GPU
        with small tiles."""
        model = folder / "drawn.mesh"
        model.write_text(drawn.decoder.text())
        how |= {name: getattr(drawn, name) for name in _HOW}
        how |= {"device": device_of(drawn.cores, folder, tile), "cluster": cluster, "split": split}
        coded = replace(drawn.decoder, coded=True) if how.get("coded") else drawn.decoder
        return cls(replace(drawn, decoder=coded), seed, step_of(model, **how))

    def check(
        self, step: Step | None = None, mode: Mode = FIRST, toolchain: Toolchain = QUICK
    ) -> list[np.ndarray]:
        """The logits of a step at each set of positions. AssertionError for others than those of
        float64."""
        drawn, decoder = self.drawn, self.drawn.decoder
        weights, tensors = self._weights()
        run = Run(step or self.step, tensors, mode, toolchain, self.seed)
        rng, found = np.random.default_rng(self.seed), []
        for positions in drawn.positions:
            shapes = decoder.cached(drawn.batch, drawn.capacity)
            caches = {
                name: coded_caches.drawn(rng, shape)
                if run.step.coded
                else rounded(rng.standard_normal(shape), drawn.dtype)
                for name, shape in shapes.items()
            }
            tokens = rng.integers(0, decoder.words, drawn.batch)
            run.give({name: c[..., self._order(name)] for name, c in caches.items()}, positions)
            before = {pool: run.machine.read(pool) for pool in map(run.buffer, caches)}
            logits = run.logits(tokens, positions)
            self._agree(logits, self._left(run), caches, weights, tokens, np.array(positions))
            for name, shape in shapes.items():
                run.put_rows(before[run.buffer(name)], name, shape, positions)
            for pool, expected in before.items():
                assert (run.machine.read(pool) == expected).all(), "other rows were written"
            if "met" in self.step.program.buffers:
                assert run.machine.read("met").tolist() == [0]
            found.append(logits)
        return found

    def _weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Weights of the decoder, and what the step has of them by its own names."""
        decoder = self.drawn.decoder
        weights = decoder.weights(self.seed, self.drawn.dtype)
        table = dict(decoder.renamed).get("embedding", "embedding")
        return weights, kept_weights(self.step.program, decoder.named(weights), self.seed, table)

    def _agree(
        self,
        logits: np.ndarray,
        left: Mapping[str, np.ndarray],
        caches: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
        tokens: np.ndarray,
        positions: np.ndarray,
    ) -> None:
        """Logits are those of the decoder, which writes rows to ``caches``, and rows are these,
        perhaps rounded the other way. It attends to the rows that the step ``left``: they are held
        against its own, so attention to them is no freer than theirs are."""
        rows = (c[:, b, : at + 1] for c in left.values() for b, at in enumerate(positions))
        assert all(np.isfinite(one).all() for one in rows), "cached rows are no numbers"
        self._close_or_turned(logits, left, caches, weights, tokens, positions)
        of_tokens = np.arange(len(positions)), positions
        for name, cache in caches.items():
            self._close_rows(left[name][:, *of_tokens], cache[:, *of_tokens])

    def _close_or_turned(
        self,
        logits: np.ndarray,
        left: Mapping[str, np.ndarray],
        caches: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
        tokens: np.ndarray,
        positions: np.ndarray,
    ) -> None:
        """Logits are those of the decoder, which writes rows to ``caches``. Of many requests some
        left sides of products may be rounded the other way: see :mod:`turned_sides`. Most of them
        are as near as those of few are."""
        decoder, dtype, many = self.drawn.decoder, self.drawn.dtype, self.drawn.batch > 4
        before = {name: cache.copy() for name, cache in caches.items()}
        wanted = decoder.step(weights, caches, tokens, positions, dtype, left)
        bound, size = BOUNDS[dtype, many], np.abs(wanted).max()
        few = BOUNDS[dtype, many and decoder.hidden >= WIDE]
        errors = np.abs(logits - wanted).max(-1) / size
        for b in np.argsort(errors) if many else ():
            enough = bound if np.median(errors) <= few else few
            if errors[b] <= enough:
                continue

            def measure(sides: Left, own: slice = slice(b, b + 1)) -> Measures:
                held = {name: cache[:, own].copy() for name, cache in before.items()}
                rows = {name: cache[:, own] for name, cache in left.items()}
                given = tokens[own], positions[own], dtype, rows, sides
                far = np.abs(logits[own] - decoder.step(weights, held, *given)).max() / size
                at = slice(None), 0, positions[own][0]
                return sum((held[name][at] != rows[name][at]).sum() for name in rows), far

            errors[b] = nearest(measure, dtype, len(tokens), enough)
        self._within(errors.max(), bound)
        self._within(float(np.median(errors)), few)

    def _close_rows(self, found: np.ndarray, wanted: np.ndarray) -> None:
        """The rows of the requests' tokens [layers, requests, heads, lanes], of which few elements
        are rounded the other way."""
        many, dtype = self.drawn.batch > 4, self.drawn.dtype
        if self.step.coded:
            for b in range(self.drawn.batch):
                coded_caches.check_rows(found[:, b], wanted[:, b], many)
            return
        bound = BOUNDS[dtype, many] + {"f16": 2.0**-10, "bf16": 2.0**-7}[dtype]
        for b in range(self.drawn.batch):
            self._close(found[:, b], wanted[:, b], bound)
        other = found != wanted
        few = other.sum() <= 2 + other.size * OTHER_WAY[many]
        assert few, f"{other.sum()} of {other.size} elements of rows are rounded the other way"

    def _left(self, run: Run | DealtCaches) -> dict[str, np.ndarray]:
        """The caches as a step left them, with lanes in the order of the decoder."""
        found = {}
        for name, shape in self.drawn.decoder.cached(self.drawn.batch, self.drawn.capacity).items():
            found[name] = np.empty(shape)
            found[name][..., self._order(name)] = run.held(name, shape)
        return found

    def _order(self, cache: str) -> np.ndarray:
        """The order of the lanes of a row of a cache: that of kernels, or of the model where caches
        are those of other programs."""
        order = self.drawn.decoder.stored(cache)
        return np.arange(len(order)) if self.step.nhd else order

    def _close(self, found: np.ndarray, wanted: np.ndarray, bound: float) -> None:
        self._within(_distance(found, wanted), bound)

    def _within(self, error: float, bound: float) -> None:
        assert not np.isnan(error), "logits are no numbers"
        self.worst = max(self.worst, error)
        assert error <= bound, f"logits are {error:.1e} from those of float64"


def _distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, as a part of the largest number that is wanted."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def mode_of(seed: int) -> Mode:
    """An order of threads and copies. Which warp or block an order starves goes by a part of
    ``seed`` of its own, so that each is starved for some seeds."""
    return Mode(SCHEDULES[seed % 6], bool(seed // 6 % 2), seed // 12)


def noticed(judge: Judge, step: Step, runs: Sequence[tuple[Mode, Toolchain]]) -> str | None:
    """Which of ``runs`` notices an edited ``step``, None if none does."""
    first = None
    for number, (mode, toolchain) in enumerate(runs):
        try:
            found = judge.check(step, mode, toolchain)
        except (AssertionError, MeshcError, ValueError) as problem:
            return f"{number}: {problem}"
        first = first or found
        if any((one != other).any() for one, other in zip(found, first, strict=True)):
            return f"{number}: other bits than in another order"
    return None


def device_of(cores: int, folder: Path, tile: int = 0) -> str:
    """The file of an H200 of so many cores, perhaps with tiles of so many bytes."""
    device = folder / "device.toml"
    numbers = {"cores": cores, "cores_y": cores}
    if tile:
        early = (1 + cores % 3) * tile  # three are as many as usual
        numbers |= {"tile_bytes": tile, "bytes_in_flight": 3 * tile, "early_bytes_in_flight": early}
    head = ['name = "h200"', 'like = "h200"', 'description = "an H200 of other numbers"']
    device.write_text("\n".join([*head, *(f"{key} = {one}" for key, one in numbers.items())]))
    return str(device)

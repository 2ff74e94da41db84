"""Steps of task programs as CUDA, and how tests run one: caches that hold what a test says, in
pages that lie anywhere, and nothing but NaN where no token is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import coded_caches
import numpy as np
from drawn_decoders import Drawn
from float64_decoders import Left, rounded
from kept_weights import kept_weights

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel
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
_HOW = (
    "dtype", "capacity", "batch", "page", "rows", "tokens", "parts", "merge", "meet", "columns",
)  # fmt: skip
NAN = {"f16": 0x7E5A, "bf16": 0x7FDA}


@dataclass(frozen=True)
class Step:
    """A step's program and its texts."""

    program: object
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The kernel."""
        return self.texts["step.cu"]

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


def machine_of(step: Step, mode: Mode = FIRST, toolchain: Toolchain = QUICK) -> CpuMachine:
    """The executor with the kernels of a step, over its own texts of the library."""
    kernels = step.program.kernels
    machine = CpuMachine(kernels, step.texts, mode, toolchain)
    own = {name: step.texts[name] for name in headers()}
    if own != headers():
        for name, kernel in kernels.items():
            machine._libraries[name] = Library(step.texts[kernel.file], own, toolchain)
    return machine


@dataclass
class Run:
    """A step's model in the executor, with pages that lie anywhere."""

    step: Step
    tensors: Mapping[str, np.ndarray]
    mode: Mode = FIRST
    toolchain: Toolchain = QUICK
    seed: int = 0

    def __post_init__(self) -> None:
        program = self.step.program
        self.machine = machine_of(self.step, self.mode, self.toolchain)
        self.model = LanguageModel(program, self.machine, self.tensors)
        count = program.batch * program.capacity_pages
        self.pages = np.random.default_rng(self.seed).permutation(count).astype(np.int32)
        self.pages = self.pages.reshape(program.batch, -1)
        self.machine.write("pages", self.pages)
        self.dtype = next(iter(program.weights.values())).dtype
        self.nhd = "MC_NHD" in self.step.text
        self.coded = any(buffer.dtype == "e4m3" for buffer in program.buffers.values())

    def buffer(self, cache: str) -> str:
        """What the program calls the memory of a cache: keys that are turned lie behind latents, or
        on their own where nothing needs both in one row."""
        states = [n for n, b in self.step.program.buffers.items() if b.role == "state"]
        names = (name.replace(".", "_") for name in (cache, cache.replace("rope", "latent")))
        called = (re.compile(rf"{name}(_\d+)?") for name in names)
        return next(n for one in called for n in states if one.fullmatch(n))

    def places(self, cache: str, shape: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Where elements of a cache [layers, requests, tokens, heads, lanes] lie in its pool, which
        may have parts of the lanes of a head as heads."""
        pool = self.machine.arrays[self.buffer(cache)]
        layers, requests, tokens, heads, own = np.indices(shape, sparse=True)
        if self.nhd:
            page = pool.shape[-3]
            at = (self.pages[requests, tokens // page], tokens % page, heads, own)
            return at if pool.ndim == 4 else (layers, *at)
        page, lanes = pool.shape[-2:]
        parts = pool.shape[-3] // shape[3]
        heads, own = heads * parts + own // (shape[4] // parts), own % (shape[4] // parts)
        chunks = lanes // 8
        apart = next(n for n in (8, 4, 2, 1) if chunks % n == 0)
        if cache.endswith("rope"):
            own = own + lanes - -(-shape[-1] // 8) * 8
        chunk = (own // 8) ^ (tokens // (8 // apart) % apart)
        at = (self.pages[requests, tokens // page], heads, tokens % page, chunk * 8 + own % 8)
        return at if pool.ndim == 4 else (layers, *at)

    def give(self, caches: Mapping[str, np.ndarray], positions: Sequence[int]) -> None:
        """Fill the caches: as many tokens as a request has, and NaN behind them."""
        if self.coded:
            return coded_caches.give(self, caches, positions)
        for cache in {self.buffer(cache) for cache in caches}:
            self.machine.write(cache, np.full_like(self.machine.arrays[cache], NAN[self.dtype]))
        for cache, values in caches.items():
            pool = self.machine.arrays[self.buffer(cache)].copy()
            held = bits(values, self.dtype)
            for b, count in enumerate(positions):
                held[:, b, count:] = NAN[self.dtype]
            pool[self.places(cache, values.shape)] = held
            self.machine.write(self.buffer(cache), pool)

    def held(self, cache: str, shape: Sequence[int]) -> np.ndarray:
        """The numbers of a cache as they are now."""
        if self.coded:
            return coded_caches.held(self, cache, shape)
        found = self.machine.arrays[self.buffer(cache)][self.places(cache, shape)]
        return values_of(found, self.dtype)

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """Logits of a step; a token may be -1, which is none."""
        self.machine.write("tokens", np.array(tokens, np.int32))
        self.machine.write("cached", np.array(positions, np.int32))
        self.machine.run(self.step.program.launches())
        return self.machine.read("logits")


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
        keep: str = "",
        tile: int = 0,
        kv_layout: str = "",
        coded: bool = False,
    ) -> Judge:
        """The judge of a decoder, which is compiled, perhaps for clusters of so many blocks, with
        weights that stay quantised, or for a GPU with small tiles."""
        model = folder / "drawn.mesh"
        model.write_text(drawn.decoder.text())
        how = {name: getattr(drawn, name) for name in _HOW}
        device = device_of(drawn.cores, folder, tile)
        how |= {"device": device, "cluster": cluster, "split": split, "keep": keep}
        how |= {"kv_layout": kv_layout, "coded": coded}
        drawn = replace(drawn, decoder=replace(drawn.decoder, coded=True)) if coded else drawn
        return cls(drawn, seed, step_of(model, **how))

    def check(
        self, step: Step | None = None, mode: Mode = FIRST, toolchain: Toolchain = QUICK
    ) -> list[np.ndarray]:
        """The logits of a step at each set of positions. AssertionError for others than those of
        float64."""
        drawn, decoder, dtype = self.drawn, self.drawn.decoder, self.drawn.dtype
        weights = decoder.weights(self.seed, dtype)
        table = dict(decoder.renamed).get("embedding", "embedding")
        tensors = kept_weights(self.step.program, decoder.named(weights), self.seed, table)
        run = Run(step or self.step, tensors, mode, toolchain, self.seed)
        rng, found = np.random.default_rng(self.seed), []
        for positions in drawn.positions:
            shapes = decoder.cached(drawn.batch, drawn.capacity)
            caches = {
                name: coded_caches.drawn(rng, shape)
                if run.coded
                else rounded(rng.standard_normal(shape), dtype)
                for name, shape in shapes.items()
            }
            tokens = rng.integers(0, decoder.words, drawn.batch)
            run.give({name: c[..., self._order(name)] for name, c in caches.items()}, positions)
            before = {pool: run.machine.read(pool) for pool in map(run.buffer, caches)}
            logits = run.logits(tokens, positions)
            left = {name: self._left(run, name, shape) for name, shape in shapes.items()}
            rows = (c[:, b, : at + 1] for c in left.values() for b, at in enumerate(positions))
            assert all(np.isfinite(one).all() for one in rows), "cached rows are no numbers"
            given = weights, tokens, np.array(positions), dtype, left
            self._close_or_turned(logits, caches, *given)
            for name, cache in caches.items():
                self._new_rows(run, name, cache[..., self._order(name)], positions, before)
            for pool, expected in before.items():
                assert (run.machine.read(pool) == expected).all(), "other rows were written"
            if "met" in self.step.program.buffers:
                assert run.machine.read("met").tolist() == [0]
            found.append(logits)
        return found

    def _close_or_turned(
        self,
        logits: np.ndarray,
        caches: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
        *given: object,
    ) -> None:
        """Logits are those of the decoder, which writes rows to ``caches``."""
        before = {name: cache.copy() for name, cache in caches.items()}
        wanted = self.drawn.decoder.step(weights, caches, *given)
        bound = bound_of(self.drawn, logits, wanted, weights, before, *given)
        self._close(logits, wanted, bound)

    def _left(self, run: Run, cache: str, shape: Sequence[int]) -> np.ndarray:
        """A cache as the step left it, with lanes in the order of the decoder. Its new rows are
        held against the decoder's, so attention to them is no freer than theirs are."""
        stored = run.held(cache, shape)
        found = np.empty_like(stored)
        found[..., self._order(cache)] = stored
        return found

    def _order(self, cache: str) -> np.ndarray:
        """The order of the lanes of a row of a cache: that of kernels, or of the model where caches
        are those of other programs."""
        order = self.drawn.decoder.stored(cache)
        return np.arange(len(order)) if "MC_NHD" in self.step.text else order

    def _close(self, found: np.ndarray, wanted: np.ndarray, bound: float) -> None:
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert not np.isnan(error), "logits are no numbers"
        self.worst = max(self.worst, float(error))
        assert error <= bound, f"logits are {error:.1e} from those of float64"

    def _new_rows(
        self,
        run: Run,
        name: str,
        wanted: np.ndarray,
        positions: Sequence[int],
        pools: Mapping[str, np.ndarray],
    ) -> None:
        """The row of each request's token, which may be rounded the other way; ``pools`` get what
        was found."""
        if run.coded:
            return self._coded_rows(run, name, wanted, positions, pools)
        bound = (
            BOUNDS[self.drawn.dtype, self.drawn.batch > 4]
            + {"f16": 2.0**-10, "bf16": 2.0**-7}[self.drawn.dtype]
        )
        places = np.broadcast_arrays(*run.places(name, wanted.shape))
        now = run.machine.read(run.buffer(name))
        for b, at in enumerate(positions):
            row = tuple(place[:, b, at] for place in places)
            self._close(values_of(now[row], self.drawn.dtype), wanted[:, b, at], bound)
            pools[run.buffer(name)][row] = now[row]

    def _coded_rows(
        self,
        run: Run,
        name: str,
        wanted: np.ndarray,
        positions: Sequence[int],
        pools: Mapping[str, np.ndarray],
    ) -> None:
        """The same of rows that are coded."""
        found, many = run.held(name, wanted.shape), self.drawn.batch > 4
        now = run.machine.read(run.buffer(name)).reshape(-1)
        for b, at in enumerate(positions):
            coded_caches.check_rows(found[:, b, at], wanted[:, b, at], many)
            for places in coded_caches.places(run, name, wanted.shape):
                own = places[:, b, at]
                pools[run.buffer(name)].reshape(-1)[own] = now[own]


def bound_of(
    drawn: Drawn,
    logits: np.ndarray,
    wanted: np.ndarray,
    weights: Mapping[str, np.ndarray],
    before: Mapping[str, np.ndarray],
    *given: object,
) -> float:
    """How far logits of a step may be from those that are ``wanted``: where left sides of products
    are rounded, and logits are farther off than they mostly are, as much as these move them that
    are rounded the other way, one in eight of them at random. Where that is one element, it is
    seen. ``before`` and what is ``given`` are those of the step."""
    many = drawn.batch > 4
    bound, size = BOUNDS[drawn.dtype, many], np.abs(wanted).max()
    if many and np.abs(logits - wanted).max() > bound * size:
        for seed in range(4):
            own = {name: cache.copy() for name, cache in before.items()}
            left = Left(drawn.dtype, drawn.batch, np.random.default_rng(seed))
            turned = drawn.decoder.step(weights, own, *given, left=left)
            bound = max(bound, float(np.abs(turned - wanted).max() / size))
    return bound


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


def bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values of a 16-bit type, which they have, as words."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def values_of(words: np.ndarray, dtype: str) -> np.ndarray:
    """The values of words of a 16-bit type."""
    if dtype == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

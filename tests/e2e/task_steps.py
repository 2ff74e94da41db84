"""Steps of task programs as CUDA, and how tests run one: caches that hold what a test says, in pages that lie
anywhere, and nothing but NaN where no token is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import meshc
from meshc.backends.cuda import CpuMachine, LanguageModel
from meshc.backends.cuda.executor import FIRST, QUICK, Mode, headers
from meshc.backends.cuda.tasks.step import TaskGraph, step_of_tasks
from meshc.ir.clone import clone_module
from meshc.support.native import Toolchain

_NAN = {"f16": 0x7E5A, "bf16": 0x7FDA}


@dataclass(frozen=True)
class Step:
    """A step's program and its texts."""

    program: object
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The kernel."""
        return self.texts["step.cu"]

    def edited(self, old: str, new: str, place: int = 0) -> Step:
        """The same with the ``place``-th ``old`` of the kernel replaced."""
        parts = self.text.split(old)
        assert len(parts) > place + 1, f"there is no {old!r}"
        text = old.join(parts[: place + 1]) + new + old.join(parts[place + 1 :])
        return replace(self, texts={**self.texts, "step.cu": text})

    def with_blocks(self, blocks: int) -> Step:
        """The same, launched with so many blocks."""
        kernel = replace(self.program.kernels["step"], blocks=blocks)
        return replace(self, program=replace(self.program, kernels={"step": kernel}))


def step_of(
    model: str | Path, *, dtype="f16", capacity=64, batch=1, page=16, rows=16, tokens=32, parts=1, merge=False,
    device="h200", **options,
) -> Step:  # fmt: skip
    """The step of a model in a file."""
    graph = meshc.compile(
        str(model), dtype=dtype, compile_to="graph", phase="decode", seq=capacity, device=device, mesh="1x1",
        batch=batch, **options,
    ).modules["decode"]  # fmt: skip
    passes = meshc.parse_pipeline(
        f"expand-tasks{{rows={rows},tokens={tokens},parts={parts},merge={str(merge).lower()}}},place-tasks,meet,"
        "fold-scratch"
    )
    module = meshc.PassManager(passes).run(clone_module(graph))
    program, texts = step_of_tasks(TaskGraph(module, graph), "model", page)
    return Step(program, {**texts, **headers()})


@dataclass
class Run:
    """A step's model in the executor; ``names`` are the caches of the program by those of the test."""

    step: Step
    tensors: Mapping[str, np.ndarray]
    mode: Mode = FIRST
    toolchain: Toolchain = QUICK
    seed: int = 0

    def __post_init__(self) -> None:
        program = self.step.program
        self.machine = CpuMachine(program.kernels, self.step.texts, self.mode, self.toolchain)
        self.model = LanguageModel(program, self.machine, self.tensors)
        count = program.batch * program.capacity_pages
        self.pages = np.random.default_rng(self.seed).permutation(count).astype(np.int32)
        self.pages = self.pages.reshape(program.batch, -1)
        self.machine.write("pages", self.pages)
        self.dtype = next(iter(program.weights.values())).dtype

    def buffer(self, cache: str) -> str:
        """What the program calls a cache."""
        return cache.replace(".", "_")

    def places(self, cache: str, shape: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Where the elements of a cache [layers, requests, tokens, heads, lanes] lie in its pool."""
        pool = self.machine.arrays[self.buffer(cache)]
        page, lanes = pool.shape[-2:]
        layers, requests, tokens, heads, own = np.indices(shape, sparse=True)
        chunks = lanes // 8
        apart = next(n for n in (8, 4, 2, 1) if chunks % n == 0)
        chunk = (own // 8) ^ (tokens // (8 // apart) % apart)
        at = (self.pages[requests, tokens // page], heads, tokens % page, chunk * 8 + own % 8)
        return at if pool.ndim == 4 else (layers, *at)

    def give(self, caches: Mapping[str, np.ndarray], positions: Sequence[int]) -> None:
        """Fill the caches: as many tokens as a request has, and NaN behind them."""
        for cache, values in caches.items():
            pool = np.full_like(self.machine.arrays[self.buffer(cache)], _NAN[self.dtype])
            held = bits(values, self.dtype)
            for b, count in enumerate(positions):
                held[:, b, count:] = _NAN[self.dtype]
            pool[self.places(cache, values.shape)] = held
            self.machine.write(self.buffer(cache), pool)

    def cached(self, cache: str, shape: Sequence[int]) -> np.ndarray:
        """The bits of a cache as they are now."""
        return self.machine.arrays[self.buffer(cache)][self.places(cache, shape)]

    def logits(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """Logits of a step; a token may be -1, which is none."""
        self.machine.write("tokens", np.array(tokens, np.int32))
        self.machine.write("cached", np.array(positions, np.int32))
        self.machine.run(self.step.program.launches())
        return self.machine.read("logits")


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

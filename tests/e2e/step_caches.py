"""Caches of a step in the memory of the GPUs that run it, in pages that lie anywhere: rows that a
test gives, with nothing but NaN where no token is, and rows that a step left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import coded_caches
import numpy as np

from meshc.backends.cuda.gpu_shares import RankShare
from meshc.ir.ranks import RankPart

if TYPE_CHECKING:
    from task_steps import Step

    from meshc.backends.cuda import CpuMachine

HEADS = 2
"""The axis of heads among those of weights that give keys: layers, inputs, heads, lanes."""
NAN = {"f16": 0x7E5A, "bf16": 0x7FDA}


class Caches:
    """Those of one GPU."""

    def __init__(self, step: Step, machine: CpuMachine, pages: np.ndarray) -> None:
        self.step, self.machine, self.pages = step, machine, pages

    def dtype(self, cache: str) -> str:
        """The type of what one of them keeps."""
        return self.step.program.buffers[self.buffer(cache)].dtype

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
        if self.step.nhd:
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
        if self.step.coded:
            return coded_caches.give(self, caches, positions)
        for cache in caches:
            pool = self.machine.arrays[self.buffer(cache)]
            self.machine.write(self.buffer(cache), np.full_like(pool, NAN[self.dtype(cache)]))
        for cache, values in caches.items():
            pool = self.machine.arrays[self.buffer(cache)].copy()
            held = bits(values, self.dtype(cache))
            for b, count in enumerate(positions):
                held[:, b, count:] = NAN[self.dtype(cache)]
            pool[self.places(cache, values.shape)] = held
            self.machine.write(self.buffer(cache), pool)

    def held(self, cache: str, shape: Sequence[int]) -> np.ndarray:
        """The numbers of a cache as they are now."""
        if self.step.coded:
            return coded_caches.held(self, cache, shape)
        found = self.machine.arrays[self.buffer(cache)][self.places(cache, shape)]
        return values_of(found, self.dtype(cache))

    def put_rows(
        self, pool: np.ndarray, cache: str, shape: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Let ``pool``, what the memory of a cache was, have the rows at positions of requests as
        they are now."""
        now = self.machine.read(self.buffer(cache)).reshape(-1)
        if self.step.coded:
            places = coded_caches.places(self, cache, shape)
        else:
            each = np.broadcast_arrays(*self.places(cache, shape))
            places = (np.ravel_multi_index(each, pool.shape),)
        for where in places:
            for b, at in enumerate(positions):
                pool.reshape(-1)[where[:, b, at]] = now[where[:, b, at]]


@dataclass(frozen=True)
class DealtCaches:
    """Those of the GPUs of all ranks, each of which has some of the heads, as it has them of the
    weight that gives ``keys``; of one GPU for a ``share`` of None."""

    gpus: Sequence[Caches]
    share: RankShare | None
    keys: str = "wk"

    def give(self, caches: Mapping[str, np.ndarray], positions: Sequence[int]) -> None:
        """Fill the caches of each GPU, what is padding there with the last head again."""
        count = next(iter(caches.values())).shape[3]
        for gpu, heads in self._dealt(count):
            own = [count - 1 if head is None else head for head in heads]
            gpu.give({name: values[..., own, :] for name, values in caches.items()}, positions)

    def held(self, cache: str, shape: Sequence[int]) -> np.ndarray:
        """The numbers of a cache as they are now, which are the same wherever a head lies twice."""
        found, have = np.full(shape, np.nan), set[int]()
        for gpu, heads in self._dealt(shape[3]):
            part = gpu.held(cache, (*shape[:3], len(heads), shape[4]))
            for at, head in enumerate(heads):
                if head is None:
                    continue
                same = np.array_equal(found[..., head, :], part[..., at, :], equal_nan=True)
                assert same or head not in have, f"ranks keep different rows of head {head}"
                found[..., head, :] = part[..., at, :]
                have.add(head)
        assert len(have) == shape[3]
        return found

    def _dealt(self, heads: int) -> Iterator[tuple[Caches, list[int | None]]]:
        """The GPUs with those of so many ``heads`` that each has; None is padding."""
        dealt = self.share.dealt.items() if self.share else ()
        keys = (
            axis for name, axes in dealt if name.partition(".")[0] == self.keys for axis in axes
        )
        of_heads = next((axis for axis in keys if axis.axis == HEADS), None)
        for rank, gpu in enumerate(self.gpus):
            if of_heads is None:
                yield gpu, [*range(heads)]
                continue
            part = RankPart("own", "whole", of_heads.team, of_heads.copies)
            yield gpu, part.elements(rank, {"own": of_heads.own, "whole": heads})


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

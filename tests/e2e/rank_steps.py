"""Steps of task programs of several ranks, on GPUs in the executor, beside a decoder in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from drawn_decoders import Drawn
from step_caches import Caches, DealtCaches
from task_steps import Judge, Step, gpus_of, machine_of, pages_of

from meshc.backends.cuda import LanguageModel
from meshc.backends.cuda.executor import FIRST, QUICK, Mode
from meshc.support.native import Toolchain


class RankJudge(Judge):
    """Compares steps of a drawn decoder, dealt to several GPUs, with float64: from empty caches on
    each request reads one token after the other, at positions of its own."""

    @classmethod
    def of(
        cls,
        drawn: Drawn,
        seed: int,
        folder: Path,
        ranks: int,
        transport: str = "peers",
        **how: object,
    ) -> Self:
        """The judge of a decoder, which is compiled as :func:`task_steps.step_of` is told."""
        return super().of(drawn, seed, folder, ranks=ranks, transport=transport, **how)

    def check(
        self,
        step: Step | None = None,
        mode: Mode = FIRST,
        toolchain: Toolchain = QUICK,
        steps: int = 6,
    ) -> np.ndarray:
        """The logits of each step. AssertionError for others than those of float64."""
        given, drawn, decoder = step or self.step, self.drawn, self.drawn.decoder
        weights, tensors = self._weights()
        machine, pages = machine_of(given, mode, toolchain), pages_of(given, self.seed)
        model, gpus = LanguageModel(given.program, machine, tensors), gpus_of(machine)
        machine.write("pages", pages)
        held = [Caches(given, gpu, pages) for gpu in gpus]
        keys = dict(decoder.renamed).get("wk", "wk")
        dealt = DealtCaches(held, given.program.ranks, keys)
        shapes = decoder.cached(drawn.batch, drawn.capacity)
        dealt.give({name: np.zeros(shape) for name, shape in shapes.items()}, [0] * drawn.batch)
        caches = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        rng, found = np.random.default_rng(self.seed), []
        for n in range(steps):
            positions = np.array([max(n - b % 3, 0) for b in range(drawn.batch)])
            tokens = rng.integers(0, decoder.words, drawn.batch)
            logits, left = model.step(tokens, positions), self._left(dealt)
            self._agree(logits, left, caches, weights, tokens, positions)
            for name, cache in caches.items():
                for b, at in enumerate(positions):
                    cache[:, b, at] = left[name][:, b, at]
                same = np.array_equal(cache, left[name], equal_nan=True)
                assert same, "other rows were written"
            found.append(logits)
        assert all(gpu.read("met").tolist() == [0] for gpu in gpus)
        return np.array(found)

    def tokens(self, count: int = 6) -> list[int]:
        """Likeliest tokens behind a prompt."""
        decoder = self.drawn.decoder
        tensors = decoder.named(decoder.weights(self.seed, self.drawn.dtype))
        model = LanguageModel(self.step.program, machine_of(self.step), tensors)
        return [*model.generate([3, 14, 15, 9], count, lambda *_: None)]


def same(found: Sequence[np.ndarray]) -> bool:
    """Whether all runs gave the same bits."""
    first, *others = found
    return all((one == first).all() for one in others)

"""Steps of task programs of several ranks, on GPUs in the executor, beside a decoder in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from drawn_decoders import Drawn
from kept_weights import kept_weights
from task_steps import _HOW, Step, bound_of, device_of, step_of

from meshc.backends.cuda import CpuNode, LanguageModel
from meshc.backends.cuda.executor import FIRST, QUICK, Library, Mode, headers
from meshc.support.native import Toolchain


@dataclass
class RankJudge:
    """Compares steps of a drawn decoder, dealt to ``ranks`` GPUs, with float64: from empty caches
    on each request reads one token after the other, at positions of its own."""

    drawn: Drawn
    seed: int
    ranks: int
    step: Step

    @classmethod
    def of(
        cls,
        drawn: Drawn,
        seed: int,
        folder: Path,
        ranks: int,
        transport: str = "peers",
        keep: str = "",
        coded: bool = False,
    ) -> RankJudge:
        """The judge of a decoder, which is compiled, perhaps with weights that stay quantised or
        caches that are coded."""
        model = folder / "drawn.mesh"
        model.write_text(drawn.decoder.text())
        how = {name: getattr(drawn, name) for name in _HOW}
        device = device_of(drawn.cores, folder)
        how |= {"ranks": ranks, "transport": transport, "keep": keep, "coded": coded}
        step = step_of(model, device=device, **how)
        return cls(drawn, seed, ranks, step)

    def check(
        self,
        step: Step | None = None,
        mode: Mode = FIRST,
        toolchain: Toolchain = QUICK,
        steps: int = 6,
    ) -> np.ndarray:
        """The logits of each step. AssertionError for others than those of float64."""
        drawn, decoder, dtype = self.drawn, self.drawn.decoder, self.drawn.dtype
        weights, given = decoder.weights(self.seed, dtype), step or self.step
        node = CpuNode(given.program.kernels, given.texts, self.ranks, mode, toolchain)
        own = {name: given.texts[name] for name in headers()}
        if own != headers():
            made = Library(given.text, own, toolchain)
            for gpu in node.gpus:
                gpu._libraries["step"] = made
        table = dict(decoder.renamed).get("embedding", "embedding")
        tensors = kept_weights(given.program, decoder.named(weights), self.seed, table)
        model = LanguageModel(given.program, node, tensors)
        shapes = decoder.cached(drawn.batch, drawn.capacity)
        caches = {name: np.zeros(shape) for name, shape in shapes.items()}
        rng, found = np.random.default_rng(self.seed), []
        for n in range(steps):
            positions = [max(n - b % 3, 0) for b in range(drawn.batch)]
            tokens = rng.integers(0, decoder.words, drawn.batch)
            logits = model.step(tokens, positions)
            before = {name: cache.copy() for name, cache in caches.items()}
            given_to = tokens, np.array(positions), dtype
            wanted = decoder.step(weights, caches, *given_to)
            error = np.abs(logits - wanted).max() / np.abs(wanted).max()
            bound = bound_of(drawn, logits, wanted, weights, before, *given_to)
            assert error <= bound, f"logits of step {n} are {error:.1e} from those of float64"
            found.append(logits)
        assert all(gpu.read("met").tolist() == [0] for gpu in node.gpus)
        return np.array(found)

    def tokens(self, count: int = 6) -> list[int]:
        """Likeliest tokens behind a prompt."""
        program, texts = self.step.program, self.step.texts
        node = CpuNode(program.kernels, texts, self.ranks, FIRST, QUICK)
        decoder = self.drawn.decoder
        tensors = decoder.named(decoder.weights(self.seed, self.drawn.dtype))
        model = LanguageModel(program, node, tensors)
        return [*model.generate([3, 14, 15, 9], count, lambda *_: None)]


def same(found: Sequence[np.ndarray]) -> bool:
    """Whether all runs gave the same bits."""
    first, *others = found
    return all((one == first).all() for one in others)

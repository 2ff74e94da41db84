"""Prompts that a kernel of tasks reads, and how tests judge them: a step behind a prompt and all
that is cached of it, beside NumPy in float64, which reads the prompt token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import coded_caches
import numpy as np
from drawn_decoders import Drawn
from kept_weights import kept_weights
from step_caches import NAN, values_of
from task_steps import BOUNDS, Run, Step, device_of

import meshc
from meshc.backends.cuda.executor import FIRST, QUICK, Mode, headers
from meshc.backends.cuda.tasks.step import TaskGraph, step_of_tasks
from meshc.ir.clone import clone_module
from meshc.support.native import Toolchain

TOKENS = 16
_ULP = {"f16": 2.0**-10, "bf16": 2.0**-7}


@dataclass
class PromptJudge:
    """Compares prompts of a drawn decoder with float64. They are those of one request, among whose
    pages there is nothing but NaN where no token is."""

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
        long: int = 0,
        coded: bool = False,
        keep: str = "",
        kv_layout: str = "",
    ) -> PromptJudge:
        """The judge of a decoder, which is compiled; prompts are read by tasks of 16 tokens, or of
        so many with left sides of products in memory. Caches may be ``coded`` and lie as
        ``kv_layout`` says, and weights that can stay quantised are in the format ``keep``."""
        model, device = folder / "drawn.mesh", device_of(drawn.cores, folder)
        model.write_text(drawn.decoder.text())

        def tasks(phase: str, before: str) -> TaskGraph:
            graph = meshc.compile(
                str(model), dtype=drawn.dtype, compile_to="graph", phase=phase, seq=drawn.capacity,
                device=device, batch=drawn.batch if phase == "decode" else 1,
            ).modules[phase]  # fmt: skip
            if kv_layout:
                graph.options["kv_layout"] = kv_layout
            before += ",code-caches" if coded else ""
            graph = meshc.PassManager(meshc.parse_pipeline(before)).run(graph)
            grain = f"rows={drawn.rows},tokens={drawn.tokens},parts={drawn.parts}"
            grain += f",merge={str(drawn.merge).lower()}"
            meet = drawn.meet
            if phase == "prefill" and long:
                grain, meet = f"rows={drawn.rows},tokens={drawn.tokens},columns=true", "counter"
            keeping = f'stream-quantised{{formats=["all={keep}"]}},' if keep else ""
            passes = meshc.parse_pipeline(
                f"expand-tasks{{{grain}}},{keeping}place-tasks,meet{{kind={meet}}},fold-scratch"
            )
            return TaskGraph(meshc.PassManager(passes).run(clone_module(graph)), graph)

        decode = tasks("decode", "canonicalize")
        prompts = tasks("prefill", f"chunk-prompts{{most={long or TOKENS}}}")
        program, texts = step_of_tasks(decode, "model", drawn.page, prompts=[prompts])
        drawn = replace(drawn, decoder=replace(drawn.decoder, coded=True)) if coded else drawn
        return cls(drawn, seed, Step(program, {**texts, **headers()}))

    def check(
        self,
        length: int,
        step: Step | None = None,
        mode: Mode = FIRST,
        toolchain: Toolchain = QUICK,
    ) -> None:
        """Read a prompt of so many tokens. AssertionError for other logits than those of float64,
        other rows in the caches, or more of them."""
        drawn, decoder, dtype = self.drawn, self.drawn.decoder, self.drawn.dtype
        weights = decoder.weights(self.seed, dtype)
        table = dict(decoder.renamed).get("embedding", "embedding")
        tensors = kept_weights(self.step.program, decoder.named(weights), self.seed, table)
        run = Run(step or self.step, tensors, mode, toolchain, self.seed)
        rng = np.random.default_rng(self.seed)
        request = self.seed % drawn.batch
        prompt = [int(token) for token in rng.integers(0, decoder.words, length)]
        shapes = decoder.cached(drawn.batch, drawn.capacity)
        for pool in {run.buffer(name) for name in shapes}:
            nothing = coded_caches.NONE if run.step.coded else NAN[dtype]
            run.machine.write(pool, np.full_like(run.machine.arrays[pool], nothing))
        found = run.model.prefill(prompt, request)
        caches = {name: np.zeros(shape) for name, shape in shapes.items()}
        tokens, positions = np.zeros((2, drawn.batch), int)
        left = (
            {name: run.held(name, shape) for name, shape in shapes.items()}
            if run.step.coded
            else {}
        )
        for at, token in enumerate(prompt):
            tokens[request], positions[request] = token, at
            given = weights, caches, tokens, positions, dtype
            if not run.step.coded:
                wanted = decoder.step(*given)[request]
                continue
            # One element that is rounded the other way moves more than all else: see check_rows.
            own = {name: self._in_order(name, rows) for name, rows in left.items()}
            wanted = decoder.step(*given, own)[request]
            for name, cache in caches.items():
                row = own[name][:, request, at]
                coded_caches.check_rows(row, cache[:, request, at], True)
                cache[:, request, at] = row
        self._close(found, wanted, BOUNDS[dtype, True])
        for name, cache in caches.items():
            self._cached(run, name, cache[..., self._order(name)], request, length)
        assert run.machine.read("met").tolist() == [0]

    def _in_order(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Rows of a cache with lanes in the order of the model."""
        found = np.empty_like(rows)
        found[..., self._order(name)] = rows
        return found

    def _order(self, name: str) -> np.ndarray:
        """The lanes of a row of a cache in the order in which they lie: in pages of others in that
        of the model."""
        order = self.drawn.decoder.stored(name)
        return np.arange(len(order)) if self.step.nhd else order

    def _cached(self, run: Run, name: str, wanted: np.ndarray, request: int, length: int) -> None:
        """The rows of the prompt, and of nothing behind it; the other requests have the row of
        their token of the step behind the prompt, if a step was made."""
        if run.step.coded:
            found = run.held(name, wanted.shape)[:, request, length:]
            assert np.isnan(found).all(), "a position behind the prompt was written"
            return
        dtype, words = self.drawn.dtype, run.machine.read(run.buffer(name))
        places = np.broadcast_arrays(*run.places(name, wanted.shape))
        own = [words[tuple(place[:, request, at] for place in places)] for at in range(length)]
        bound = BOUNDS[dtype, True] + _ULP[dtype]
        for at, row in enumerate(own):
            self._close(values_of(row, dtype), wanted[:, request, at], bound)
        for at in range(length, self.drawn.capacity):
            behind = words[tuple(place[:, request, at] for place in places)]
            assert (behind == NAN[dtype]).all(), f"position {at} was written"

    def _close(self, found: np.ndarray, wanted: np.ndarray, bound: float) -> None:
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        self.worst = max(self.worst, float(error))
        assert error <= bound, f"{error:.1e} from float64"


def lengths(capacity: int, seed: int) -> Sequence[int]:
    """Two lengths of prompts: one or more chunks, whole ones or not, or no chunk at all."""
    drawn = np.random.default_rng([seed, 5]).permutation([1, 2, 3, 5, 15, 16, 17, 18, 33, 34, 47])
    found = [int(n) for n in drawn if n <= capacity]
    return [found[0], capacity] if capacity <= 64 and seed % 3 == 0 else found[:2]

"""Runs of drawn models with drawn options, from the compiler's front to logits: families, sizes,
encodings of weights and caches, batches, prompts in chunks, GPUs, mixed launches and steps that are
cut, all at once, in the executor, beside NumPy in float64."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import coded_caches
import numpy as np
from drawn_decoders import Drawn, drawn_decoder, quantised_decoder
from float64_decoders import Left, rounded
from kept_weights import kept_weights
from latent_decoders import drawn_latent_decoder
from step_caches import Caches, DealtCaches
from task_steps import BOUNDS, Step, device_of, gpus_of, machine_of
from turned_sides import NOISES, OF_LARGE_SCORES, Measures, nearest

import meshc
from meshc.backends.cuda import LanguageModel, from_json
from meshc.backends.cuda.executor import FIRST, QUICK, Mode
from meshc.backends.cuda.mixed import MixedModel
from meshc.backends.cuda.program import KERNELS, StepProgram
from meshc.support.native import Toolchain

UNIT = {"f16": 2.0**-11, "bf16": 2.0**-8}
ROUNDINGS = 8, 12
"""Of a layer in kernels of many tokens, on one GPU and on several: see ``test_cuda_prompts``."""
STEPS, TOKENS, MOST_EXACT, LOGITS = 2, 16, 4, "logits"
"""Behind what is read; tokens that tasks read at once; those whose left sides are two values."""


@dataclass(frozen=True)
class DrawnRun:
    """A decoder, the format of its weights, and the options that it is compiled with. ``starts``
    has how many tokens each request has cached at first, ``reads`` how many it reads of a prompt,
    or of each of several launches that mix requests."""

    decoder: Any
    form: str
    options: Mapping[str, Any]
    starts: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]

    @property
    def dtype(self) -> str:
        """The type of activations, and of weights that are not quantised."""
        return str(self.options["dtype"])


def drawn_run(seed: int) -> DrawnRun:
    """The ``seed``-th run."""
    rng = random.Random(f"run {seed}")
    number = rng.randrange(1 << 20)
    family = rng.choice(["dense", "dense", "latent", "experts", "experts"])
    form, drawn = "", drawn_decoder(number)
    if rng.random() < 0.65:
        drawn, form = quantised_decoder(number)
    decoder = _of_family(rng, family, number, drawn)
    how = rng.choice(["alone", "alone", "gpus", "mixed", "mixed", "cut"])
    # Of half of the mixtures prompts of 64 tokens and more, whose left sides come through the ring.
    long = rng.random() < (0.5 if family == "experts" else 0.2)
    capacity = rng.choice([130, 140, 161] if long else [9, 24, 33, 50, 70])
    options = {"dtype": drawn.dtype, "seq": capacity, "page": drawn.page, "batch": drawn.batch}
    if family != "latent" and rng.random() < 0.35:
        options["kv_dtype"] = "fp8_e4m3"
    lies = family != "latent" and ("kv_dtype" not in options or decoder.lanes % 16 == 0)
    if how != "gpus" and lies and rng.random() < 0.25:
        options["kv_layout"] = "nhd"
    if how == "gpus":
        options |= {"gpus": 2, "collectives": rng.choice(["peers", "multimem"])}
    if how == "cut":
        options["cut"] = "all"
    if how == "mixed":
        batch = rng.choice([1, 2, 3, 4, 7])
        tokens = max(rng.choice([2, 4, 5, 8, 16, 16, 31, 64]), batch)
        options |= {"serving": "chunks", "batch": batch, "batch_tokens": tokens}
    elif not form and "kv_layout" not in options and rng.random() < 0.25:
        options["chunk"] = rng.choice([8, 16, 24, 64])
    return DrawnRun(decoder, form, options, *_lengths(rng, options, long))


def _of_family(rng: random.Random, family: str, number: int, drawn: Drawn) -> Any:
    decoder = drawn.decoder
    if family == "latent":
        sizes = {"hidden": decoder.hidden, "features": decoder.features}
        return replace(drawn_latent_decoder(number).decoder, **sizes)
    # What the last layer attends is no part of what is cached of a prompt.
    decoder = replace(decoder, layers=max(decoder.layers, 2))
    if family == "experts":
        experts = rng.choice([2, 3, 5, 6, 8])
        own = {"chosen": rng.randint(1, min(experts, 4)), "normalised": rng.random() < 0.5}
        biases = decoder.biases.replace("f", "")
        decoder = replace(decoder, experts=experts, biases=biases, **own)
    return decoder


def _lengths(
    rng: random.Random, options: Mapping[str, Any], long: bool
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """What requests have cached and what they read; each has room for some more steps."""
    room, batch = options["seq"] - STEPS, options["batch"]
    rounds = rng.choice([1, 2, 3]) if "batch_tokens" in options else 1
    left = [room] * batch
    starts = [rng.choice([0, 0, 1, 15, 16, 17, 33, room - 1, rng.randrange(room)]) for _ in left]
    starts = [min(start, room) for start in starts]
    readers = rng.sample(range(batch), min(batch, 2))
    if long:
        starts[readers[0]] = rng.choice([0, 0, 1, 20])
    left = [room - start for start in starts]
    reads = []
    for turn in range(rounds):
        counts = [0] * batch
        for request in readers:
            counts[request] = rng.choice([1, 2, 3, 7, 15, 16, 17, 18, 34])
        if long and turn == 0:
            counts[readers[0]] = rng.choice([64, 65, 66, 80, 97])
        if rounds > 1 or "batch_tokens" in options:
            counts = [n or rng.choice([0, 1, 1, 1, 2]) for n in counts]
        counts = [min(n, own) for n, own in zip(counts, left, strict=True)]
        left = [own - n for own, n in zip(left, counts, strict=True)]
        reads.append(tuple(counts))
    return tuple(starts), tuple(reads)


class Driven:
    """The program of a run on one GPU or on two, each of which has some of the heads of caches;
    pages lie anywhere."""

    def __init__(
        self, run: DrawnRun, step: Step, weights: dict, seed: int, mode: Mode, toolchain: Toolchain
    ) -> None:
        self.step, program = step, step.program
        table = dict(run.decoder.renamed).get("embedding", "embedding")
        named = run.decoder.named(weights)
        tensors = kept_weights(program, named, seed, table)
        for name in decoded_too(program) - {table}:
            named[name][...] = rounded(named[name], run.dtype)
        machine = machine_of(step, mode, toolchain)
        requests = run.options["batch"]
        own = -(-run.options["seq"] // program.page)
        pages = np.random.default_rng(seed).permutation(requests * own).astype(np.int32)
        pages = pages.reshape(requests, own)
        if program.mixes:
            self.model = MixedModel(program, machine, tensors)
            for request, row in enumerate(pages):
                self.model.lay(request, row)
        else:
            self.model = LanguageModel(program, machine, tensors)
            machine.write("pages", pages)
        gpus = [Caches(step, gpu, pages) for gpu in gpus_of(machine)]
        self.caches = DealtCaches(gpus, program.ranks)


def decoded_too(program: StepProgram) -> set[str]:
    """Weights that some kernels of a program have decoded, rounded, and others as codes."""
    coded, plain = (
        {s for w in program.weights.values() for s in w.sources if bool(w.codes) == kept}
        for kept in (True, False)
    )
    return {name.rsplit(".", 2)[0] for name in coded} & plain


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, as a part of the largest number that is wanted."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def _part(errors: Mapping[str, float], bounds: Mapping[str, float]) -> float:
    """The largest part that one of ``errors`` is of its bound."""
    return max(error / bounds[name] for name, error in errors.items())


@dataclass(frozen=True)
class Read:
    """A token that a launch of so many ``tokens`` read, at a position of a request, and the logits
    behind it, if there are any."""

    request: int
    position: int
    token: int
    tokens: int
    logits: np.ndarray | None = None


@dataclass
class Wanted:
    """Logits and rows of caches behind a token, and how near a choice of experts was."""

    logits: np.ndarray
    rows: dict[str, np.ndarray]
    nearest: float


@dataclass
class RunJudge:
    """Compares a run with float64: logits, and the rows of the caches, behind which nothing is
    written. Each token attends to the rows that kernels left, which are held against its own.
    Tokens that fail, and for which rounding may have chosen another expert, are ``passed`` over;
    the ``worst`` error of others is that part of its bound."""

    run: DrawnRun
    seed: int
    step: Step
    worst: float = 0.0
    compared: int = 0
    passed: int = 0

    @classmethod
    def of(cls, run: DrawnRun, seed: int, folder: Path) -> RunJudge:
        """The judge of a run, which is compiled for a GPU of few blocks. Raises MeshcError."""
        model = folder / "drawn.mesh"
        model.write_text(run.decoder.text())
        device = device_of([3, 5, 8, 13][seed % 4], folder)
        keep = (f"all={run.form}",) if run.form else ()
        given = {"target": "cuda", "device": device, "keep_quantised": keep, **run.options}
        made = meshc.compile(str(model), **given)
        if "kv_dtype" in run.options:
            run = replace(run, decoder=replace(run.decoder, coded=True))
        return cls(run, seed, Step(from_json(made.files["manifest.json"]), dict(made.files)))

    def check(self, mode: Mode = FIRST, toolchain: Toolchain = QUICK) -> None:
        """AssertionError for other logits than those of float64, other rows, or more of them."""
        run, rng = self.run, np.random.default_rng(self.seed)
        self.weights = run.decoder.weights(self.seed, run.dtype)
        driven = Driven(run, self.step, self.weights, self.seed, mode, toolchain)
        shapes = run.decoder.cached(run.options["batch"], run.options["seq"])
        self.caches = {
            name: coded_caches.drawn(rng, shape)
            if driven.step.coded
            else rounded(rng.standard_normal(shape), run.dtype)
            for name, shape in shapes.items()
        }
        self.cached = [*run.starts]
        held = {name: c[..., self._order(driven, name)] for name, c in self.caches.items()}
        driven.caches.give(held, self.cached)
        (self._mixed if driven.step.program.mixes else self._prompts_and_steps)(driven, rng)
        # A prompt's step leaves a row behind those of other requests.
        more = not driven.step.program.mixes
        for name, shape in shapes.items():
            found = driven.caches.held(name, shape)
            for request, count in enumerate(self.cached):
                behind = found[:, request, count + more :]
                assert np.isnan(behind).all(), "a position behind the last token was written"

    def _mixed(self, driven: Driven, rng: np.random.Generator) -> None:
        launches = [*self.run.reads, *[(1,) * len(self.cached)] * STEPS]
        for counts in filter(any, launches):
            texts = {r: self._tokens(rng, count) for r, count in enumerate(counts) if count}
            asked = {request: (text, self.cached[request]) for request, text in texts.items()}
            found, size = driven.model.verify(asked), driven.step.program.tokens
            read = [
                Read(request, at + n, token, size, found[request][n])
                for request, (text, at) in asked.items()
                for n, token in enumerate(text)
            ]
            self._judge(driven, read, size > MOST_EXACT)

    def _prompts_and_steps(self, driven: Driven, rng: np.random.Generator) -> None:
        batch, chunk = len(self.cached), TOKENS if driven.step.program.prefills else 1
        for request, count in enumerate(self.run.reads[0]):
            if count:
                text, at = self._tokens(rng, count), self.cached[request]
                logits = driven.model.prefill(text, request, self.cached, at)
                size = max(batch, chunk)
                read = [Read(request, at + n, token, size) for n, token in enumerate(text)]
                read[-1] = replace(read[-1], tokens=batch, logits=logits)
                self._judge(driven, read, size > MOST_EXACT)
        for _ in range(STEPS):
            text, places = self._tokens(rng, batch), [*self.cached]
            found = driven.model.step(text, places)
            given = zip(range(batch), places, text, [batch] * batch, found, strict=True)
            self._judge(driven, [Read(*one) for one in given], batch > MOST_EXACT)

    def _tokens(self, rng: np.random.Generator, count: int) -> list[int]:
        return [int(token) for token in rng.integers(0, self.run.decoder.words, count)]

    def _judge(self, driven: Driven, read: Sequence[Read], many: bool) -> None:
        """What was ``read`` by one launch or some, one of them of ``many`` tokens."""
        left, wanted = {}, []
        for name, cache in self.caches.items():
            left[name] = np.empty_like(cache)
            left[name][..., self._order(driven, name)] = driven.caches.held(name, cache.shape)
        for one in read:
            wanted.append(self._token(left, one))
            self.cached[one.request] = one.position + 1
            for name, cache in self.caches.items():
                cache[:, one.request, one.position] = left[name][:, one.request, one.position]
        bound = self._bound(many)
        size = max(np.abs(own.logits).max() for own in wanted)
        bounds = dict.fromkeys(left, bound + 2 * UNIT[self.run.dtype]) | {LOGITS: bound}
        for one, own in zip(read, wanted, strict=True):
            errors = self._errors(left, one, own, many, size)
            far = _part(errors, bounds)
            if far > 1 and one.tokens > MOST_EXACT:
                far = self._turned(left, one, bounds, size)
            if far > 1 and own.nearest < 4 * bound:
                self.passed += 1
                continue
            self.worst = max(self.worst, far)
            self.compared += len(errors)
            assert far <= 1, f"{errors} from float64, more than {bounds}"

    def _errors(
        self, left: Mapping[str, np.ndarray], read: Read, wanted: Wanted, many: bool, size: float
    ) -> dict[str, float]:
        """How far rows that kernels ``left`` are from those wanted, of which ones that are coded
        are neighbours or infinitely far, and logits, as a part of ``size``."""
        errors = self._errors_of_rows(left, read, wanted, many)
        if read.logits is not None:
            assert np.isfinite(read.logits).all(), "logits are no numbers"
            errors[LOGITS] = float(np.abs(read.logits - wanted.logits).max() / size)
        return errors

    def _turned(
        self, left: Mapping[str, np.ndarray], read: Read, bounds: Mapping[str, float], size: float
    ) -> float:
        """The largest part of its bound of a token's errors beside float64 of whose left sides some
        are rounded the other way: see :mod:`turned_sides`."""

        def measure(sides: Left) -> Measures:
            wanted = self._token(left, read, sides)
            rows = (left[name][:, read.request, read.position] for name in wanted.rows)
            other = sum((a != b).sum() for a, b in zip(rows, wanted.rows.values(), strict=True))
            return other, _part(self._errors(left, read, wanted, True, size), bounds)

        noises = *NOISES, *OF_LARGE_SCORES
        return nearest(measure, self.run.dtype, read.tokens, 1.0, noises)

    def _errors_of_rows(
        self, left: Mapping[str, np.ndarray], read: Read, wanted: Wanted, many: bool
    ) -> dict[str, float]:
        found = {name: cache[:, read.request, read.position] for name, cache in left.items()}
        assert not any(np.isnan(row).any() for row in found.values()), "a row was not written"
        if "kv_dtype" not in self.run.options:
            return {name: distance(row, wanted.rows[name]) for name, row in found.items()}
        errors = dict.fromkeys(found, 0.0)
        for name, row in found.items():
            try:
                coded_caches.check_rows(row, wanted.rows[name], many)
            except AssertionError:
                errors[name] = float("inf")
        return errors

    def _token(
        self, left: Mapping[str, np.ndarray], read: Read, sides: Left | None = None
    ) -> Wanted:
        """What float64 has of a token that attends to the rows which kernels ``left``, with left
        ``sides`` that are rounded as those of its launch."""
        request, at = [read.request], read.position
        own = {name: cache[:, request].copy() for name, cache in self.caches.items()}
        rows = {name: cache[:, request] for name, cache in left.items()}
        sides = sides or Left(self.run.dtype, read.tokens)
        given = self.weights, own, np.array([read.token]), np.array([at]), self.run.dtype
        (logits,) = self.run.decoder.step(*given, rows, sides)
        return Wanted(logits, {name: cache[:, 0, at] for name, cache in own.items()}, sides.nearest)

    def _bound(self, many: bool) -> float:
        """That of what is read; of kernels of many tokens the root of the number of roundings."""
        bound, program = BOUNDS[self.run.dtype, many], self.step.program
        if not many or all(reader.inputs != KERNELS for reader in program.prefills):
            return bound
        roundings = ROUNDINGS[program.ranks is not None] * self.run.decoder.layers
        return max(bound, roundings**0.5 * UNIT[self.run.dtype])

    def _order(self, driven: Driven, cache: str) -> np.ndarray:
        """The lanes of a row of a cache in the order in which they lie."""
        order = self.run.decoder.stored(cache)
        return np.arange(len(order)) if driven.step.nhd else order

"""Whole small checkpoints of all families, with any options on any target, beside the interpreter
of their graphs in float64 and what transformers gave for their prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from bounded import Arithmetic, Bounded, rounded
from building import Drawing
from draw_options import OF_TARGET, flags_of, option_features, with_room

import meshc
from meshc.driver import open_weights
from meshc.driver.models import load_any
from meshc.ir.clone import clone_module
from meshc.support.diagnostics import Diagnostics

DATA = Path(__file__).parents[1] / "data"
FOLDERS = sorted(
    path.parent.relative_to(DATA).as_posix() for path in DATA.glob("tiny*/*/expected.json")
)
"""All that there is an answer of transformers for."""
FLOOR = {"f32": 2e-4, "f16": 2.0**-8, "bf16": 2.0**-5}
"""How far logits may be off at least, as a part of the largest one: by what four roundings of the
model's type are, and of f32 by what tests of families allow."""
TIMES = 4
"""Or by so many times what logits move where each weight is off by up to a rounding."""
OFTEN, OF_EXPERTS = 2, 12
"""So often weights are moved. Of experts that are chosen by nearly the same number either may be,
which one time out of two does not show."""
NEAR = 2e-4
"""How far the interpreter may be from transformers, which computes in f32."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in ``folder`` of the tests' data, compiled for ``target`` with ``options`` and
    run on prompts of up to ``prompt`` tokens, that of transformers among them."""

    folder: str
    target: str
    options: dict[str, Any]
    seed: int
    prompt: int
    steps: int
    origin: str = ""
    form: str = "answers"
    order: bool = False
    softmax: str = ""

    @property
    def place(self) -> Path:
        """Where it lies."""
        return DATA / self.folder

    @property
    def kinds(self) -> Arithmetic:
        """The types that it computes with."""
        return Arithmetic(self.options["dtype"])

    @property
    def group(self) -> str:
        """What it is counted as."""
        return f"{self.target} checkpoints"

    def text(self) -> str:
        """Which checkpoint it is."""
        return f"# tests/data/{self.folder}\n"

    def words(self) -> str:
        """The command line that compiles it, and what it is run on."""
        flags = flags_of(self.options)
        runs = f"answers, {self.steps} steps, prompt {self.prompt}, numbers of seed {self.seed}"
        return (
            f"meshc compile {self.folder} --target {self.target} {flags}\n# {runs}  ({self.origin})"
        )

    def features(self) -> set[str]:
        """What takes part, in words, for counting."""
        found = option_features(self.options) | {f"target {self.target}", "form checkpoint"}
        return found | {f"family {family_of(self.folder)} on {self.target}"}

    def prompts(self) -> list[list[int]]:
        """That of transformers and others, not always as many as there is room for."""
        random = np.random.default_rng([self.seed, 13])
        most = int(self.options.get("batch", 1))
        if most == 1 and "serving" not in self.options:
            most = 2  # one after the other
        facts = _facts(self.folder)
        least = _least(self.folder)
        vocabulary = len(facts["prompt_logits"])
        lengths = random.integers(least, max(self.prompt, least) + 1, random.integers(0, most))
        others = [random.integers(0, vocabulary, n).tolist() for n in lengths]
        at = int(random.integers(0, len(others) + 1))
        return [*others[:at], [int(i) for i in facts["prompt_ids"]], *others[at:]]

    def given(self) -> dict[str, np.ndarray]:
        """Its weights, which are of the type that it computes with."""
        return _weights(self.folder, self.options["dtype"], self.options.get("layers"))

    def expected(self, chosen: list[int] | None) -> list[list[Bounded]]:
        """The logits of each step, of all prompts side by side; ``chosen`` are the tokens."""
        prompts = self.prompts()
        tokens = chosen or [0] * (len(prompts) * self.steps)
        rows = []
        for number, prompt in enumerate(prompts):
            behind = tokens[number :: len(prompts)][: self.steps - 1]
            rows.append(self._rows([*prompt, *behind], len(prompt) - 1))
        return [[own[step] for own in rows] for step in range(self.steps)]

    def _rows(self, ids: list[int], first: int) -> list[Bounded]:
        """Logits behind the tokens from number ``first`` on, and how far they may be off."""
        kind, layers = self.options["dtype"], self.options.get("layers")
        plain = _graph(self.folder, layers, self.options["seq"])
        graph = _coded(plain) if "kv_dtype" in self.options else plain
        exact = _logits(graph, self.given(), ids)[first:]
        random = np.random.default_rng([self.seed, 19])
        moved = np.zeros_like(exact)
        for _ in range(OF_EXPERTS if _experts(self.folder) else OFTEN):
            off = {
                name: values * (1 + random.uniform(-1, 1, values.shape) * self.kinds.unit)
                for name, values in self.given().items()
            }
            other = _logits(graph, off, ids)[first:]
            moved = np.maximum(moved, np.abs(other - exact))
        if graph is not plain:  # rows of caches may be rounded otherwise, which moves less than all
            other = _logits(plain, self.given(), ids)[first:]
            moved = np.maximum(moved, np.abs(other - exact) / TIMES)
        if layers is None and kind == "f32":
            _check_transformers(self.folder, ids[: first + 1], exact[0])
        size = np.abs(exact).max()
        error = max(FLOOR[kind] * size, TIMES * moved.max())
        return [
            Bounded(("B", "L", "V"), row.reshape(1, 1, -1), np.full((1, 1, row.size), error))
            for row in exact
        ]


def draw_checkpoint(draw: Drawing, seed: int, index: int) -> Checkpoint:
    """A checkpoint and how it is compiled. Cases in a row are of one after the other."""
    folder = FOLDERS[(index + seed) % len(FOLDERS)]
    target = draw.weighted({"python": 50, "csl": 20, "cuda": 30})
    experts = _experts(folder)
    options = OF_TARGET[target](draw, experts)
    kinds = {"python": {"f32": 60, "f16": 25, "bf16": 15}, "csl": {"f32": 60, "f16": 40}}
    options["dtype"] = draw.weighted(kinds.get(target, {"f16": 60, "bf16": 40}))
    own = len(_facts(folder)["prompt_ids"])
    prompt, steps = max(own, draw.number(1, 16)), draw.number(1, 4)
    if draw.chance(10):
        options["layers"] = 1
    tokens = prompt + steps - 1 + options.get("drafts", 0) + draw.of([0, 0, 1, 5])
    options = with_room(options, tokens)
    origin = f"--seed {seed} --case {index}"
    return Checkpoint(folder, target, options, draw.number(0, 2**31 - 1), prompt, steps, origin)


def _experts(folder: str) -> bool:
    return "experts" in folder or "gpt_oss" in folder


@cache
def _facts(folder: str) -> dict[str, Any]:
    """Prompt, tokens and logits of transformers."""
    found: dict[str, Any] = json.loads((DATA / folder / "expected.json").read_text())
    return found


def family_of(folder: str) -> str:
    """The type of model that its config names."""
    return str(json.loads((DATA / folder / "config.json").read_text())["model_type"])


def _least(folder: str) -> int:
    """Tokens that a prompt has at least: programs of long contexts refuse others."""
    return len(_facts(folder)["prompt_ids"]) if "long" in folder else 1


@cache
def _weights(folder: str, dtype: str, layers: int | None) -> dict[str, np.ndarray]:
    loaded = load_any(str(DATA / folder), Diagnostics())
    assert loaded.weights is not None
    stored = open_weights(loaded.weights, loaded.config, layers, Diagnostics())
    return {name: rounded(np.asarray(values, np.float32), dtype) for name, values in stored.items()}


@cache
def _graph(folder: str, layers: int | None, seq: int) -> meshc.Module:
    how = {"compile_to": "graph", "dtype": "f32", "phase": "decode"}
    return meshc.compile(str(DATA / folder), seq=seq, layers=layers, **how).modules["decode"]


def _coded(graph: meshc.Module) -> meshc.Module:
    """The same with caches of floats of eight bits."""
    return meshc.PassManager(meshc.parse_pipeline("code-caches")).run(clone_module(graph))


def _logits(graph: meshc.Module, weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Behind each of the tokens, one step after the other."""
    session = meshc.Session(graph, weights)
    found = []
    for position, token in enumerate(ids):
        (row,) = session.step({"tokens": np.array([[token]])}, {"pos": position})
        found.append(np.asarray(row, np.float64).ravel())
    return np.array(found)


def _check_transformers(folder: str, prompt: list[int], logits: np.ndarray) -> None:
    """Raise AssertionError where the interpreter says something else than transformers."""
    facts = _facts(folder)
    if prompt != [int(i) for i in facts["prompt_ids"]]:
        return
    wanted = np.array(facts["prompt_logits"])
    off = np.abs(logits - wanted).max() / np.abs(wanted).max()
    assert off <= NEAR, f"the graph of {folder} is {off:.2g} from transformers"


def simpler(case: Checkpoint) -> list[Checkpoint]:
    """The same with an option less, or fewer tokens."""
    fewer = [
        replace(case, options={n: v for n, v in case.options.items() if n != name})
        for name in case.options
        if name not in ("seq", "mesh", "dtype", "device")
    ]
    return [*fewer, *([replace(case, steps=case.steps - 1)] if case.steps > 1 else [])]

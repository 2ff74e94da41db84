"""A cell of the table: compile a checkpoint for a target and run it as the column says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from family_outcomes import EQUAL, Outcome, Refused

import meshc
from meshc.backends.python import load_program
from meshc.driver import Compiled
from meshc.frontend.checkpoints import open_checkpoint, read_config
from meshc.frontend.families import family_named, family_names
from meshc.interp.graph import run_graph
from meshc.support.diagnostics import Diagnostic, MeshcError
from meshc.support.output import write_directory

DATA = Path(__file__).parents[1] / "data"
OPTIONS: dict[str, dict[str, Any]] = {
    "python square": {"mesh": "2x2", "dtype": "f32"},
    "python other": {"mesh": "3x2", "dtype": "f32"},
    "python chunks": {"mesh": "3x2", "dtype": "f32", "serving": "chunks"},
    "python steps": {"mesh": "2x3", "dtype": "f32", "phase": "decode"},
    "csl whole": {"target": "csl", "mesh": "2x2", "dtype": "f32"},
    "csl chunks": {"target": "csl", "mesh": "3x2", "dtype": "f32", "chunk": 4},
    "csl steps": {"target": "csl", "mesh": "2x3", "dtype": "f32", "phase": "decode"},
    "cuda": {"target": "cuda", "dtype": "f16"},
    "cuda chunks": {"target": "cuda", "dtype": "f16", "chunk": 24},
}
"""How programs of a column are compiled."""
BOUNDS = {"f32": 2e-4, "f16": 2.0**-8}
"""How far logits may be off, as a part of the largest one, by the type in which a target computes.
Of f16 these are eight roundings, to which keys, values and inputs of chunks are rounded. A
reference may have another bound."""


@dataclass(frozen=True)
class Answer:
    """Greedy tokens behind a prompt, and logits [tokens, vocabulary] of each of them; so many
    tokens of the prompt were read ``together``, none where steps read it."""

    tokens: list[int]
    logits: np.ndarray = field(repr=False)
    together: int = 0


class Reference(Protocol):
    """What logits should be."""

    prompt: list[int]
    count: int
    bound: float
    """How far logits may be off, as a part of the largest one; 0 for what is usual."""

    def error(self, found: Answer) -> float:
        """How far ``found`` is off, as a part of the largest logit."""


class Recorded:
    """What transformers answered when the checkpoint in ``folder`` was made."""

    def __init__(self, folder: Path, rounds: bool = False) -> None:
        self.wanted: dict[str, Any] = json.loads((folder / "expected.json").read_text())
        self.prompt = [int(token) for token in self.wanted["prompt_ids"]]
        self.count = len(self.wanted["tokens"])
        self.bound = 0.0
        if rounds:
            change = moved(folder, self.prompt, self.wanted["tokens"])
            self.bound = max(BOUNDS["f16"], change)

    def error(self, found: Answer) -> float:
        """Infinite where tokens differ; of the logits of the prompt, and the best ones of steps."""
        if found.tokens != self.wanted["tokens"]:
            return float("inf")
        first = np.array(self.wanted["prompt_logits"])
        best = found.logits.max(-1) - self.wanted["best_logits"]
        off = max(np.abs(found.logits[0] - first).max(), np.abs(best).max())
        return float(off / np.abs(first).max())


def moved(folder: Path, prompt: list[int], tokens: list[int]) -> float:
    """How far the best logits of steps move, as a part of the largest one behind the prompt, if
    every weight is off by up to half a unit of f16; by the graph, step by step."""
    graph = meshc.compile(str(folder), compile_to="graph", seq=64, dtype="f32", phase="decode")
    module = graph.modules["decode"]
    stored = open_checkpoint(folder, read_config(folder))
    roles = {p.value.name: p.role for p in module.function.params}
    states = [name for name, role in roles.items() if role == "state"]
    kept = {name: stored.read(name) for name, role in roles.items() if role == "weight"}
    rng = np.random.default_rng(1)
    off = {n: w * (1 + rng.uniform(-1, 1, w.shape) * 2.0**-11) for n, w in kept.items()}
    found = []
    for weights in (kept, off):
        rows, caches = [], dict[str, np.ndarray]()
        for position, token in enumerate([*prompt, *tokens[:-1]]):
            given = {"tokens": np.array([[token]]), **weights, **caches}
            logits, *more = run_graph(module, given, {"pos": position})
            caches = dict(zip(states, more, strict=True))
            rows.append(logits.reshape(-1))
        found.append(np.array(rows[len(prompt) - 1 :]))
    one, other = found
    return float(np.abs(one.max(-1) - other.max(-1)).max() / np.abs(one[0]).max())


def run(folder: Path, column: str, reference: Reference, **options: Any) -> Answer:
    """Compile the checkpoint in ``folder`` and continue the prompt. Raises ``MeshcError``."""
    room = len(reference.prompt) + reference.count
    compiled = meshc.compile(str(folder), seq=room, **OPTIONS[column] | options)
    if column == "python chunks":
        rows = compiled.request.rows
        return _in_chunks(folder, compiled, reference, rows * max(1, 4 // rows))
    with compiled.load(backend="cuda-cpu" if column.startswith("cuda") else "") as program:
        answer = program.generate(reference.prompt, reference.count, ignore_eos=True)
    together = 0
    if "manifest.json" in compiled.files:
        readers = json.loads(compiled.files["manifest.json"])["prefills"]
        together = max((reader["tokens"] for reader in readers), default=0)
    return Answer(answer.tokens, np.array(answer.logits), together)


def _in_chunks(folder: Path, compiled: Compiled, reference: Reference, chunk: int) -> Answer:
    """Read all of the prompt but the last token ``chunk`` by chunk, then step by step."""
    weights = open_checkpoint(folder, read_config(folder))
    given: Mapping[str, np.ndarray] = {name: weights.read(name) for name in weights.names()}
    place = folder / "program"
    write_directory(place, compiled.files, compiled.facts, True)
    model = load_program(place).load(given)
    last = len(reference.prompt) - 1
    for start in range(0, last, chunk):
        part = reference.prompt[start : min(start + chunk, last)]
        model.read(0, model.embedded(part, start), start)
    found, logits = [reference.prompt[-1]], []
    for position in range(last, last + reference.count):
        logits.append(model.step({0: (found[-1], position)})[0].copy())
        found.append(int(logits[-1].argmax()))
    return Answer(found[1:], np.array(logits))


def check(folder: Path, column: str, wanted: Outcome, reference: Reference, **options: Any) -> str:
    """Hold what the program gives against what the table says; a word on what was seen."""
    try:
        found = run(folder, column, reference, **options)
    except MeshcError as refusal:
        return refused(refusal, wanted)
    assert wanted == EQUAL, f"{column} gives logits, but the table says {wanted}"
    error = reference.error(found)
    bound = reference.bound or BOUNDS[OPTIONS[column]["dtype"]]
    assert error <= bound, f"{column}: logits are off by {error:.2g}, more than {bound:.2g}"
    return f"equal: {error / bound:.2f} of the bound"


def refused(refusal: MeshcError, wanted: Outcome) -> str:
    """Hold a refusal against what the table says; its code."""
    words = "\n".join(text for found in refusal.diagnostics for text in _texts(found))
    assert isinstance(wanted, Refused), f"a refusal where logits are wanted:\n{words}"
    assert {found.code for found in refusal.diagnostics} == {wanted.code}, words
    assert wanted.missing in words, words
    return f"refused: {wanted.code}"


def _texts(found: Diagnostic) -> list[str]:
    """The message and notes of a diagnostic."""
    return [found.message, *(str(getattr(note, "message", note)) for note in found.notes)]


def write_config(folder: Path, family: str, settings: Mapping[str, object]) -> Path:
    """A config.json of a model of type ``family`` with these ``settings``, without weights."""
    classes = {
        kind: name
        for folder_name in family_names()
        for name, kind in family_named(folder_name).architectures.items()
    }
    named = {"model_type": family, "architectures": [classes[family]], "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(named | dict(settings)))
    return folder

"""Running a language model: prompt to ids, the emitted program, ids to text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from meshc.driver.compiling import Compiled
from meshc.driver.hosts import Backend, known_backends, loaded_host
from meshc.driver.manifest import config_of, read_program
from meshc.driver.models import LoadedModel
from meshc.driver.weights import (
    WEIGHTS_FOLDER,
    Progress,
    check_present,
    find_weights,
    open_weights,
)
from meshc.frontend.models import ModelConfig, Tokenizer, load_tokenizer
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.output import write_directory
from meshc.support.scratch import scratch_folder

_MAX_NEW_TOKENS = 1 << 20

OnToken = Callable[[int, str], None]


@dataclass(frozen=True)
class RunRequest:
    """What to generate from: a text or token ids, one of the two."""

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    max_tokens: int = 16
    weights: str | None = None
    backend: str = ""
    ignore_eos: bool = False

    def check(self) -> None:
        """Raise ``bad-option`` for what makes no sense."""
        if (self.prompt is None) == (self.prompt_ids is None):
            fail("bad-argument", "give one of --prompt and --prompt-ids")
        if not 1 <= self.max_tokens <= _MAX_NEW_TOKENS:
            fail("bad-argument", f"--max-tokens is {self.max_tokens}, not 1 to {_MAX_NEW_TOKENS}")
        if self.backend and self.backend not in known_backends():
            known = " or ".join(known_backends())
            fail("bad-argument", f"there is no backend '{self.backend}'", help=f"it is {known}")


@dataclass
class Answer:
    """What a run gives. ``text`` is None without a tokenizer; ``logits`` is [tokens, vocab].

    ``seconds_per_token`` is the mean over the generated tokens, the reading of the prompt and of
    the weights left out.
    """

    prompt_ids: list[int]
    tokens: list[int]
    text: str | None
    seconds_per_token: float
    mesh: str
    backend: str
    logits: NDArray[np.float32] = field(repr=False)


@dataclass(frozen=True)
class Program:
    """An emitted program that can be loaded, with what belongs to it.

    ``weights`` is where its weights are, or None when nothing says so.
    """

    folder: Path
    name: str
    target: str
    mesh: str
    config: ModelConfig | None
    layers: int | None
    weights: Path | None
    names: tuple[str, ...] = ()


def run_compiled(
    loaded: LoadedModel,
    compiled: Compiled,
    request: RunRequest,
    backend: Backend,
    report: Diagnostics,
    on_read: Progress | None = None,
    on_token: OnToken | None = None,
) -> Answer:
    """Run what was just compiled, from a temporary directory."""
    request.check()
    if compiled.facts.get("embedding") is None or "decode" not in compiled.modules:
        _no_tokens(loaded.name)
    with scratch_folder() as scratch:
        folder = scratch / "program"
        write_directory(folder, compiled.files, compiled.facts)
        program = Program(
            folder,
            loaded.name,
            compiled.request.target,
            compiled.request.mesh,
            loaded.config,
            compiled.request.layers,
            find_weights(loaded.name, loaded.weights, request.weights),
            compiled.weight_names,
        )
        return run_program(program, request, backend, report, on_read, on_token)


def open_program(folder: Path, request: RunRequest) -> Program:
    """The compiled program in ``folder``; its own ``weights`` come before installed packages."""
    facts = read_program(folder)
    if facts.get("embedding") is None:
        _no_tokens(str(facts.get("model")))
    own = folder / WEIGHTS_FOLDER
    layers = facts.get("layers")
    name = str(facts.get("model"))
    return Program(
        folder,
        name,
        str(facts.get("target")),
        str(facts.get("mesh")),
        config_of(facts),
        layers if isinstance(layers, int) else None,
        find_weights(name, own if own.is_dir() else None, request.weights),
    )


def run_program(
    program: Program,
    request: RunRequest,
    backend: Backend,
    report: Diagnostics,
    on_read: Progress | None = None,
    on_token: OnToken | None = None,
) -> Answer:
    """Generate with an emitted program on an open backend of its target.

    Raises ``weights-not-found``, ``no-tokenizer``, ``run-refused`` and what reading the weights and
    the tokenizer raises.
    """
    request.check()
    if program.weights is None:
        fail(
            "weights-not-found",
            f"nothing says where the weights of '{program.name}' are",
            help="give them with --weights",
        )
    tensors = open_weights(program.weights, program.config, program.layers, report, on_read)
    check_present(program.names, tensors)
    tokenizer = _tokenizer(program, request)
    ids = _prompt_ids(request, tokenizer)
    stop = () if request.ignore_eos or program.config is None else program.config.eos_ids
    with loaded_host(program.folder, backend, tensors) as model:
        steps = _Steps(ids, tokenizer, on_token)
        tokens = list(model.generate(ids, request.max_tokens, steps, stop))
    text = tokenizer.continuation(ids, tokens) if tokenizer is not None else None
    seconds = steps.seconds_per_token()
    return Answer(ids, tokens, text, seconds, program.mesh, backend.name, steps.stacked())


class _Steps:
    """Collects logits and times of the tokens, and hands new text on as it comes."""

    def __init__(self, ids: list[int], tokenizer: Tokenizer | None, on_token: OnToken | None):
        self.ids = ids
        self.tokenizer = tokenizer
        self.on_token = on_token
        self.tokens: list[int] = []
        self.logits: list[NDArray[np.float32]] = []
        self.times: list[float] = []

    def __call__(self, token: int, logits: NDArray[np.float32]) -> None:
        self.times.append(time.perf_counter())
        self.tokens.append(token)
        self.logits.append(np.array(logits, np.float32))
        if self.on_token is not None:
            text = self.tokenizer.continuation(self.ids, self.tokens) if self.tokenizer else ""
            self.on_token(token, text)

    def seconds_per_token(self) -> float:
        """Mean time from one token to the next; 0 when there was only one."""
        gaps = len(self.times) - 1
        return (self.times[-1] - self.times[0]) / gaps if gaps > 0 else 0.0

    def stacked(self) -> NDArray[np.float32]:
        return np.stack(self.logits) if self.logits else np.zeros((0, 0), np.float32)


def _tokenizer(program: Program, request: RunRequest) -> Tokenizer | None:
    """The model's tokenizer; with ids as the prompt it may be missing."""
    if program.config is None or program.weights is None:
        if request.prompt is not None:
            fail(
                "no-tokenizer",
                f"'{program.name}' has no tokenizer, so it cannot read a text",
                help="give token ids: --prompt-ids 5,17,42",
            )
        return None
    if request.prompt is None and not _has_tokenizer(program.weights):
        return None
    return load_tokenizer(program.weights, program.config)


def _has_tokenizer(place: Path) -> bool:
    folder = place if place.is_dir() else place.parent
    return place.suffix == ".gguf" or (folder / "tokenizer.json").is_file()


def _prompt_ids(request: RunRequest, tokenizer: Tokenizer | None) -> list[int]:
    if request.prompt_ids is not None:
        return list(request.prompt_ids)
    assert tokenizer is not None and request.prompt is not None
    return tokenizer.encode(request.prompt)


def _no_tokens(name: str) -> NoReturn:
    fail(
        "no-tokens",
        f"'{name}' does not map tokens to tokens, so there is nothing to generate",
        help="compile it with -o DIR; DIR/main.py maps arrays to arrays",
    )

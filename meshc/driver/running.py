"""Running a language model: prompt to ids, the emitted program, ids to text."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from meshc.driver.compiled import Compiled
from meshc.driver.executable import Program, no_tokens
from meshc.driver.generating import (
    Answer,
    OnTokenOf,
    generated,
    generated_all,
    most_tokens,
    read_prompts,
)
from meshc.driver.hosts import Backend, WaferHost, known_backends, load_host
from meshc.driver.manifest import config_of, read_program
from meshc.driver.profiling import Profile, profile
from meshc.driver.weights import (
    WEIGHTS_FOLDER,
    Progress,
    check_present,
    find_weights,
    open_weights,
)
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import error_words
from meshc.support.scratch import scratch_folder

OnProfile = Callable[[Profile], None]


@dataclass(frozen=True)
class RunRequest:
    """What to generate from: prompts, texts or token ids, that are continued all at once.

    ``trace`` is a file for what happens on a simulated wafer, from which a profile is made.
    """

    prompts: tuple[str | tuple[int, ...], ...] = ()
    max_tokens: int = 16
    weights: str | None = None
    backend: str = ""
    ignore_eos: bool = False
    trace: str | None = None

    def check(self) -> None:
        """Raise ``bad-option`` for what makes no sense."""
        if not self.prompts:
            fail("bad-argument", "give one of --prompt and --prompt-ids")
        most_tokens(self.max_tokens)
        if self.backend and self.backend not in known_backends():
            known = " or ".join(known_backends())
            fail("bad-argument", f"there is no backend '{self.backend}'", help=f"it is {known}")


def run_compiled(
    compiled: Compiled,
    request: RunRequest,
    backend: Backend,
    report: Diagnostics,
    on_read: Progress | None = None,
    on_token: OnTokenOf | None = None,
    on_profile: OnProfile | None = None,
) -> list[Answer]:
    """Run what was just compiled, from a temporary directory."""
    request.check()
    if not compiled.makes_tokens:
        _no_tokens(compiled.loaded.name)
    with scratch_folder() as scratch:
        program = compiled.written(scratch / "program", request.weights)
        return run_program(program, request, backend, report, on_read, on_token, on_profile)


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
        find_weights(name, own if os.path.isdir(own) else None, request.weights),
    )


def run_program(
    program: Program,
    request: RunRequest,
    backend: Backend,
    report: Diagnostics,
    on_read: Progress | None = None,
    on_token: OnTokenOf | None = None,
    on_profile: OnProfile | None = None,
) -> list[Answer]:
    """Generate with an emitted program on an open backend of its target; the answers in the order
    of the prompts. ``on_profile`` is given where the cycles went when the request has a trace.

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
    prompts = read_prompts(request.prompts, program.config, program.weights, program.name)
    stop = () if request.ignore_eos or program.config is None else program.config.eos_ids
    trace = _trace(request, backend, program.folder)
    host = load_host(program.folder, backend, tensors, trace)
    mesh, name = program.mesh, backend.name
    if len(prompts) > 1:
        found = generated_all(host, prompts, request.max_tokens, stop, mesh, name, on_token)
    else:
        tell = None if on_token is None else partial(on_token, 0)
        found = [generated(host, prompts[0], request.max_tokens, stop, mesh, name, tell)]
    if trace is not None and isinstance(host, WaferHost):
        host.stop()
        if on_profile is not None:
            on_profile(profile(trace, program.folder))
    return found


def _trace(request: RunRequest, backend: Backend, folder: Path) -> Path | None:
    """Where the trace of a run of the program in ``folder`` goes, None without one. Raises
    ``bad-argument``, ``unwritable``."""
    if request.trace is None:
        return None
    if backend.name != "csl-sim":
        fail("bad-argument", f"--profile is for the simulator of wafers, not for {backend.name}")
    if any(folder.glob("*/layout.csl")):
        fail(
            "bad-argument",
            "--profile is of one program, and a prompt and the tokens behind it have two",
            help="let steps read the prompt: --phase decode",
        )
    path = Path(request.trace).absolute()
    try:
        path.write_text("")
    except OSError as error:
        fail("unwritable", f"'{path}' cannot be written: {error_words(error)}")
    return path


def _no_tokens(name: str) -> NoReturn:
    no_tokens(name, "compile it with -o DIR; DIR/main.py maps arrays to arrays")

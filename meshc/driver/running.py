"""Running a language model: prompt to ids, the emitted program, ids to text."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from meshc.backends.host_protocols import Backend, Loading
from meshc.backends.hosts import WaferHost
from meshc.backends.target import target_named
from meshc.driver.backends import is_backend, known_backends, load_host
from meshc.driver.decoded import kept
from meshc.driver.emitted import Emitted
from meshc.driver.executable import Program, check_generates, no_tokens
from meshc.driver.generating import (
    Answer,
    Continuation,
    OnTokenOf,
    generated,
    read_prompts,
)
from meshc.driver.manifest import config_of, read_program
from meshc.driver.profiling import Profile, profile
from meshc.driver.serving_facts import serving_of
from meshc.driver.weights import (
    PACKED_FOLDER,
    WEIGHTS_FOLDER,
    Progress,
    check_present,
    find_weights,
    open_weights,
)
from meshc.frontend.chat import Conversation
from meshc.frontend.checkpoints import Generation, ModelConfig, read_generation
from meshc.serving.sampling import GREEDY, Sampling
from meshc.sim.machine.run_options import USUAL, Options
from meshc.sim.machine.trace import Trace
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import error_words
from meshc.support.scratch import scratch_folder

OnProfile = Callable[[Profile], None]
_DRAWS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class RunRequest:
    """What to generate from: prompts (texts, token ids or conversations), continued all at once.

    Tokens are drawn if ``sample`` or one of ``temperature``, ``top_k``, ``top_p`` and ``min_p`` is
    given; with ``sample`` those that are not given are as the checkpoint's
    ``generation_config.json`` says, else 1, 0, 1 and 0. ``stops``, ``seed`` (0), which is for
    draws alone, ``logits`` and ``steps`` are those of :class:`Continuation`.
    With ``cache`` the program and decoded weights, or those that are packed for a GPU, are kept for
    later runs.
    ``trace`` is a file for what happens on a simulated wafer, from which a profile is made, and
    ``simulated`` says which machine simulates it, whose cycles it counts and on how many threads.
    """

    prompts: tuple[str | tuple[int, ...] | Conversation, ...] = ()
    max_tokens: int = 16
    weights: str | None = None
    backend: str = ""
    ignore_eos: bool = False
    trace: str | None = None
    stops: tuple[str, ...] = ()
    sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    logits: bool = True
    steps: int | None = None
    cache: bool = True
    simulated: Options = USUAL

    def continuation(
        self, config: ModelConfig | None = None, usual: Generation | None = None
    ) -> Continuation:
        """How the prompts are continued by a model of ``config``, whose authors draw as
        ``usual``, which is for ``sample``."""
        ends = () if self.ignore_eos or config is None else config.eos_ids
        sampling = self._sampling(usual or Generation())
        how = sampling, self.seed or 0, self.logits, self.steps
        return Continuation(self.max_tokens, ends, self.stops, *how)

    def _sampling(self, usual: Generation) -> Sampling:
        given = {name: value for name in _DRAWS if (value := getattr(self, name)) is not None}
        if not self.sample and not given:
            return GREEDY
        base = usual if self.sample else Sampling(temperature=1.0)
        return Sampling(**{name: getattr(base, name) for name in _DRAWS} | given)

    def with_chats_read(
        self, config: ModelConfig | None, weights: Path | None, name: str, report: Diagnostics
    ) -> RunRequest:
        """The same with conversations as the token ids that the model ``name`` reads; arguments and
        errors are those of :func:`read_prompts`."""
        chats = [prompt for prompt in self.prompts if isinstance(prompt, Conversation)]
        if not chats:
            return self
        read = iter(read_prompts(chats, config, weights, name, report))
        prompts = (
            tuple(next(read).ids) if isinstance(p, Conversation) else p for p in self.prompts
        )
        return replace(self, prompts=tuple(prompts))

    def check(self) -> None:
        """Raise ``bad-argument`` for what makes no sense."""
        if not self.prompts:
            fail("bad-argument", "give one of --prompt and --prompt-ids")
        self.continuation().check()
        if self.seed is not None and self.continuation().sampling is GREEDY:
            fail(
                "bad-argument",
                f"--seed is {self.seed}, but the most likely tokens are taken, and none is drawn",
                help="leave it out, or draw tokens: --sample, --temperature, --top-k, --top-p or "
                "--min-p",
            )
        threads = self.simulated.threads
        if threads is not None and threads < 1:
            fail("bad-argument", f"--sim-threads is {threads}, not a positive number")
        if self.backend and not is_backend(self.backend):
            known = " or ".join(known_backends())
            fail("bad-argument", f"there is no backend '{self.backend}'", help=f"it is {known}")

    def check_simulator(self, backend: Backend) -> None:
        """Raise ``bad-argument`` for options of a simulator that does not run the program."""
        for name in ("backend", "threads", "timing"):
            if getattr(self.simulated, name) is not None and backend.name != "csl-sim":
                words = f"--sim-{name} is for the simulator of wafers, not for {backend.name}"
                fail("bad-argument", words)


def run_emitted(
    emitted: Emitted,
    request: RunRequest,
    backend: Backend,
    report: Diagnostics,
    on_read: Progress | None = None,
    on_token: OnTokenOf | None = None,
    on_profile: OnProfile | None = None,
    watch: Trace | None = None,
) -> list[Answer]:
    """Run what was compiled, from a temporary directory; the rest is as of :func:`run_program`."""
    request.check()
    if not emitted.makes_tokens:
        _no_tokens(emitted.loaded.name)
    with scratch_folder() as scratch:
        program = emitted.written(scratch / "program", request.weights)
        told = on_read, on_token, on_profile, watch
        return run_program(program, request, backend, report, *told)


def open_program(folder: Path, weights: str | None) -> Program:
    """The compiled program in ``folder``, with ``weights`` if they are given, else its own or an
    installed package's."""
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
        mesh if isinstance(mesh := facts.get("mesh"), str) else None,
        config_of(facts),
        layers if isinstance(layers, int) else None,
        find_weights(name, own if os.path.isdir(own) else None, weights),
        packed=folder / PACKED_FOLDER,
        serving=serving_of(facts),
    )


def run_program(
    program: Program,
    request: RunRequest,
    backend: Backend,
    report: Diagnostics,
    on_read: Progress | None = None,
    on_token: OnTokenOf | None = None,
    on_profile: OnProfile | None = None,
    watch: Trace | None = None,
) -> list[Answer]:
    """Generate with an emitted program on an open backend of its target; the answers in the order
    of the prompts. ``on_profile`` is given where the cycles went when the request has a trace;
    ``watch`` is told what happens on a simulated wafer.

    Raises ``weights-not-found``, ``no-tokenizer``, ``run-refused`` and what reading the weights and
    the tokenizer raises.
    """
    request.check()
    check_generates(program)
    if program.weights is None:
        fail(
            "weights-not-found",
            f"nothing says where the weights of '{program.name}' are",
            help="give them with --weights",
        )
    tensors = open_weights(program.weights, program.config, program.layers, report, on_read)
    check_present(program.names, tensors)
    if request.cache and not target_named(program.target).PACKS:
        tensors = kept(tensors)
    prompts = read_prompts(request.prompts, program.config, program.weights, program.name, report)
    request.check_simulator(backend)
    trace = _trace(request, backend, program.folder)
    packed = program.packed if request.cache else None
    watched = trace or watch
    how = report, watched, packed, request.simulated
    host = load_host(Loading(program.folder, backend, tensors, *how))
    usual = read_generation(program.weights) if request.sample else Generation()
    usual.check_drawing()
    continued = request.continuation(program.config, usual)
    continued.check()
    found = generated(host, prompts, continued, program.mesh, backend.name, on_token)
    if trace is not None and isinstance(host, WaferHost):
        host.stop()
        if on_profile is not None:
            on_profile(profile(trace, program.folder))
    elif watch is not None and isinstance(host, WaferHost):
        host.stop()
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

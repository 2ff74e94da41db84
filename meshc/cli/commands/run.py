"""``meshc run``: generate tokens with a model compiled on the spot, or with a compiled program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from meshc.backends.target import target_of
from meshc.backends.target_options import CslOptions, MeshOptions
from meshc.cli.flags.what_to_compile import given_to_compile
from meshc.cli.pass_instruments import Watching
from meshc.cli.printing import print_diagnostics, print_json
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import check_compiled, keeping, prompts_of, request_of
from meshc.driver import (
    Answer,
    Backend,
    Compiled,
    CompileRequest,
    Emitted,
    LoadedModel,
    Profile,
    RunRequest,
    cheapest,
    compile_loaded,
    emitted_once,
    find_weights,
    load_any,
    open_program,
    opened,
    read_prompts,
    run_emitted,
    run_program,
    simulated_run,
    smallest_place,
)
from meshc.driver.compile_record import Recording, RunRecorder
from meshc.driver.record_files import RECORD
from meshc.frontend.chat import Conversation
from meshc.frontend.checkpoints import ModelConfig
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostic, Diagnostics, fail
from meshc.support.files import error_words
from meshc.support.output import check_free, read_manifest

_SEQ_STEP = 256
_WORTH_SAYING = 5.0
"""Seconds from which on it is said how long a run takes."""


def run(options: argparse.Namespace) -> int:
    """Run and print what was generated."""
    report = Diagnostics()
    request = RunRequest(
        prompts_of(options),
        options.max_tokens,
        options.weights,
        options.backend,
        options.ignore_eos,
        options.profile,
        tuple(options.stop),
        options.sample,
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.seed,
        options.logits is not None,
        options.steps,
        not options.no_cache,
        Options(
            backend=options.sim_backend, threads=options.sim_threads, timing=options.sim_timing
        ),
    )
    profiles: list[Profile] = []
    request.check()
    recorder = _recorder(options, report)
    with Progress() as progress:
        watching = Watching.of(options, progress)
        live = _Live(progress, not options.json and len(request.prompts) == 1)
        try:
            answers = _answers(options, request, report, watching, live, profiles.append, recorder)
        finally:
            watching.finish(report)
    _save_logits(options.logits, answers)
    if options.json:
        print_json(_object(answers))
    elif len(answers) == 1:
        live.end(answers[0])
    else:
        for number, answer in enumerate(answers, 1):
            print(f"[{number}] {_text(answer)}")
    for profile in profiles:
        _print_profile(profile)
    return 0


def _print_profile(profile: Profile) -> None:
    """Cycles of a step by op, behind what was generated, beside whatever stdout is read by."""
    lines = [f"{'compute':>9} {'transfer':>9} {'waiting':>9}  cycles of a step, mean over cores"]
    for name, one in (*profile.rows, ("all", profile.whole)):
        lines.append(f"{one.compute:9.0f} {one.transfer:9.0f} {one.waiting:9.0f}  {name}")
    lines.append(f"{'predicted':>9} {'bound':>9} {'ratio':>9}  cycles of a step, of the last core")
    sums = {key: sum(row[key] for row in profile.predicted) for key in ("cycles", "bound")}
    for row in (*profile.predicted, {**sums, "op": "all"}):
        ratio = f"{row['cycles'] / row['bound']:.1f}" if row["bound"] else ""
        lines.append(f"{row['cycles']:9} {row['bound']:9} {ratio:>9}  {row['op']}")
    print("\n".join([*lines, f"trace in {profile.trace}"]), file=sys.stderr)


def _answers(
    options: argparse.Namespace,
    request: RunRequest,
    report: Diagnostics,
    watching: Watching,
    live: _Live,
    on_profile: Callable[[Profile], None],
    recorder: RunRecorder | None,
) -> list[Answer]:
    folder = Path(options.model)
    if os.path.isdir(folder) and read_manifest(folder) is not None:
        program = open_program(folder, request.weights)
        phase = [] if options.phase is None else ["--phase"]
        check_compiled(options, program.target, [*given_to_compile(options), *phase])
        if recorder is not None:
            fail(
                "bad-argument",
                f"--record keeps what compiling says too, but '{folder}' is compiled",
                help="give the model instead",
            )
        request = _with_chats_read(request, program.config, program.weights, program.name)
        with _opened(program.target, request) as backend:
            return run_program(
                program, request, backend, report, live.progress.reading, live.token, on_profile
            )
    loaded = load_any(options.model, report)
    if any(isinstance(prompt, Conversation) for prompt in request.prompts):
        weights = find_weights(loaded.name, loaded.weights, request.weights)
        request = _with_chats_read(request, loaded.config, weights, loaded.name)
    compile_request = _with_batch(options, request)
    if compile_request.seq is None and loaded.config is not None:
        compile_request = compile_request.changed(
            seq=_capacity(
                request,
                loaded.config.max_positions,
                target_of(compile_request).drafts(compile_request),
            )
        )
    compile_request.check()
    compile_request = keeping(compile_request, options, loaded)
    target = target_of(compile_request)
    if target.FITS_MESH and not compile_request.options_of(MeshOptions).mesh:
        compile_request = _placed(loaded, compile_request, live.progress)
    if recorder is not None:
        recorder.check(compile_request, request)
        watching.instruments.append(recorder.recording)
    compiled: list[Compiled] = []
    profiled = Recording(report) if request.trace is not None else None
    if profiled is not None:
        watching.instruments.append(profiled)

    def emit() -> Emitted:
        if target.FOLLOWED:
            found = _for_simulator(options, loaded, compile_request, request, watching, report)
        else:
            found = compile_loaded(loaded, compile_request, watching.instruments, report)
        compiled.append(found)
        if profiled is not None:
            found.files[RECORD] = profiled.record(found)
        return found.emitted

    with _opened(compile_request.target, request) as backend:
        own = compile_request.passes_before or compile_request.passes_after
        own = own or compile_request.options_of(MeshOptions).form  # perhaps of a package, too
        keeps = request.cache and not (target.FOLLOWED or watching.looks or own)
        emitted = emitted_once(loaded, compile_request, emit, report) if keeps else emit()
        told = live.progress.reading, live.token, on_profile
        watch = None if recorder is None else recorder.watch(compiled[0])
        answers = run_emitted(emitted, request, backend, report, *told, watch)
        if recorder is not None:
            recorder.write(compiled[0], report)
        return answers


def _recorder(options: argparse.Namespace, report: Diagnostics) -> RunRecorder | None:
    """What keeps the run, if that is asked for. Fails where its directory may not be written."""
    if options.record is None:
        return None
    check_free(Path(options.record))
    return RunRecorder(Path(options.record), report)


def _with_chats_read(
    request: RunRequest, config: ModelConfig | None, weights: Path | None, name: str
) -> RunRequest:
    """``request`` with conversations as token ids. Templates are filled in before anything is
    compiled, as the caches are for the tokens that come of it; a date in a prompt is said."""
    said = Diagnostics()
    read = request.with_chats_read(config, weights, name, said)
    print_diagnostics(said.messages)
    return read


@contextmanager
def _opened(target: str, request: RunRequest) -> Iterator[Backend]:
    """The backend; which one was chosen is said at once, as it decides how long the run takes."""
    with opened(target, request.backend) as backend:
        if backend.remark:
            print_diagnostics([Diagnostic("remark", "backend", backend.remark)])
        request.check_simulator(backend)
        yield backend


def _with_batch(options: argparse.Namespace, request: RunRequest) -> CompileRequest:
    """What to compile, for as many requests as there are prompts unless a flag says how many or
    programs for the target, or one that holds both phases, take one."""
    found, prompts = request_of(options), len(request.prompts)
    if options.logits is not None and found.options_of(MeshOptions).choose == "cores":
        fail("bad-argument", "--logits is given, but with --choose cores the host gets none")
    if options.batch is None:
        return found if found.options_of(CslOptions).joined else found.changed(batch=prompts)
    if found.requests < prompts:
        fail("bad-argument", f"{prompts} prompts do not go into --batch {found.batch}")
    return found


def _placed(loaded: LoadedModel, request: CompileRequest, progress: Progress) -> CompileRequest:
    """``request`` on the smallest mesh that fits, which is said at once with the reason."""

    def tell(device: str, mesh: str) -> None:
        progress.say(f"does it fit {mesh} PEs of {device}?")

    place = smallest_place(loaded, request, tell)
    print_diagnostics([Diagnostic("remark", "mesh", place.words)])
    return request.changed(device=place.device, mesh=place.mesh)


def _for_simulator(
    options: argparse.Namespace,
    loaded: LoadedModel,
    compile_request: CompileRequest,
    request: RunRequest,
    watching: Watching,
    report: Diagnostics,
) -> Compiled:
    """The programs that the simulator runs: where no flag says how prompts are read, those that get
    to the tokens in the fewest cycles. How long that takes is said before it begins."""
    lengths = _lengths(request, loaded)
    if (
        options.phase is None
        and options.chunk is None
        and compile_request.options_of(CslOptions).phases == "two"
    ):
        most = request.max_tokens
        found = cheapest(loaded, compile_request, lengths, most, watching.instruments, report)
    else:
        found = compile_loaded(loaded, compile_request, watching.instruments, report)
    expected = simulated_run(found, lengths, request.max_tokens) if found.makes_tokens else None
    if expected is not None and expected.seconds >= _WORTH_SAYING:
        print_diagnostics([Diagnostic("remark", "run-time", expected.words)])
    return found


def _lengths(request: RunRequest, loaded: LoadedModel) -> list[int]:
    """Tokens of each prompt; of texts whose tokenizer is not found the most that they may be."""
    weights = find_weights(loaded.name, loaded.weights, request.weights)
    if weights is None:
        return _most_tokens(request)
    read = read_prompts(request.prompts, loaded.config, weights, loaded.name)
    return [len(prompt.ids) for prompt in read]


def _most_tokens(request: RunRequest) -> list[int]:
    """Tokens of each prompt at most: a text has at most as many as bytes, and a few that start it.
    Conversations have become ids by now."""
    ids = [prompt for prompt in request.prompts if isinstance(prompt, tuple)]
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    return [*map(len, ids), *(len(text.encode()) + 4 for text in texts)]


def _capacity(request: RunRequest, most: int, drafts: int) -> int:
    """A KV cache for the longest prompt, its answer and ``drafts`` behind these, in steps so that
    programs are alike."""
    tokens = max(_most_tokens(request)) + request.max_tokens + drafts
    wanted = -(-tokens // _SEQ_STEP) * _SEQ_STEP
    return max(1, min(wanted, most))


class _Live:
    """Prints the text of one prompt as it is generated; those of several, and ids, at the end."""

    def __init__(self, progress: Progress, text: bool) -> None:
        self.progress = progress
        self.flowing = text
        self.printed = ""
        self.count = 0

    def token(self, request: int, token: int, text: str) -> None:
        """Called with each token of a request and what is final of its text so far."""
        self.count += 1
        if not self.flowing or not sys.stdout.isatty():
            self.progress.generated(self.count)
        if self.flowing and text != self.printed:
            sys.stdout.write(text[len(self.printed) :])
            sys.stdout.flush()
            self.printed = text

    def end(self, answer: Answer) -> None:
        """Print what is left of the text, or the ids of a model without a tokenizer."""
        print(_text(answer)[len(self.printed) :])


def _text(answer: Answer) -> str:
    """What was generated: a text, or the ids of a model without a tokenizer."""
    return answer.text if answer.text is not None else ",".join(map(str, answer.tokens))


_OF_A_REQUEST = ("prompt_ids", "tokens", "text")


def _object(answers: Sequence[Answer]) -> dict[str, object]:
    """What ``--json`` prints: of several prompts the answers are listed as ``requests``."""
    first, *others = (_shown(answer) for answer in answers)
    if not others:
        return first
    requests = [{name: found[name] for name in _OF_A_REQUEST} for found in (first, *others)]
    common = {name: value for name, value in first.items() if name not in _OF_A_REQUEST}
    if common["seconds_per_token"] is not None:
        seconds = [a.wall_seconds_per_token for a in answers if len(a.tokens) > 1] or [0.0]
        common["seconds_per_token"] = float(np.mean(seconds))
    return {"requests": requests, **common}


def _shown(answer: Answer) -> dict[str, object]:
    names = ("prompt_ids", "tokens", "text", "seconds_per_token", "mesh", "backend")
    return {name: getattr(answer, name) for name in names}


def _save_logits(path: str | None, answers: Sequence[Answer]) -> None:
    """Write the logits ``[tokens, vocab]`` of one prompt; of several ``[requests, tokens, vocab]``
    with the tokens of the longest answer, NaN where a text is shorter."""
    if path is None:
        return
    logits = answers[0].logits
    if answers[0].tokens and not len(logits):
        fail("bad-argument", "--logits is given, but the program gives tokens and no logits")
    if len(answers) > 1:
        longest = max(len(answer.tokens) for answer in answers)
        logits = np.full((len(answers), longest, logits.shape[-1]), np.nan, np.float32)
        for rows, answer in zip(logits, answers, strict=True):
            rows[: len(answer.logits)] = answer.logits
    try:
        with open(path, "wb") as stream:
            np.save(stream, logits, allow_pickle=False)
    except OSError as error:
        fail("unwritable", f"'{path}' cannot be written: {error_words(error)}")

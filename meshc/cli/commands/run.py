"""``meshc run``: generate tokens with a model compiled on the spot, or with a compiled program."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from meshc.cli.output import print_diagnostics, print_json
from meshc.cli.progress import Progress
from meshc.cli.requests import request_of
from meshc.cli.watching import Watching
from meshc.driver import (
    Answer,
    Backend,
    RunRequest,
    compile_loaded,
    load_any,
    open_program,
    opened,
    run_compiled,
    run_program,
)
from meshc.support.diagnostics import Diagnostic, Diagnostics, fail
from meshc.support.files import error_words
from meshc.support.output import read_manifest

_SEQ_STEP = 256


def run(options: argparse.Namespace) -> int:
    """Run and print what was generated."""
    report = Diagnostics()
    request = RunRequest(
        options.prompt,
        options.prompt_ids,
        options.max_tokens,
        options.weights,
        options.backend,
        options.ignore_eos,
    )
    request.check()
    with Progress() as progress:
        watching = Watching.of(options, progress)
        live = _Live(progress, not options.json)
        try:
            answer = _answer(options, request, report, watching, live)
        finally:
            watching.finish(report)
    _save_logits(options.logits, answer)
    if options.json:
        print_json({k: v for k, v in _shown(answer).items() if k != "logits"})
    else:
        live.end(answer)
    return 0


def _answer(
    options: argparse.Namespace,
    request: RunRequest,
    report: Diagnostics,
    watching: Watching,
    live: _Live,
) -> Answer:
    folder = Path(options.model)
    if os.path.isdir(folder) and read_manifest(folder) is not None:
        program = open_program(folder, request)
        with _opened(program.target, request) as backend:
            return run_program(program, request, backend, report, live.progress.reading, live.token)
    loaded = load_any(options.model, report)
    compile_request = request_of(options)
    if compile_request.seq is None and loaded.config is not None:
        compile_request = dataclasses.replace(
            compile_request, seq=_capacity(request, loaded.config.max_positions)
        )
    compile_request.check()
    with _opened(compile_request.target, request) as backend:
        compiled = compile_loaded(loaded, compile_request, watching.instruments, report)
        return run_compiled(compiled, request, backend, report, live.progress.reading, live.token)


@contextmanager
def _opened(target: str, request: RunRequest) -> Iterator[Backend]:
    """The backend; which one was chosen is said at once, as it decides how long the run takes."""
    with opened(target, request.backend) as backend:
        if backend.remark:
            print_diagnostics([Diagnostic("remark", "backend", backend.remark)])
        yield backend


def _capacity(request: RunRequest, most: int) -> int:
    """A KV cache for the prompt and the answer, in steps so that programs are alike.

    A text has at most as many tokens as bytes, and a few that start it.
    """
    ids = request.prompt_ids
    prompt = len(ids) if ids is not None else len((request.prompt or "").encode()) + 4
    wanted = -(-(prompt + request.max_tokens) // _SEQ_STEP) * _SEQ_STEP
    return max(1, min(wanted, most))


class _Live:
    """Prints text as it is generated, on a terminal; otherwise all of it at the end."""

    def __init__(self, progress: Progress, text: bool) -> None:
        self.progress = progress
        self.flowing = text and sys.stdout.isatty()
        self.printed = ""
        self.count = 0

    def token(self, token: int, text: str) -> None:
        """Called with each token and the text of all so far."""
        self.count += 1
        if not self.flowing:
            self.progress.generated(self.count)
        elif text.startswith(self.printed) and not text.endswith("\ufffd"):
            sys.stdout.write(text[len(self.printed) :])
            sys.stdout.flush()
            self.printed = text

    def end(self, answer: Answer) -> None:
        """Print what is left of the text, or the ids of a model without a tokenizer."""
        text = answer.text if answer.text is not None else ",".join(map(str, answer.tokens))
        print(text[len(self.printed) :] if text.startswith(self.printed) else f"\n{text}")


def _shown(answer: Answer) -> dict[str, object]:
    return {f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)}


def _save_logits(path: str | None, answer: Answer) -> None:
    if path is None:
        return
    try:
        with open(path, "wb") as stream:
            np.save(stream, answer.logits, allow_pickle=False)
    except OSError as error:
        fail("unwritable", f"'{path}' cannot be written: {error_words(error)}")

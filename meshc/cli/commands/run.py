"""``meshc run``: generate tokens with a model compiled on the spot, or with a compiled program."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from meshc.cli.modeling import add_compiling, request_of
from meshc.cli.output import print_diagnostics, print_json
from meshc.cli.progress import Progress
from meshc.cli.watching import Watching, add_watching
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
from meshc.support.files import error_words, read_manifest

_DESCRIPTION = """\
Generate text with MODEL (as for compile), or with a program that compile wrote to a directory.
Tokens are the most likely ones (greedy).
"""
_SEQ_STEP = 256


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("run", help="generate tokens", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL|DIR")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument(
        "--prompt-ids", type=_ids, metavar="5,17,42", help="token ids; needs no tokenizer"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=16, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--weights", metavar="PATH", help="a checkpoint; default: MODEL's own, or a package's"
    )
    parser.add_argument(
        "--backend",
        default="",
        metavar="python|cuda-cpu|cuda",
        help="what executes the program: python that of --target python; cuda-cpu CUDA kernels on "
        "this CPU, cuda on a GPU; default: python; cuda where there is a GPU for the kernels, else "
        "cuda-cpu",
    )
    parser.add_argument(
        "--logits", metavar="FILE.npy", help="write the logits of every step, [tokens, vocab]"
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="go on after a token that ends a text"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_compiling(parser)
    add_watching(parser)
    parser.set_defaults(run=run)


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
        return run_compiled(
            loaded, compiled, request, backend, report, live.progress.reading, live.token
        )


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


def _ids(text: str) -> tuple[int, ...]:
    """Token ids from a comma-separated list."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (-1,)
    if any(not 0 <= token < 1 << 31 for token in found):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of token ids such as 5,17,42")
    return found

"""``meshc serve``: completions over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from meshc.cli.commands.serve_trace import (
    compile_request,
    compiled_program,
    serve_request,
    served_by,
)
from meshc.cli.pass_instruments import Watching
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import keeping
from meshc.driver import Backend, load_any
from meshc.driver.executable import Program
from meshc.driver.serving import ServeRequest, Service, compiled_service, opened_service
from meshc.serving.endpoint.memory import share
from meshc.serving.loop import Loop
from meshc.serving.request_log import RequestLog
from meshc.serving.server_watchers import Watcher
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.extras import module_of_extra
from meshc.support.files import error_words

_EXIT_CUT = 1
_KEY = "MESHC_API_KEY"
_ADDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
"""How a log is opened: a pipe that nobody reads is an error."""


def run(options: argparse.Namespace) -> int:
    """Serve until a signal; 0 where no request was cut."""
    if not 0 <= options.port <= 65535:
        fail("bad-argument", f"--port is {options.port}, not 0 to 65535")
    if not 0 <= options.finish_s <= 86400:
        fail("bad-argument", f"--finish-s is {options.finish_s}, not 0 to 86400")
    app, listening = _library("app"), _library("listening")
    access = _access(options)
    if not 0 <= options.waiting <= 1_000_000:
        fail("bad-argument", f"--waiting is {options.waiting}, not 0 to 1000000")
    request = replace(serve_request(options), prefixes=not options.no_prefixes)
    request.chosen()
    program = compiled_program(options)
    share()
    with (
        listening.bound(options.port, access.host) as listener,
        _log(options) as watchers,
        served_by(options, program) as backend,
    ):
        service = _service(options, request, program, backend)
        endpoint = app.Endpoint(
            service.name,
            Loop(service.server(), options.waiting, watchers),
            service.tokenizer,
            service.eos,
            service.read_chat,
            service.another_tokenizer(),
            access=access,
        )
        cut = listening.run_endpoint(endpoint, listener, options.finish_s, partial(_say, endpoint))
    if cut:
        print(f"requests that were cut: {cut}", file=sys.stderr)
    return _EXIT_CUT if cut else 0


def _access(options: argparse.Namespace) -> Any:
    """Where to listen and the key of clients, which the environment says where no flag does."""
    key = options.api_key if options.api_key is not None else os.environ.get(_KEY)
    found = _library("access").Access(options.host, key)
    if key is not None and (not key.isascii() or not key.isprintable() or not key.strip()):
        fail("bad-argument", "the key of --api-key is empty, or has more than ASCII characters")
    if key is None and not found.is_local:
        fail(
            "bad-argument",
            f"other machines reach --host {options.host[:80]}, and there is no key",
            help=f"give one with --api-key or in the environment as {_KEY}",
        )
    return found


@contextmanager
def _log(options: argparse.Namespace) -> Iterator[list[Watcher]]:
    """Who writes of requests: nobody unless a file is asked for, to which lines are added."""
    if options.request_log is None:
        yield []
        return
    try:
        file = os.open(options.request_log, _ADDING, 0o666)
    except (OSError, ValueError) as error:
        place = options.request_log[:80]
        fail("unwritable", f"--request-log '{place}' cannot be written: {error_words(error)}")
    with open(file, "ab", buffering=0) as stream:
        yield [RequestLog(stream)]


def _service(
    options: argparse.Namespace, request: ServeRequest, program: Program | None, backend: Backend
) -> Service:
    """What is served: a program, or else the model, compiled."""
    report = Diagnostics()
    with Progress() as progress:
        watching = Watching.of(options, progress)
        try:
            if program is not None:
                return compiled_service(program, request, report, progress.reading, backend)
            loaded = load_any(options.model, report)
            return opened_service(
                loaded,
                keeping(compile_request(options), options, loaded),
                request,
                report,
                watching.instruments,
                progress.reading,
                backend,
            )
        finally:
            watching.finish(report)


def _say(endpoint: Any, address: str) -> None:
    print(f"serving {endpoint.model} on {address}", flush=True)


def _library(name: str) -> ModuleType:
    """A module of the endpoint."""
    return module_of_extra(f"meshc.serving.endpoint.{name}", "serve", "serving")

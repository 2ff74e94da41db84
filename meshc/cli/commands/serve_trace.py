"""``meshc serve-trace``: the requests of a trace served, iteration by iteration."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshc.cli.flags.what_to_compile import given_to_compile
from meshc.cli.pass_instruments import Watching
from meshc.cli.printing import print_diagnostics, print_json
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import asked_target, check_compiled, keeping, request_of
from meshc.driver import Backend, CompileRequest, LoadedModel, load_any, open_program, opened
from meshc.driver.executable import Program
from meshc.driver.recorded_runs import served_timeline, write_run
from meshc.driver.serving import (
    USUAL_REQUESTS,
    ServeRequest,
    Service,
    check_serves,
    compiled_service,
    drafts_of,
    entries_of,
    opened_service,
)
from meshc.serving.engine import Record
from meshc.serving.lengths import Trace
from meshc.serving.replaying import Entry, replayed
from meshc.serving.traces import read_trace
from meshc.support.diagnostics import Diagnostic, Diagnostics, fail
from meshc.support.output import check_free, read_manifest

_SEQ_STEP = 64


def run(options: argparse.Namespace) -> int:
    """Serve and print."""
    if not 1e-6 <= options.iteration_ms <= 1e9:
        fail("bad-argument", f"--iteration-ms is {options.iteration_ms:g}, not 1e-06 to 1e+09")
    trace = _first(read_trace(Path(options.trace)), options.requests)
    if trace.prefixes is not None:
        fail(
            "bad-argument",
            f"'{options.trace}' says what prompts begin with, and those that are drawn here begin "
            "each with its own tokens",
            help="leave out the columns prefix and prefix_tokens; meshc schedule simulates them",
        )
    request = serve_request(options)
    request.chosen()
    if options.record is not None:
        check_free(Path(options.record))
    program = compiled_program(options)
    with served_by(options, program) as backend:
        return _serve(options, trace, request, program, backend)


def _serve(
    options: argparse.Namespace,
    trace: Trace,
    request: ServeRequest,
    program: Program | None,
    backend: Backend,
) -> int:
    report = Diagnostics()
    drafts = 0  # a compiled program verifies none
    with Progress() as progress:
        watching = Watching.of(options, progress)
        try:
            if program is not None:
                service = compiled_service(program, request, report, progress.reading, backend)
            else:
                loaded = load_any(options.model, report)
                asked = _with_capacity(compile_request(options), loaded, trace)
                asked = keeping(asked, options, loaded)
                how = report, watching.instruments, progress.reading, backend
                service = opened_service(loaded, asked, request, *how)
                drafts = drafts_of(asked)
        finally:
            watching.finish(report)
    entries = entries_of(trace, service, options.seed, options.stop_at_eos)
    records: list[tuple[Record, float]] = []

    def note(record: Record, seconds: float) -> None:
        records.append((record, seconds))
        if not options.json:
            print(_line(record, seconds), flush=True)

    server = service.server()
    found = replayed(server, entries, options.iteration_ms / 1e3, note)
    if options.record is not None:
        facts = {
            "policy": service.policy.name,
            "requests": len(entries),
            "trace": Path(options.trace).name,
        }
        device = asked.device_name
        timeline = served_timeline(entries, records)
        folder = Path(options.record)
        write_run(folder, "served trace", service.name, device, facts, [timeline], report)
    if options.compare_alone:
        alone = service
        if not service.whole:
            if program is not None:
                words = "the program has no room for whole prompts"
                fail("bad-argument", f"--compare-alone is given, but {words}")
            whole = dataclasses.replace(request, whole=True)
            alone = opened_service(loaded, asked, whole, Diagnostics(), backend=backend)
        _compare(alone, entries, found)
    if options.json:
        guesses = {"drafts": dataclasses.asdict(server.guesses)} if drafts else {}
        print_json(_object(options, service, entries, found, records) | guesses)
    else:
        print("\n".join(_answer(entry, found[entry.name]) for entry in entries))
        if drafts:
            print(f"drafted {server.guesses.drafted}, accepted {server.guesses.accepted}")
    return 0


def serve_request(options: argparse.Namespace) -> ServeRequest:
    """How the flags say to serve."""
    return ServeRequest(
        options.policy,
        options.chunk,
        options.groups,
        options.force,
        options.weights,
        long_chunk=options.long_chunk,
        long_prompts=options.long_prompts,
        cache=not options.no_cache,
        draft_model=options.draft_model or "",
        draft_weights=options.draft_weights,
    )


@contextmanager
def served_by(options: argparse.Namespace, program: Program | None) -> Iterator[Backend]:
    """What runs ``program`` or, without one, that of the model, before anything is compiled; stderr
    is told where that was chosen. Raises ``bad-argument`` for a target whose programs do not serve,
    and what :func:`opened` does."""
    target = asked_target(options) if program is None else program.target
    check_serves(target)
    with opened(target, options.backend) as backend:
        if backend.remark:
            print_diagnostics([Diagnostic("remark", "backend", backend.remark)])
        yield backend


def compiled_program(options: argparse.Namespace) -> Program | None:
    """The program of a directory that compile wrote, None for a model. Raises ``bad-argument`` for
    flags that say what to compile."""
    folder = Path(options.model)
    if not os.path.isdir(folder) or read_manifest(folder) is None:
        return None
    program = open_program(folder, options.weights)
    given = [flag for flag in given_to_compile(options) if flag != "--chunk"]  # of the policy
    if getattr(options, "record", None) is not None:
        given.append("--record")
    given += ["--force"] * options.force
    check_compiled(options, program.target, given)
    return program


def compile_request(options: argparse.Namespace) -> CompileRequest:
    """What the flags say to compile, for several requests unless they say how many."""
    found = request_of(options)
    usual, drafts, target = USUAL_REQUESTS, drafts_of(found), found.rules
    if drafts > 0 and target is not None:
        usual = max(1, min(usual, target.MOST_REQUESTS // (1 + drafts)))
    return found.changed(batch=options.batch or usual, chunk=None)


def _first(trace: Trace, count: int | None) -> Trace:
    if count is None:
        return trace
    if count < 1:
        fail("bad-argument", f"--requests is {count}, not 1 or more")
    if count > len(trace.pairs):
        fail("bad-argument", f"--requests is {count}, but the trace has {len(trace.pairs)}")
    seconds = None if trace.seconds is None else trace.seconds[:count]
    return Trace(trace.pairs[:count], seconds, trace.prefixes)


def _with_capacity(request: CompileRequest, loaded: LoadedModel, trace: Trace) -> CompileRequest:
    """Caches for the longest request of the trace, in steps so that programs are alike."""
    if request.seq is not None:
        return request
    longest = max(prompt + most for prompt, most in trace.pairs)
    wanted = -(-longest // _SEQ_STEP) * _SEQ_STEP
    if loaded.config is not None:
        wanted = min(wanted, loaded.config.max_positions)
    return dataclasses.replace(request, seq=wanted)


def _compare(service: Service, entries: list[Entry], found: dict[int, list[int]]) -> None:
    """Fail with ``not-as-alone`` at a request whose tokens are others than it gets alone by
    ``service``, which reads prompts whole."""
    for entry in entries:
        wanted = service.alone(entry)
        if wanted != found[entry.name]:
            fail(
                "not-as-alone",
                f"request {entry.name} got other tokens than it gets alone",
                notes=[f"served: {_ids(found[entry.name])}", f"alone: {_ids(wanted)}"],
            )


def _line(record: Record, seconds: float) -> str:
    """An iteration in a line."""
    parts = [f"{record.number:5d} {seconds:9.3f} s"]
    if record.put_back:
        parts.append(f"put back {_names(record.put_back)}")
    if record.layers is not None:
        first, behind = record.layers
        read = " ".join(f"{name}[{start}:{stop}]" for name, start, stop in record.segments)
        parts.append(f"layers {first}-{behind - 1} read {read}")
    if record.decode:
        parts.append(f"decode {_names(record.decode)}")
    if record.first:
        parts.append(f"first {_names(record.first)}")
    if record.ended:
        parts.append(f"ended {_names(record.ended)}")
    return ", ".join(parts)


def _names(names: tuple[int, ...]) -> str:
    return " ".join(map(str, names))


def _ids(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


def _answer(entry: Entry, tokens: list[int]) -> str:
    return f"[{entry.name}] {_ids(tokens)}"


def _object(
    options: argparse.Namespace,
    service: Service,
    entries: list[Entry],
    found: dict[int, list[int]],
    records: list[tuple[Record, float]],
) -> dict[str, object]:
    """What was served, the requests with their tokens, and the iterations."""
    return {
        "model": service.name,
        "trace": options.trace,
        "policy": service.policy.name,
        "chunk": service.policy.chunk,
        "long_chunk": service.policy.long_chunk,
        "batch": service.engine.requests,
        "compared_alone": options.compare_alone,
        "requests": [
            {
                "request": entry.name,
                "arrival_s": entry.seconds,
                "prompt_ids": list(entry.prompt),
                "tokens": found[entry.name],
            }
            for entry in entries
        ],
        "iterations": [
            {
                "number": record.number,
                "ends_s": seconds,
                "layers": None if record.layers is None else list(record.layers),
                "read": [list(segment) for segment in record.segments],
                "decode": list(record.decode),
                "put_back": list(record.put_back),
                "tokens": {str(name): list(own) for name, own in record.tokens.items()},
                "first": list(record.first),
                "ended": list(record.ended),
            }
            for record, seconds in records
        ],
    }

"""``meshc compile``: a model to a program, or to IR of a level."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshc.backends.registry import target_names
from meshc.backends.target import target_named
from meshc.cli.pass_instruments import Watching
from meshc.cli.printing import print_json
from meshc.cli.progress import Progress
from meshc.cli.spelled_requests import asked_target, keeping, request_of
from meshc.driver import (
    Compiled,
    LoadedModel,
    compile_loaded,
    find_weights,
    load_any,
    open_weights,
    standalone_content,
    weight_files,
)
from meshc.driver.compile_record import Recording
from meshc.driver.serving import to_serve
from meshc.driver.weights import check_present
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.freed_memory import keep_freed_memory
from meshc.support.output import Content, check_free, write_directory


def run(options: argparse.Namespace) -> int:
    """Compile, write, report."""
    keep_freed_memory()
    report = Diagnostics()
    request = request_of(options)
    _check_standalone(options)
    _check_recorded(options)
    if options.output not in (None, "-"):
        check_free(Path(options.output), options.force)
    with Progress() as progress:
        watching = Watching.of(options, progress)
        recording = Recording(report) if options.record else None
        instruments = [*watching.instruments, *([recording] if recording else [])]
        try:
            loaded = load_any(options.model, report)
            request = keeping(request, options, loaded)
            if request.serving:
                request = to_serve(request)
            compiled = compile_loaded(loaded, request, instruments, report)
            if recording is not None:
                compiled.files |= recording.files(compiled)
            names = _write(options, loaded, compiled, report, progress)
        finally:
            watching.finish(report)
    if options.json:
        print_json(watching.outcome(names, report))
    elif options.output != "-":
        written = [] if options.output is None else [f"written to {options.output}"]
        print("\n".join([*compiled.summary(), *written]))
    return 0


def _write(
    options: argparse.Namespace,
    loaded: LoadedModel,
    compiled: Compiled,
    report: Diagnostics,
    progress: Progress,
) -> list[str]:
    """Write what was asked for; the paths written, relative to the output directory."""
    if options.output is None:
        return []
    if options.output == "-":
        if not options.json:
            sys.stdout.write("\n".join(t for n, t in compiled.files.items() if _is_ir(n)))
        return []
    files: dict[str, Content] = dict(compiled.files)
    if options.weights is not None or options.standalone:
        place = find_weights(loaded.name, loaded.weights, options.weights)
        if place is None:
            fail(
                "weights-not-found",
                f"nothing says where the weights of '{loaded.name}' are",
                help="give them with --weights",
            )
        tensors = open_weights(
            place, loaded.config, options.layers, report, on_read=progress.reading
        )
        check_present(compiled.weight_names, tensors)
        if options.standalone:
            files |= standalone_content(compiled, tensors)
        else:
            files |= weight_files(compiled.weight_names, tensors)
    return write_directory(Path(options.output), files, compiled.facts, options.force, report)


def _check_standalone(options: argparse.Namespace) -> None:
    """Fail with ``bad-argument`` for --standalone where no such directory can be written."""
    if not options.standalone:
        return
    if not target_named(asked_target(options)).ALONE or options.compile_to:
        known = " or ".join(name for name in target_names() if target_named(name).ALONE)
        fail("bad-argument", f"--standalone writes programs for --target {known}")
    if options.output in (None, "-"):
        fail("bad-argument", "--standalone writes a directory, and -o names none")
    if options.serving:
        words = "what serves has its pages from a server, and --standalone writes a host without"
        fail("bad-argument", f"--serving is {options.serving}, but {words}")


def _check_recorded(options: argparse.Namespace) -> None:
    """Fail with ``bad-argument`` for --record without a directory that it could be written to."""
    if options.record and options.output in (None, "-"):
        fail("bad-argument", "--record writes into a directory, and -o names none")


def _is_ir(name: str) -> bool:
    return name.endswith((".meshir", ".mlir"))

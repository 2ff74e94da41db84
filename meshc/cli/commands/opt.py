"""``meshc opt``: parse a module, check it, run passes over it, print it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from meshc.cli.pass_instruments import Watching
from meshc.cli.printing import print_json
from meshc.cli.progress import Progress
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.mlir import print_mlir, read_mlir
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.files import decoded, read_text, write_text
from meshc.support.spans import Source
from meshc.verify.given import checked_module

_LIMIT_BYTES = 64 << 20


def run(options: argparse.Namespace) -> int:
    """Parse, verify, run, print."""
    passes = parse_pipeline(options.passes)
    source = _source(options.file)
    parsed = read_mlir(source) if source.name.endswith(".mlir") else parse_module(source)
    module = checked_module(parsed)
    report = Diagnostics()
    with Progress() as progress:
        watching = Watching.of(options, progress)
        try:
            module = PassManager(passes, watching.instruments).run(module, report)
        finally:
            watching.finish(report)
    text = print_mlir(module) if options.emit == "mlir" else print_module(module)
    files = [] if options.output == "-" else [options.output]
    for name in files:
        write_text(Path(name), text)
    if options.json:
        shown = None if files else text
        print_json({"module": shown, **watching.outcome(files, report)})
    elif not files:
        sys.stdout.write(text)
    return 0


def _source(name: str) -> Source:
    if name != "-":
        return read_text(Path(name), _LIMIT_BYTES)
    data = sys.stdin.buffer.read(_LIMIT_BYTES + 1)
    if len(data) > _LIMIT_BYTES:
        fail("unreadable", f"stdin has more than {_LIMIT_BYTES} bytes")
    return decoded(data, "<stdin>")

"""The parser of the command line: one sub-command per file in ``flags``."""

from __future__ import annotations

import argparse

from meshc.cli.flags import (
    compile,
    completion,
    devices,
    diff,
    estimate,
    explain,
    import_torch,
    man,
    opt,
    passes,
    reproduce,
    run,
    schedule,
    serve,
    serve_trace,
    sim,
    tune,
    view,
)
from meshc.cli.parsing import Parser
from meshc.version import VERSION

_COMMANDS = (
    compile,
    run,
    import_torch,
    opt,
    estimate,
    tune,
    view,
    diff,
    schedule,
    reproduce,
    serve_trace,
    serve,
    devices,
    passes,
    explain,
    sim,
    completion,
    man,
)


def parser() -> argparse.ArgumentParser:
    """The parser; ``command`` of what it gives is the name of a file in ``commands``."""
    found = Parser(
        prog="meshc",
        description="Compile language models onto meshes of cores, and run them.",
        epilog="exit codes: 0 fine, 1 errors in what you gave, 2 usage, 3 a fault of meshc",
    )
    found.add_argument("--version", action="version", version=f"meshc {VERSION}")
    commands = found.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return found

"""The ``sim`` command: ``bin``, ``suite`` and ``run``."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from meshc.sim.commands_folder import own_bin
from meshc.sim.machine.run_options import BACKENDS, MAX_CYCLES, MOST_THREADS_BY_DEFAULT
from meshc.sim.suite import (
    LOOKED_FOR,
    TABLE_HEAD,
    SuiteResult,
    as_json,
    find_commands,
    run_one,
    table_line,
)
from meshc.sim.timing import DEFAULT, MODELS

_MAX_CYCLES_HELP = f"how long the host waits for a program (default: {MAX_CYCLES:,})"
_CORES = f"one for each core, up to {MOST_THREADS_BY_DEFAULT}"


def add_arguments(subparsers: Any) -> None:
    """Add ``bin``, ``suite`` and ``run`` to the sub-parsers of ``meshc sim``."""
    bin_parser = subparsers.add_parser("bin", help="print a directory with cslc and cs_python")
    _add_machine_options(bin_parser)  # of each run of cs_python
    bin_parser.set_defaults(handler=_bin)
    suite = subparsers.add_parser("suite", help="run the scripts of all programs below a directory")
    suite.add_argument("directory")
    suite.add_argument("--only", metavar="GLOB")
    suite.add_argument("--json", action="store_true")
    _add_machine_options(suite)
    suite.add_argument("--timeout", type=int, default=600, help="seconds per script")
    suite.set_defaults(handler=_suite)
    run = subparsers.add_parser("run", help="run a host script with the stand-ins")
    _add_machine_options(run)
    run.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto")
    run.add_argument("--report", metavar="DIR", help="record the run and write its page")
    run.add_argument("script")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    run.set_defaults(handler=_run, fabric=None)


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="remarks of the machine are errors")
    parser.add_argument("--strict-queues", action="store_true", help="queues of the real depth")
    parser.add_argument("--backend", choices=BACKENDS, help="the machine to run on")
    parser.add_argument("--timing", choices=MODELS, help=f"whose cycles (default: {DEFAULT})")
    parser.add_argument("--max-cycles", metavar="N", help=_MAX_CYCLES_HELP)
    parser.add_argument(
        "--threads", metavar="N", help=f"threads of the C machine (default: {_CORES})"
    )


def _bin(args: argparse.Namespace) -> int:
    print(own_bin(cs_python_options(args)))
    return 0


def _run(args: argparse.Namespace) -> int:
    options = cs_python_options(args)
    for name in ("trace", "fabric"):
        if getattr(args, name):
            options += [f"--{name}", getattr(args, name)]
    # The simulator is loaded when a script runs, not to read the flags.
    run_script = import_module("meshc.sim.cs_python").main
    return int(run_script([*options, args.script, *args.arguments]))


def cs_python_options(args: argparse.Namespace) -> list[str]:
    """The options of a command that each run of ``cs_python`` gets."""
    backend = ["--backend", args.backend] if args.backend else []
    strict = ["--strict"] if args.strict else []
    cycles = ["--max-cycles", args.max_cycles] if args.max_cycles else []
    threads = ["--threads", args.threads] if args.threads else []
    queues = ["--strict-queues"] if args.strict_queues else []
    timing = ["--timing", args.timing] if args.timing else []
    return backend + strict + cycles + threads + queues + timing


def _suite(args: argparse.Namespace) -> int:
    root = Path(args.directory).resolve()
    if not os.path.isdir(root):
        print(f"error: '{args.directory}' is no directory", file=sys.stderr)
        return 2
    found = find_commands(root, args.only)
    if not found:
        chosen = f" with '{args.only}' in its path" if args.only else ""
        print(f"error: no {LOOKED_FOR}{chosen} below '{args.directory}'", file=sys.stderr)
        return 1
    results: list[SuiteResult] = []
    if not args.json:
        print(TABLE_HEAD, flush=True)
    for scripts in found:
        results.append(run_one(root, scripts, args.timeout, cs_python_options(args)))
        if not args.json:
            print(table_line(results[-1]), flush=True)
            if not results[-1].passed:
                print("    " + results[-1].detail.replace("\n", "\n    "), flush=True)
    passed = sum(r.passed for r in results)
    if args.json:
        print(as_json(results))
    else:
        print(f"{passed} passed, {len(results) - passed} failed")
    return 0 if passed == len(results) else 1

"""The stand-in for the host interpreter: runs a script with the host packages on its path."""

from __future__ import annotations

import os
import re
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from meshc.sim.host.host_operations import OPTIONS
from meshc.sim.host.numpy_changes import shift_remark
from meshc.sim.host.run_progress import Progress
from meshc.sim.machine.run_options import MAX_CYCLES, Options
from meshc.sim.machines import backend_of, timing_of
from meshc.support.diagnostics import Diagnostic, MeshcError, fail

STAND_IN = Path(__file__).parent / "stand_in"


def take_options(args: list[str]) -> Options:
    """Remove the simulator's own options from the front of ``args``."""
    flags, files = set[str](), dict[str, str]()
    while args and args[0].startswith("--"):
        name = args.pop(0)
        if name in ("--strict", "--strict-queues"):
            flags.add(name)
        elif name in ("--cycles", "--trace", "--fabric", "--backend", "--max-cycles",
                      "--threads", "--timing") and args:  # fmt: skip
            files[name] = args.pop(0)
        else:
            fail("csl-usage", f"cs_python has no option '{name}'")
    options = Options(
        strict="--strict" in flags,
        strict_queues="--strict-queues" in flags,
        cycles_file=files.get("--cycles"),
        trace_file=files.get("--trace"),
        fabric_file=files.get("--fabric"),
        backend=files.get("--backend"),
        max_cycles=_positive("--max-cycles", files.get("--max-cycles")) or MAX_CYCLES,
        threads=_positive("--threads", files.get("--threads")),
        timing=files.get("--timing"),
    )
    backend_of(options)
    timing_of(options)
    return options


def _positive(name: str, text: str | None) -> int | None:
    """The value of an option that is a positive number."""
    if text is None:
        return None
    if re.fullmatch(r"[1-9]\d{0,14}", text) is None:
        fail("csl-usage", f"{name} is {text}, not a positive number")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``[options] script args...``; simulator errors are printed, with exit code 1."""
    args = list(argv if argv is not None else sys.argv[1:])
    try:
        OPTIONS[0] = take_options(args)
    except MeshcError as problem:
        print(problem, file=sys.stderr)
        return 2
    if not args:
        print(
            "usage: cs_python [--backend auto|python|c] [--strict] [--strict-queues] "
            "[--timing MODEL] [--max-cycles N] [--threads N] [--trace FILE] [--fabric FILE] SCRIPT "
            "[ARGUMENT...]",
            file=sys.stderr,
        )
        return 2
    sys.setrecursionlimit(50_000)
    script = Path(args[0])
    if not os.path.isfile(script):
        print(Diagnostic("error", "csl-usage", f"there is no script '{script}'").render(),
              file=sys.stderr)  # fmt: skip
        return 2
    found = shift_remark(script)
    if found is not None:
        print(found.render(), file=sys.stderr)
    sys.argv = args
    sys.path[0:1] = [str(script.resolve().parent), str(STAND_IN)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except MeshcError as problem:
        Progress(0).close()
        print(problem, file=sys.stderr)
        return 1
    except Exception as problem:  # theirs: shown as Python shows it
        Progress(0).close()
        missing = _missing_name(problem, script)
        told = missing.render() + "\n" if missing else _their_traceback(problem, args[0])
        print(told, file=sys.stderr, end="")
        return 1
    return 0


def _their_traceback(problem: Exception, script: str) -> str:
    """The traceback from the first line of the script on; none for what is no Python at all."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(problem), problem, trace))


def _missing_name(problem: Exception, script: Path) -> Diagnostic | None:
    """A module of others that is not installed, or what the stand-in does not have; None for any
    other exception."""
    if not isinstance(problem, ImportError):
        return None
    name, advice = problem.name or str(problem), None
    ours = name.partition(".")[0] == "cerebras"
    if not isinstance(problem, ModuleNotFoundError):
        if not ours:
            return None
        words = f"{str(problem).partition(' (')[0]}: the stand-in has no such name"
    elif ours:
        words = f"the stand-in has no host module '{name}'"
    else:
        words = f"'{script}' needs the Python module '{name}', which is not installed"
        advice = f"install it for {sys.executable}"
    return Diagnostic("error", "csl-host-module", words, help=advice)


if __name__ == "__main__":
    sys.exit(main())

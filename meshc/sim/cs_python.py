"""The stand-in for the host interpreter: runs a script with the host packages on its path."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from meshc.sim.backends import backend_of
from meshc.sim.host.runtime import OPTIONS
from meshc.sim.machine.options import Options
from meshc.support.diagnostics import MeshcError, fail

STAND_IN = Path(__file__).parent / "stand_in"


def take_options(args: list[str]) -> Options:
    """Remove the simulator's own options from the front of ``args``."""
    strict, files = False, dict[str, str]()
    while args and args[0].startswith("--"):
        name = args.pop(0)
        if name == "--strict-queues":
            strict = True
        elif name in ("--cycles", "--trace", "--report", "--backend") and args:
            files[name] = args.pop(0)
        else:
            fail("csl-usage", f"cs_python has no option '{name}'")
    options = Options(strict, files.get("--cycles"), files.get("--trace"), files.get("--report"),
                      files.get("--backend"))  # fmt: skip
    backend_of(options)
    return options


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
            "usage: cs_python [--backend auto|python|c] [--strict-queues] [--trace FILE] "
            "[--report DIR] SCRIPT [ARGUMENT...]",
            file=sys.stderr,
        )
        return 2
    sys.setrecursionlimit(50_000)
    script = Path(args[0])
    sys.argv = args
    sys.path[0:1] = [str(script.resolve().parent), str(STAND_IN)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except MeshcError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

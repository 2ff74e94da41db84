"""The stand-in for the host interpreter: runs a script with the host packages on its path."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from meshc.support.diagnostics import MeshcError

STAND_IN = Path(__file__).parent / "stand_in"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``script args...``; simulator errors are printed as messages, with exit code 1."""
    args = list(argv if argv is not None else sys.argv[1:])
    if not args:
        print("usage: cs_python SCRIPT [ARGUMENT...]", file=sys.stderr)
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

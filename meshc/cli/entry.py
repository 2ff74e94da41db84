"""The console script: signals are handled before anything that takes time is imported."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib import import_module

from meshc.cli.signals import Signals

# Compilers make many objects that stay: looking for cycles among them as often as Python does by
# itself takes some 6 % of the time that a model for a wafer compiles in.
_SELDOM = 50_000, 20, 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` spell, and give its exit code.

    Without ``arguments`` it is that of the process, whose signals are handled until its end; a
    caller in Python has its own handlers back afterwards. Usage errors leave by SystemExit with
    code 2, as argparse has it.
    """
    signals = Signals()
    signals.install()
    if arguments is None:
        gc.set_threshold(*_SELDOM)
    try:
        code: int = import_module("meshc.cli.dispatch").dispatch(arguments, signals)
        return code
    finally:
        if arguments is not None:
            signals.restore()

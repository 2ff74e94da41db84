"""The console script: signals are handled before anything that takes time is imported."""

from __future__ import annotations

import gc
import os
import sys
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
        _stand_in()
    try:
        code: int = import_module("meshc.cli.outcomes").dispatch(arguments, signals)
        return code
    finally:
        if arguments is not None:
            signals.restore()


def _stand_in() -> None:
    """Something for each standard stream that is closed, in order: a file that is opened later
    would have its number, and what is said would be written there."""
    for name, mode in zip(("stdin", "stdout", "stderr"), "rww", strict=True):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115

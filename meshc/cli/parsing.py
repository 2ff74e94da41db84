"""What all parsers of the command line have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from meshc.support.diagnostics import Diagnostics

_GIVEN = "_given"


class Parser(argparse.ArgumentParser):
    """A parser, and those of its sub-commands, that counts how often a flag with one value is
    given."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for name in (None, "store"):
            self.register("action", name, _Counted)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help or what is wrong with the words. Raises OSError where that is not possible,
        which argparse passes over."""
        if message:
            (file or sys.stderr).write(message)


class _Counted(argparse.Action):
    """Store a value, and the flag that gave it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None:
            vars(namespace).setdefault(_GIVEN, []).append(self.option_strings[-1])
        setattr(namespace, self.dest, values)


def check_once(options: argparse.Namespace) -> None:
    """Raise ``bad-argument`` for flags given twice where one of the values would count alone."""
    given, found = getattr(options, _GIVEN, []), Diagnostics()
    for flag in dict.fromkeys(given):
        if given.count(flag) > 1:
            found.error("bad-argument", f"{flag} is given twice, and one value would count")
    found.raise_errors()

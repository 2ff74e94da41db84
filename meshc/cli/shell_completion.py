"""Completion on the command line of a shell. The only module that imports argcomplete.

The shell's script (``meshc completion SHELL``) runs meshc for every completion, with variables in
the environment that say what was typed; the answer is what the parser of the flags allows there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from argcomplete import autocomplete
from argcomplete.completers import FilesCompleter
from argcomplete.shell_integration import shellcode

from meshc.devices import brought_devices, device_names
from meshc.support.diagnostics import known_codes

_ALTERNATIVES = re.compile(r"[a-z0-9_-]+(\|[a-z0-9_-]+)+")


def script(shell: str) -> str:
    """The text that a shell evaluates to complete ``meshc``."""
    return shellcode(["meshc"], shell=shell)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end the process."""
    for action in _actions(parser):
        values = _values(str(action.metavar))
        if values is not None:
            vars(action)["completer"] = values
    autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The flags and arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _values(metavar: str) -> Callable[..., Iterable[str]] | None:
    """What completes an argument that help calls ``metavar``; None for files and free text."""
    if _ALTERNATIVES.fullmatch(metavar):
        return lambda **_: metavar.split("|")
    return _KNOWN.get(metavar)


def _devices(prefix: str, **_: Any) -> list[str]:
    return [*device_names(), *brought_devices(), *FilesCompleter(["toml"])(prefix)]


def _models(prefix: str, **_: Any) -> list[str]:
    known = import_module("meshc.frontend.checkpoints").catalogue_names()
    return [*known, *FilesCompleter()(prefix)]


def _passes(**_: Any) -> list[str]:
    return [step.NAME for step in import_module("meshc.passes.registry").PASSES]


def _codes(**_: Any) -> list[str]:
    return sorted(known_codes())


_KNOWN: dict[str, Callable[..., Iterable[str]]] = {
    "NAME|FILE.toml": _devices,
    "MODEL": _models,
    "MODEL|DIR": _models,
    "MODEL|M K N": _models,
    "PASS": _passes,
    "CODE": _codes,
}

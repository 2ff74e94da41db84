"""Whose fault it is: what breaks while lines of an installed package run that brought something is
the fault of neither the user nor meshc.
"""

from __future__ import annotations

import traceback

from meshc.support.diagnostics import Diagnostic, MeshcError, Reproducer

_BROUGHT: dict[str, list[str]] = {}
"""What was loaded of a package, by the name of its top module."""


def note_package(module: str, what: str) -> None:
    """Remember that ``what`` was loaded from a ``module``."""
    known = _BROUGHT.setdefault(_package_of(module), [])
    if what not in known:
        known.append(what)


def blamed(problem: BaseException, again: Reproducer | None = None) -> MeshcError | None:
    """``bad-plugin`` for what broke while code of a package that brought something was running, its
    lines from the innermost one on; None for what has no line of one."""
    for frame, _ in reversed([*traceback.walk_tb(problem.__traceback__)]):
        package = _package_of(frame.f_globals.get("__name__"))
        if package in _BROUGHT:
            said = f"{' or '.join(_BROUGHT[package])} failed: {fault_words(problem)}"
            return _error(said, package, problem, again=again)
    return None


def failed(
    what: str, package: str, problem: BaseException, otherwise: str, again: Reproducer
) -> MeshcError:
    """``bad-plugin`` for ``what`` a ``package`` brought that did not do its work; where no line of
    it was running, the place ``otherwise`` is named."""
    return _error(f"{what} failed: {fault_words(problem)}", package, problem, otherwise, again)


def _error(
    said: str,
    package: str,
    problem: BaseException,
    otherwise: str = "",
    again: Reproducer | None = None,
) -> MeshcError:
    places = [
        f"at {frame.f_code.co_filename}:{line}"
        for frame, line in reversed([*traceback.walk_tb(problem.__traceback__)])
        if _package_of(frame.f_globals.get("__name__")) == package
    ]
    notes = tuple(places or ([otherwise] if otherwise else []))
    help = "this is a fault of that package, or it was given what it does not expect"
    return MeshcError([Diagnostic("error", "bad-plugin", said, None, notes, help, again)])


def _package_of(module: object) -> str:
    return str(module).partition(".")[0]


def fault_words(problem: BaseException) -> str:
    """An exception in words."""
    return f"{type(problem).__name__}: {problem}"

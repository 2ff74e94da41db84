"""``meshc passes``: the passes, what one needs, does and takes, and what an op or a microkernel
declares."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import TypeVar

from meshc.cli.printing import columns, print_json
from meshc.ir.core import OP_CLASSES
from meshc.ir.kernels import KERNELS, Kernel
from meshc.ir.signatures import form_of
from meshc.passes.base import Pass, option_text
from meshc.passes.registry import pass_class, pass_names
from meshc.support.diagnostics import MeshcError

Shown = TypeVar("Shown")


def run(options: argparse.Namespace) -> int:
    """List or explain."""
    if options.name in OP_CLASSES or options.name in _microkernels():
        _declaration(options.name, options.json)
    elif options.name is not None:
        found = pass_class(options.name)
        if options.json:
            print_json(_facts(found))
        else:
            print(_explained(found))
    elif options.json:
        print_json({"passes": [_known(name, _facts, _fault) for name in pass_names()]})
    else:
        shown = [(name, _known(name, _first_line, _unusable)) for name in pass_names()]
        print(columns(shown))
    return 0


def _microkernels() -> dict[str, Kernel]:
    return {f"tile.{name}": kernel for name, kernel in KERNELS.items()}


def _declaration(name: str, as_json: bool) -> None:
    """Print what an op or a microkernel takes, gives and computes."""
    if name in OP_CLASSES:
        form = form_of(OP_CLASSES[name]())
        doc = inspect.getdoc(OP_CLASSES[name]) or ""
    else:
        kernel = _microkernels()[name]
        form, doc = str(kernel), kernel.doc
    if as_json:
        print_json({"name": name, "form": form, "doc": doc})
    else:
        print(f"{form}\n\n{doc}")


def _known(
    name: str, good: Callable[[type[Pass]], Shown], bad: Callable[[str, str], Shown]
) -> Shown:
    """What is to be shown of a pass, or of one that another package brings and that is broken."""
    try:
        return good(pass_class(name))
    except MeshcError as problem:
        return bad(name, problem.diagnostics[0].message)


def _unusable(name: str, words: str) -> str:
    return f"not usable: {words}"


def _fault(name: str, words: str) -> dict[str, object]:
    return {"name": name, "error": words}


def _first_line(cls: type[Pass]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _facts(cls: type[Pass]) -> dict[str, object]:
    return {
        "name": cls.NAME,
        "summary": _first_line(cls),
        "levels": list(cls.LEVELS),
        "requires": sorted(cls.REQUIRES),
        "establishes": sorted(cls.ESTABLISHES),
        "invalidates": sorted(cls.INVALIDATES),
        "options": cls().options(),
    }


def _explained(cls: type[Pass]) -> str:
    defaults = cls().options()
    rows = [("levels", ", ".join(cls.LEVELS))]
    for word, facts in (
        ("requires", cls.REQUIRES),
        ("establishes", cls.ESTABLISHES),
        ("invalidates", cls.INVALIDATES),
    ):
        if facts:
            rows.append((word, ", ".join(sorted(facts))))
    rows += [("option", f"{name}={option_text(value)}") for name, value in defaults.items()]
    return f"{cls.NAME}\n\n{inspect.getdoc(cls)}\n\n{columns(rows)}"

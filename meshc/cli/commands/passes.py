"""``meshc passes``: the passes, and what one needs, does and takes."""

from __future__ import annotations

import argparse
import difflib
import inspect

from meshc.cli.output import columns, print_json
from meshc.passes.base import Pass, option_text
from meshc.passes.registry import PASSES, pass_class
from meshc.support.diagnostics import fail


def run(options: argparse.Namespace) -> int:
    """List or explain."""
    if options.name is not None:
        found = _known(options.name)
        if options.json:
            print_json(_facts(found))
        else:
            print(_explained(found))
    elif options.json:
        print_json({"passes": [_facts(cls) for cls in PASSES]})
    else:
        print(columns((cls.NAME, _first_line(cls)) for cls in PASSES))
    return 0


def _known(name: str) -> type[Pass]:
    found = pass_class(name)
    if found is None:
        names = [cls.NAME for cls in PASSES]
        near = difflib.get_close_matches(name, names, n=1)
        fail(
            "unknown-pass",
            f"there is no pass '{name}'",
            notes=[f"passes: {', '.join(names)}"],
            help=f"did you mean '{near[0]}'?" if near else None,
        )
    return found


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

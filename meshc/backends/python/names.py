"""Identifiers and file names of the emitted program, from names that a model file may hold."""

from __future__ import annotations

import builtins
import keyword
import re

from meshc.ir.kernels import KERNELS
from meshc.support.diagnostics import fail

_RUNTIME = ("Fabric", "Hop", "Phase", "element", "memo", "span", "wait")
_LOCAL = ("core", "fabric", "phase", "step")
RESERVED = frozenset({*dir(builtins), *keyword.kwlist, *keyword.softkwlist, *_RUNTIME, *_LOCAL})
_SAFE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}\Z")


class Names:
    """Gives each named thing an identifier of its own, close to its name."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(RESERVED | taken | KERNELS.keys())
        self._known: dict[tuple[str, str], str] = {}

    def of(self, kind: str, name: str) -> str:
        """The identifier of the thing of ``kind`` called ``name``; the same at every call."""
        known = self._known.get((kind, name))
        if known is None:
            known = self._known[kind, name] = self.fresh(name)
        return known

    def fresh(self, name: str) -> str:
        """A new identifier that resembles ``name``."""
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "value"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        found, count = plain, 1
        while found in self._taken:
            count += 1
            found = f"{plain}_{count}" if plain not in RESERVED or count > 2 else f"{plain}_"
        self._taken.add(found)
        return found


def file_stem(name: str) -> str:
    """``name``, if it can be a file of its own folder on any system; else ``unsafe-name``."""
    if not _SAFE_FILE.match(name) or name.endswith("."):
        fail(
            "unsafe-name",
            f"'{name[:80]}' cannot be the name of a weight file",
            help="use letters, digits, '_', '-' and '.', at most 200, not first '-' or '.'",
        )
    return name

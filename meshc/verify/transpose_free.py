"""transpose_free: no op moves data only to reorder dims."""

from __future__ import annotations

from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostics


def check(module: Module) -> None:
    """Every op is looked at; each transpose left is one ``transposes-left`` error."""
    found = Diagnostics()
    for op in module.walk():
        if op.NAME.endswith(".transpose"):
            results = ", ".join(map(str, op.results))
            found.error("transposes-left", f"{op.NAME} still gives {results}", op.span)
    found.raise_errors()

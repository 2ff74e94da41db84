"""Modules that need packages of an extra, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from meshc.support.diagnostics import fail


def module_of_extra(name: str, extra: str, purpose: str) -> ModuleType:
    """The module ``name``, which ``purpose`` needs. Errors: ``missing-extra`` for packages of
    others; a module of meshc that is not there is a fault, and raised as it is."""
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        missing = f"needs the Python package '{error.name}', which is not installed"
        broken = f"needs packages that cannot be imported: {str(error).partition(chr(10))[0]}"
        words = missing if isinstance(error, ModuleNotFoundError) else broken
        fail("missing-extra", f"{purpose} {words}", help=f"pip install 'meshc[{extra}]'")

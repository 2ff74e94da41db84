"""Modules that need packages of an extra, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from meshc.support.diagnostics import fail


def module_of_extra(name: str, extra: str, purpose: str) -> ModuleType:
    """The module ``name``, which ``purpose`` needs. Errors: ``missing-extra``."""
    try:
        return import_module(name)
    except ImportError as error:
        missing = f"needs the Python package '{error.name}', which is not installed"
        broken = f"needs packages that cannot be imported: {str(error).partition(chr(10))[0]}"
        words = missing if isinstance(error, ModuleNotFoundError) else broken
        fail("missing-extra", f"{purpose} {words}", help=f"pip install 'meshc[{extra}]'")

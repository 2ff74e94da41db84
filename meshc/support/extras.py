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
        fail(
            "missing-extra",
            f"{purpose} needs the Python package '{error.name}', which is not installed",
            help=f"pip install 'meshc[{extra}]'",
        )

"""Modules from outside: nothing that their text says is believed before it is checked."""

from __future__ import annotations

from meshc.devices import check_device
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.support.diagnostics import Diagnostic, MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims


def read_module(source: Source) -> Module:
    """The module that ``source`` spells: verified, with its device numbers and claims checked.

    Raises :class:`MeshcError` with every mistake of the first check that finds any.
    """
    return checked_module(parse_module(source))


def checked_module(module: Module) -> Module:
    """``module`` as somebody gave it: verified, with its device numbers and claims checked. Raises
    as :func:`read_module`."""
    verify_module(module)
    _check_device(module)
    check_claims(module)
    return module


def _check_device(module: Module) -> None:
    """Fail with ``bad-device`` at the section of the header."""
    if module.device is None:
        return
    try:
        check_device(module.device)
    except MeshcError as error:
        place = module.places.get("device")
        raise MeshcError(
            Diagnostic(d.severity, d.code, d.message, place, d.notes, d.help)
            for d in error.diagnostics
        ) from None

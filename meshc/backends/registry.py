"""Targets by name. meshc's own are the folders here, which are imported when they are asked for.
Installed packages bring others by entry points of the group ``meshc.targets``.
"""

from __future__ import annotations

from importlib import import_module

from meshc.backends.target_options import OWN as RECORDS
from meshc.support.plugins import Kind

OWN = tuple(RECORDS)
"""meshc's own targets, that of a request which names none first."""


def target_names() -> tuple[str, ...]:
    """All targets. Raises ``bad-plugin`` where entry points cannot be read."""
    return (*OWN, *(name for name in KIND.names() if name not in OWN))


def found_target(name: str) -> object:
    """The target ``name``, None where there is none. Raises ``bad-plugin`` for two packages that
    bring it, and for one that cannot be loaded."""
    if name in OWN:
        return import_module(f"meshc.backends.{name}.target").TARGET
    return KIND.named(name)


def _fault(name: str, found: object) -> str:
    """What is wrong with an object that is offered as the target ``name``, or an empty text."""
    called = getattr(found, "NAME", None)
    if called is None:
        return "is no meshc.Target"
    return f"calls itself '{called}'; both names must be the same" if called != name else ""


KIND = Kind("meshc.targets", "target", "docs/targets.md", _fault)
"""Targets of installed packages."""

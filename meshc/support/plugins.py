"""What installed packages bring by entry points: found by name, and loaded when it is asked for.

What is wrong with a package is the fault of neither the user nor meshc, so messages name it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from meshc.support.diagnostics import fail
from meshc.support.spans import Span

Judge = Callable[[str, Any], str]
"""What is wrong with an object that is offered by a name, or an empty text."""


@dataclass(frozen=True)
class Offer:
    """What an installed package offers as ``name``; ``origin`` says which package."""

    name: str
    origin: str
    entry: EntryPoint


@cache
def offers(group: str) -> tuple[Offer, ...]:
    """What all installed packages offer in a ``group``, by name; nothing is imported. Raises
    ``bad-plugin``."""
    try:
        found = {_offer(entry) for entry in entry_points(group=group)}
    except Exception as problem:  # metadata that someone else has written
        fail("bad-plugin", f"entry points of installed packages cannot be read: {words(problem)}")
    return tuple(sorted(found, key=lambda offer: (offer.name, offer.origin)))


def _offer(entry: EntryPoint) -> Offer:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package"
    return Offer(entry.name, f"{package} ({entry.value})", entry)


def loaded(offer: Offer, kind: str, judge: Judge, page: str, span: Span | None = None) -> Any:
    """The object that is offered, of a ``kind`` that ``page`` describes. Raises ``bad-plugin`` for
    what cannot be loaded, and for what ``judge`` finds wrong."""
    try:
        found = offer.entry.load()
        fault = judge(offer.name, found)
    except (Exception, SystemExit) as problem:  # whatever its module does when it is imported
        fault = f"cannot be loaded: {words(problem)}"
    if fault:
        fail(
            "bad-plugin",
            f"{kind} '{offer.name}' of {offer.origin} {fault}",
            span,
            help=f"{page} says what a package must bring; without this one nothing is lost",
        )
    return found


def words(problem: BaseException) -> str:
    """An exception in words."""
    return f"{type(problem).__name__}: {problem}"

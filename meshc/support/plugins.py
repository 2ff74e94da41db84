"""What installed packages bring by entry points: found by name, and loaded when it is asked for.

What is wrong with a package is the fault of neither the user nor meshc, so messages name it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshc.support.blame import fault_words, note_package
from meshc.support.diagnostics import fail
from meshc.support.spans import Span

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Judge = Callable[[str, Any], str]
"""What is wrong with an object that is offered by a name, or an empty text."""


@dataclass(frozen=True)
class Offer:
    """What an installed package offers as ``name``; ``origin`` says which package."""

    name: str
    origin: str
    entry: EntryPoint


@dataclass(frozen=True)
class Kind:
    """What packages bring in entry points of a ``group``: what one is called, the ``page`` that
    says what it must be, and who looks whether it is that."""

    group: str
    called: str
    page: str
    judge: Judge

    def names(self) -> list[str]:
        """What all installed packages offer; nothing is imported. Raises ``bad-plugin``."""
        return list(dict.fromkeys(offer.name for offer in offers(self.group)))

    def offers(self, name: str) -> list[Offer]:
        """What is offered as ``name``."""
        return [offer for offer in offers(self.group) if offer.name == name]

    def named(self, name: str, span: Span | None = None) -> Any:
        """The object that is offered as ``name``, None where none is. Raises ``bad-plugin`` for two
        packages that offer it, and as :meth:`loaded`."""
        found = self.offers(name)
        if len(found) > 1:
            origins = " and ".join(offer.origin for offer in found)
            fail("bad-plugin", f"{self.called} '{name}' is brought by {origins}", span)
        return self.loaded(found[0], span) if found else None

    def loaded(self, offer: Offer, span: Span | None = None) -> Any:
        """The object that is offered. Raises ``bad-plugin`` for what cannot be loaded, and for what
        the judge finds wrong."""
        what = f"{self.called} '{offer.name}' of {offer.origin}"
        try:
            found = offer.entry.load()
            fault = self.judge(offer.name, found)
        except (Exception, SystemExit) as problem:  # whatever its module does when it is imported
            fault = f"cannot be loaded: {fault_words(problem)}"
        if fault:
            fail(
                "bad-plugin",
                f"{what} {fault}",
                span,
                help=f"{self.page} says what a package must bring; without this one nothing is "
                "lost",
            )
        note_package(offer.entry.module, what)
        return found


@cache
def offers(group: str) -> tuple[Offer, ...]:
    """What all installed packages offer in a ``group``, by name; nothing is imported. Raises
    ``bad-plugin``."""
    try:
        metadata = import_module("importlib.metadata")  # loaded where something is looked for
        found = {_offer(entry) for entry in metadata.entry_points(group=group)}
    except Exception as problem:  # metadata that someone else has written
        fail(
            "bad-plugin",
            f"entry points of installed packages cannot be read: {fault_words(problem)}",
        )
    return tuple(sorted(found, key=lambda offer: (offer.name, offer.origin)))


def _offer(entry: EntryPoint) -> Offer:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package"
    return Offer(entry.name, f"{package} ({entry.value})", entry)

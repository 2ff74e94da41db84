"""The messages of one model, with an end: a broken text must not cost a minute of reporting."""

from __future__ import annotations

from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError

MOST_MESSAGES = 100


class Stopped(MeshcError):
    """Nothing more is looked for; whoever catches errors to go on lets this one pass."""


class Found(Diagnostics):
    """Collects messages up to a limit. Of two alike at one place only the first is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[object, ...]] = set()

    def add(self, diagnostic: Diagnostic) -> None:
        """Append ``diagnostic``; raises :class:`Stopped` when there are too many errors."""
        span = diagnostic.span
        place = (span.source.name, span.line, span.column) if span else ()
        key = (diagnostic.code, diagnostic.message, *place)
        if key in self._seen:
            return
        full = len(self.messages) >= MOST_MESSAGES
        if full and diagnostic.severity == "error":
            raise Stopped([*self.errors, diagnostic])
        if not full:
            self._seen.add(key)
            self.messages.append(diagnostic)

"""Work that threads do at once, and now and then one of them while no other does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turns:
    """Who may work: any number of threads beside each other, or one alone, which new ones wait
    for."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._working = 0
        self._alone = False

    @contextmanager
    def beside_others(self) -> Iterator[None]:
        """Work while nobody is to be alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work once all have ended who do; others begin behind it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: self._working == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()

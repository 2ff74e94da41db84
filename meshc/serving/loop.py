"""A server in a thread of its own: requests come from other threads, and tokens go back to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from meshc.serving.engine import Choose, Record, Server
from meshc.support.diagnostics import MeshcError

Reason = Literal["", "stop", "length", "error"]


@dataclass(frozen=True)
class News:
    """Of a request: its next ``token``, and why it is the last one, or ``""``. ``error`` says in
    ``words`` that the request was given up."""

    token: int | None
    reason: Reason = ""
    words: str = ""


Listener = Callable[[News], None]
"""Called in the thread of the loop; must return at once."""


@dataclass(frozen=True)
class _Coming:
    name: int
    prompt: tuple[int, ...]
    most: int
    stop: Collection[int]
    choose: Choose | None


class Loop:
    """Runs the iterations of ``server`` as long as it has requests.

    ``submit`` and ``cancel`` may be called from any thread; what they ask for is done between two
    iterations.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._changed = threading.Condition()
        self._inbox: list[_Coming | int] = []
        self._listeners: dict[int, Listener] = {}
        self._stops: dict[int, Collection[int]] = {}
        self._names = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="serving", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(
        self,
        prompt: Sequence[int],
        most: int,
        stop: Collection[int],
        listener: Listener,
        choose: Choose | None = None,
    ) -> int:
        """Queue a request, of which ``listener`` hears; its name. ``choose`` is that of
        :meth:`Server.submit`.

        Errors: those of :meth:`Server.check`, at once.
        """
        self.server.check(prompt, most)
        with self._changed:
            name = self._names
            self._names += 1
            self._listeners[name] = listener
            self._stops[name] = stop
            self._inbox.append(_Coming(name, tuple(prompt), most, stop, choose))
            self._changed.notify()
        return name

    def cancel(self, name: int) -> None:
        """Forget request ``name``, of which nobody hears any more, and free its memory."""
        with self._changed:
            if self._listeners.pop(name, None) is not None:
                self._inbox.append(name)
                self._changed.notify()

    def close(self, seconds: float) -> bool:
        """Finish what runs, for at most ``seconds``; whether that was enough."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._take_in():
            served = list(self.server.jobs)
            try:
                record = self.server.step()
            except Exception as error:
                for name in served:
                    self._news(name, News(None, "error", f"the iteration failed: {error}"))
            else:
                if record is not None:
                    self._tell(record)

    def _take_in(self) -> bool:
        """Wait until there is something to do, and let requests in and out; False at the end."""
        with self._changed:
            while not self._inbox and self.server.idle:
                if self._closing:
                    return False
                self._changed.wait()
            inbox, self._inbox = self._inbox, []
        for one in inbox:
            if isinstance(one, int):
                self.server.cancel(one)
                self._stops.pop(one, None)
                continue
            try:
                self.server.submit(one.name, one.prompt, one.most, one.stop, one.choose)
            except MeshcError as error:
                self._news(one.name, News(None, "error", str(error)))
        return True

    def _tell(self, record: Record) -> None:
        for name, token in record.tokens.items():
            reason: Reason = ""
            if name in record.ended:
                reason = "stop" if token in self._stops[name] else "length"
            self._news(name, News(token, reason))
        for name, words in record.failed.items():
            self._news(name, News(None, "error", words))

    def _news(self, name: int, news: News) -> None:
        with self._changed:
            listener = self._listeners.get(name)
            if news.reason:
                self._listeners.pop(name, None)
                self._stops.pop(name, None)
        if listener is not None:
            listener(news)

"""A server in a thread of its own: requests come from other threads, and tokens go back to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from meshc.serving.engine import Record, Server
from meshc.serving.sampling import Choose
from meshc.serving.server_watchers import Course, Ending, Watcher
from meshc.support.diagnostics import MeshcError

MOST_WAITING = 512
_MOST_TOKENS = 1 << 22

Reason = Literal["", "stop", "length", "error"]


@dataclass(frozen=True)
class News:
    """News of a request: its next ``token``, and why it is the last one, or ``""``. ``error`` says
    in ``words`` that the request was given up. The first ``cached`` tokens of its prompt were not
    read, as caches of an earlier request held them."""

    token: int | None
    reason: Reason = ""
    words: str = ""
    cached: int = 0


Listener = Callable[[News], None]
"""Called in the thread of the loop; must return at once."""


class FullError(Exception):
    """No more requests may wait."""

    def __init__(self) -> None:
        super().__init__("as many requests wait as may: try again later")


@dataclass(frozen=True)
class _Live:
    """A request that has not ended: who hears of it, and its own end tokens."""

    name: int
    prompt: tuple[int, ...]
    most: int
    stop: Collection[int]
    choose: Choose | None
    given: int
    listener: Listener
    course: Course


class Loop:
    """Runs the iterations of ``server`` as long as it has requests.

    ``submit`` and ``cancel`` may be called from any thread; what they ask for is done between two
    iterations. At most ``most_waiting`` requests wait beside those that are served, with prompts of
    some million tokens. ``watchers`` hear of all requests.
    """

    def __init__(
        self,
        server: Server,
        most_waiting: int = MOST_WAITING,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.server, self.watchers = server, [*watchers]
        self._most = server.engine.requests + most_waiting
        self._changed = threading.Condition()
        self._inbox: list[_Live | int] = []
        self._live: dict[int, _Live] = {}
        self._read_from: dict[int, int] = {}
        self._names = self._tokens = 0
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
        given: int = 0,
    ) -> int:
        """Queue a request, of which ``listener`` hears; its name. ``choose`` and ``given`` are
        those of :meth:`Server.submit`.

        Errors: those of :meth:`Server.check`, at once, and :class:`FullError`.
        """
        self.server.check(prompt, most)
        with self._changed:
            if self.full:
                raise FullError
            name = self._names
            self._names += 1
            course = Course(name, len(prompt) + given, tuple(self.watchers))
            asked = tuple(prompt), most, stop, choose, given
            self._live[name] = _Live(name, *asked, listener, course)
            self._tokens += len(prompt)
            self._inbox.append(self._live[name])
            self._changed.notify()
        return name

    @property
    def full(self) -> bool:
        """Whether no more requests may wait."""
        return len(self._live) >= self._most or self._tokens >= _MOST_TOKENS

    def cancel(self, name: int, reason: Ending = "cancelled") -> None:
        """Forget request ``name``, of which nobody hears any more, and free its memory; watchers
        hear of the ``reason``."""
        with self._changed:
            live = self._forgotten(name)
            if live is not None:
                live.course.end(reason)
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
                continue
            try:
                self.server.submit(one.name, one.prompt, one.most, one.stop, one.choose, one.given)
            except MeshcError as error:
                self._news(one.name, News(None, "error", str(error)))
        return True

    def _tell(self, record: Record) -> None:
        with self._changed:
            for name, start, _ in record.segments:
                if name in self._live:
                    self._read_from.setdefault(name, start)
        for name, tokens in record.tokens.items():
            last: Reason = ""
            if name in record.ended:
                last = "stop" if name in record.stopped else "length"
            cached = self._read_from.get(name, 0)
            for number, token in enumerate(tokens, 1):
                reason = last if number == len(tokens) else ""
                self._news(name, News(token, reason, cached=cached))
        for name, words in record.failed.items():
            self._news(name, News(None, "error", words))

    def _news(self, name: int, news: News) -> None:
        with self._changed:  # so that nobody hears of a request that is cancelled
            live = self._live.get(name)
            if live is None:
                return
            if news.token is not None:
                live.course.token()
            if news.reason:
                self._forgotten(name)
                live.course.end(news.reason, news.words)
            live.listener(news)

    def _forgotten(self, name: int) -> _Live | None:
        """Request ``name``, which was there until now."""
        live = self._live.pop(name, None)
        self._read_from.pop(name, None)
        if live is not None:
            self._tokens -= len(live.prompt)
        return live

"""Work that would hold up an event loop, in threads that do not hold up the end of the process.

Whoever stops waiting for work that has begun lets it run to its end alone.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """What ``work`` gives or raises in a thread of its own."""
    found, run = _job(work, *arguments)
    threading.Thread(target=run, name="endpoint", daemon=True).start()
    return await found


class Worker:
    """One thread for work that comes often: an event loop that starts a thread waits until that one
    has had its turn among all others."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_run, args=(self._inbox,), name="worker", daemon=True).start()
        weakref.finalize(self, self._inbox.put, None)

    async def does(self, work: Callable[..., T], *arguments: Any) -> T:
        """What ``work`` gives or raises, behind what was asked for before."""
        found, run = _job(work, *arguments)
        self._inbox.put(run)
        return await found


def _run(inbox: SimpleQueue[Callable[[], None] | None]) -> None:
    while (run := inbox.get()) is not None:
        run()


def _job(work: Callable[..., T], *arguments: Any) -> tuple[asyncio.Future[T], Callable[[], None]]:
    """What the event loop awaits, and what another thread runs for it."""
    here = asyncio.get_running_loop()
    found: asyncio.Future[T] = here.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        if found.done():
            return
        result, error = None, None
        try:
            result = work(*arguments)
        except BaseException as problem:  # raised again where it is awaited
            error = problem
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            here.call_soon_threadsafe(settle, result, error)

    return found, run

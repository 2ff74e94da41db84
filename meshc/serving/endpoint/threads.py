"""Work that would hold up an event loop, in threads that do not hold up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """What ``work`` gives or raises. Whoever stops waiting for it lets it run to its end alone."""
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
        result, error = None, None
        try:
            result = work(*arguments)
        except BaseException as problem:  # raised again where it is awaited
            error = problem
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            here.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="endpoint", daemon=True).start()
    return await found

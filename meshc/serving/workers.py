"""Who carries out independent simulations: this process one after the other, or several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

Watch = Callable[[int, int], None]
"""Called with the number of jobs that are done, and of all."""


def unwatched(done: int, jobs: int) -> None:
    """Nobody looks at the progress."""


class Workers(Protocol):
    """Whoever carries out jobs. Which workers do so changes no result."""

    def results(
        self, work: Callable[[Job], Result], jobs: Sequence[Job], watch: Watch
    ) -> list[Result]:
        """What ``work`` gives for each job, in the order of ``jobs``; the error of the first job
        that has one. ``work`` is a function of a module, and jobs can be pickled."""
        ...


@dataclass(frozen=True)
class Processes:
    """``count`` processes of this machine; with 1 the calling one works itself."""

    count: int = 1

    def results(
        self, work: Callable[[Job], Result], jobs: Sequence[Job], watch: Watch
    ) -> list[Result]:
        """As :meth:`Workers.results`."""
        if self.count == 1 or len(jobs) < 2:
            return _collected(map(work, jobs), len(jobs), watch)
        with ProcessPoolExecutor(self.count, get_context("spawn")) as pool:
            return _collected(pool.map(work, jobs), len(jobs), watch)


IN_TURN = Processes(1)
"""This process alone."""


def _collected(results: Iterable[Result], count: int, watch: Watch) -> list[Result]:
    found: list[Result] = []
    for result in results:
        found.append(result)
        watch(len(found), count)
    return found

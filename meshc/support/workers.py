"""Who carries out independent jobs: this process one after the other, or several at once."""

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


Keep = Callable[[Result], None]
"""Called with each result as soon as it and those of all jobs before it are there."""


def unwatched(done: int, jobs: int) -> None:
    """Nobody looks at the progress."""


def unkept(_: object) -> None:
    """Results are wanted all together."""


class Workers(Protocol):
    """Whoever carries out jobs. Which workers do so changes no result."""

    def results(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        watch: Watch,
        keep: Keep[Result] = unkept,
    ) -> list[Result]:
        """What ``work`` gives for each job, in the order of ``jobs``; the error of the first job
        that has one. ``work`` is a function of a module, and jobs can be pickled."""
        ...


@dataclass(frozen=True)
class Processes:
    """``count`` processes of this machine; with 1 the calling one works itself."""

    count: int = 1

    def results(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        watch: Watch,
        keep: Keep[Result] = unkept,
    ) -> list[Result]:
        """As :meth:`Workers.results`."""
        if self.count == 1 or len(jobs) < 2:
            return _collected(map(work, jobs), len(jobs), watch, keep)
        with ProcessPoolExecutor(self.count, get_context("spawn")) as pool:
            return _collected(pool.map(work, jobs), len(jobs), watch, keep)


IN_TURN = Processes(1)
"""This process alone."""


def _collected(
    results: Iterable[Result], count: int, watch: Watch, keep: Keep[Result]
) -> list[Result]:
    found: list[Result] = []
    for result in results:
        found.append(result)
        keep(result)
        watch(len(found), count)
    return found

"""Who carries out independent jobs: this process one after the other, or several at once."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Protocol, TypeVar

from meshc.support.diagnostics import fail

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
    """``count`` processes of this machine; with 1 the calling one works itself.

    Errors: what a job raises, and ``process-lost`` where a process is no more.
    """

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
            try:
                return _collected(pool.map(partial(_carried, work), jobs), len(jobs), watch, keep)
            except BrokenProcessPool:
                fail(
                    "process-lost",
                    f"one of the {self.count} processes of --processes was ended from outside",
                    help="fewer of them need less memory at once",
                )


def _carried(work: Callable[[Job], Result], job: Job) -> Result:
    """What a process does: the result, or an error that the caller can be given. What cannot leave
    a process as it is, as errors of other packages may not, leaves it in words."""
    try:
        return work(job)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            words = "".join(traceback.format_exception(error))
            raise RuntimeError(f"{type(error).__name__}: {error}\n{words}") from None
        raise


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

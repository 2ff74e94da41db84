"""Jobs on a Dask cluster. The only module that imports distributed (extra ``cluster``).

The calling process is a client: it sends jobs to a scheduler that runs already, which deals them to
its workers. Jobs are pickled, so whoever controls the scheduler or a worker controls this process
too: only clusters that are trusted may be named. Where no answer comes, nothing is waited for
without a limit; a worker that is lost has its jobs carried out by others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn

from distributed import Client

from meshc.support.code import code_here
from meshc.support.diagnostics import InternalError, MeshcError, fail
from meshc.support.workers import Job, Keep, Result, Watch, unkept

_LOGGERS = ("distributed", "distributed.client", "distributed.comm", "tornado")
_SAME = "scheduler and workers need the meshc, Python and NumPy of this process"


@dataclass(frozen=True)
class Cluster:
    """The workers of the scheduler at ``address``, such as ``tcp://127.0.0.1:8786``.

    ``limit_s``: seconds within which the scheduler has to answer and to have a worker. While jobs
    run, it is asked again whenever no result came for as long.
    """

    address: str
    limit_s: float = 10.0

    def results(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        watch: Watch,
        keep: Keep[Result] = unkept,
    ) -> list[Result]:
        """As :meth:`meshc.support.workers.Workers.results`.

        Errors: ``cluster-unreachable`` when there is no scheduler, it has no worker, or it does not
        answer any more; ``cluster-failed`` when a job was not carried out; ``cluster-differs`` when
        a worker computes with other code than this process.
        """
        with _quiet():
            return asyncio.run(self._results(work, jobs, watch, keep))

    async def _results(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        watch: Watch,
        keep: Keep[Result],
    ) -> list[Result]:
        client = Client(self.address, timeout=self.limit_s, asynchronous=True, set_as_default=False)
        try:
            await self._connected(client)
            futures = client.map(_signed, [_Task(work, job) for job in jobs], pure=False)
            found: list[Result] = []
            for future in futures:
                maker, result = await self._result(client, future)
                if maker != code_here():
                    fail(
                        "cluster-differs",
                        f"a worker of '{self.address}' computes with {maker}, this process with "
                        f"{code_here()}",
                        help=_SAME,
                    )
                found.append(result)
                keep(result)
                watch(len(found), len(jobs))
            return found
        finally:
            await client.close(timeout=self.limit_s)

    async def _connected(self, client: Any) -> None:
        try:
            await self._in_time(client)
        except Exception as error:  # whatever else answers at the address may say anything
            self._unreachable(f"there is no Dask scheduler at '{self.address}'", error)
        await self._answers(client)

    async def _answers(self, client: Any) -> None:
        """Returns when the scheduler says that it has a worker."""
        try:
            await self._in_time(client.wait_for_workers(1, timeout=self.limit_s))
        except TimeoutError as error:
            self._unreachable(
                f"the scheduler at '{self.address}' has no worker or does not answer", error
            )
        except Exception as error:
            self._unreachable(f"the scheduler at '{self.address}' does not answer", error)

    async def _result(self, client: Any, future: Any) -> Any:
        """What ``future`` gives, however long its job takes while the scheduler answers."""
        while True:
            try:
                return await asyncio.wait_for(future.result(), self.limit_s)
            except (MeshcError, InternalError):
                raise
            except CancelledError as error:
                self._unreachable(
                    f"the connection to the scheduler at '{self.address}' broke", error
                )
            except TimeoutError:
                await self._answers(client)
            except Exception as error:
                fail(
                    "cluster-failed",
                    f"the cluster at '{self.address}' did not carry out a run",
                    notes=[_words(error)],
                    help=_SAME,
                )

    async def _in_time(self, answer: Awaitable[Any]) -> Any:
        """What is awaited, with some time for its own limit to end it first."""
        return await asyncio.wait_for(answer, self.limit_s + 1)

    def _unreachable(self, text: str, error: Exception) -> NoReturn:
        fail(
            "cluster-unreachable",
            text,
            notes=[_words(error)] if str(error) else [],
            help="give the address that the scheduler prints, such as tcp://127.0.0.1:8786",
        )


def _words(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True)
class _Task(Generic[Job, Result]):
    """A job of ``work``. Dask does not look into it, as it would into a tuple of a function."""

    work: Callable[[Job], Result]
    job: Job


def _signed(task: _Task[Job, Result]) -> tuple[str, Result]:
    """What a worker does: the result, with what it was computed by."""
    return code_here(), task.work(task.job)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without messages of the library: what goes wrong is said by diagnostics."""
    before = {name: logging.getLogger(name).level for name in _LOGGERS}
    try:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)

"""Runs a program on the Python machine and on the C machine at once and compares them.

The host of a test talks to the Python machine; everything it does is done to the C machine too,
and after every step memory, times, logs, traces and results are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshc.sim.cgen.c_machine import CMachine
from meshc.sim.cgen.errors import Unsupported
from meshc.sim.machine.machine import Machine
from meshc.sim.machine.run_options import Options
from meshc.sim.program import Program
from meshc.support.diagnostics import MeshcError

_NUMBERS = ("t", "busy_until", "cycles_busy", "unblocked", "current_name", "log", "traces")
_TOTALS = ("now", "last_time", "tasks_run", "events", "print_log", "remarks")


class Twin:
    """The Python machine with a C machine behind it; ``supported`` counts those that could be."""

    supported = 0

    def __init__(self, program: Program, options: Options) -> None:
        self.first: Any = None
        self.second: Any = None
        problems = []
        for name, kind in (("first", Machine), ("second", CMachine)):
            try:
                setattr(self, name, kind(program, options))  # type: ignore[operator]
            except MeshcError as problem:
                problems.append(str(problem))
            except Unsupported:
                return
        assert len(problems) in (0, 2) and len(set(problems)) < 2, problems
        if problems:
            Machine(program, options)
        Twin.supported += 1
        self._compare()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)

    @property
    def task_limit(self) -> int:
        return int(self.first.task_limit)

    @task_limit.setter
    def task_limit(self, cycles: int) -> None:
        for machine in filter(None, (self.first, self.second)):
            machine.task_limit = cycles

    def launch(self, pe: Any, name: str, values: tuple[Any, ...]) -> None:
        self._both(lambda m: m.launch(m.pes[pe.x, pe.y], name, values))

    def run_until_unblocked(self, wanted: int) -> bool:
        return bool(self._both(lambda m: m.run_until_unblocked(wanted)))

    def run_for(self, cycles: int) -> None:
        self._both(lambda m: m.run_for(cycles))

    def run_to_rest(self) -> None:
        self._both(lambda m: m.run_to_rest())

    def run_until_received(self, keys: Any, count: int) -> Any:
        return self._both(lambda m: m.run_until_received(keys, count))

    def run_until_sent(self, keys: Any) -> Any:
        def action(machine: Any) -> Any:
            stuck = machine.run_until_sent(keys)
            return stuck and (stuck[0], stuck[1].outstanding, stuck[1].room)

        if self._both(action) is None:
            return None
        return self.first.run_until_sent(keys)

    def streams_to_host(self, key: Any) -> bool:
        return bool(self._both(lambda m: m.streams_to_host(key)))

    def collected(self, key: Any) -> int:
        return int(self._both(lambda m: m.collected(key)))

    def take(self, key: Any, count: int) -> Any:
        return np.array(self._both(lambda m: m.take(key, count).tolist()), np.uint32)

    def enter(self, key: Any, words: Any) -> None:
        self._both(lambda m: m.enter(key, words))

    def inject_stream(self, key: Any, words: Any) -> None:
        self._both(lambda m: m.inject_stream(key, words))

    def hang(self, goal: str) -> MeshcError:
        problems = [m.hang(goal) for m in filter(None, (self.first, self.second))]
        assert len({str(p) for p in problems}) == 1, problems
        return problems[0]  # type: ignore[no-any-return]

    def _both(self, action: Callable[[Any], Any]) -> Any:
        if self.second is None:
            return action(self.first)
        for at, pe in self.first.pes.items():
            self.second.pes[at].mem[:] = pe.mem  # what the host has written
        results, problem = [], None
        for machine in (self.first, self.second):
            try:
                results.append((action(machine), ""))
            except MeshcError as caught:
                results.append((None, str(caught)))
                problem = caught
        assert results[0] == results[1]
        self._compare(bool(problem))
        if problem is not None:
            raise problem
        return results[0][0]

    def _compare(self, failed: bool = False) -> None:
        for name in _TOTALS:
            assert getattr(self.first, name) == getattr(self.second, name), name
        for at, pe in self.first.pes.items():
            other = self.second.pes[at]
            assert bytes(pe.mem) == bytes(other.mem), at
            for name in _NUMBERS:
                if not failed or name == "current_name":
                    assert getattr(pe, name) == getattr(other, name), (at, name)

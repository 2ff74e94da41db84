"""The machine as its PEs see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshc.sim.machine.collective_library import Collectives
from meshc.sim.machine.fabric import Fabric
from meshc.sim.machine.parts import AnyPe, WholeMachine
from meshc.sim.machine.vector_operation import Operation
from meshc.sim.program import PeProgram, Program


class Surroundings(WholeMachine, Protocol):
    """What a PE, and the functions that its code calls, use of the Python machine."""

    last_time: int
    tasks_run: int

    @property
    def program(self) -> Program: ...
    @property
    def fabric(self) -> Fabric: ...
    @property
    def collectives(self) -> Collectives: ...
    @property
    def print_log(self) -> list[str]: ...
    @property
    def task_limit(self) -> int: ...
    def at(self, time: int, action: Callable[..., None], argument: Any, /) -> None: ...
    def put(
        self, owner: int, time: int, action: Callable[..., None], argument: tuple[Any, ...]
    ) -> None: ...
    def parameters(self, program: PeProgram, name: str) -> list[Any]: ...
    def split(self, program: PeProgram, name: str, word: int) -> tuple[Any, ...]: ...
    def remark_wrap(self, pe: AnyPe, address: int, place: str) -> None: ...
    def start_operation(
        self, pe: Any, name: str, operands: tuple[Any, ...], place: str
    ) -> Operation: ...

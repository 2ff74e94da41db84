"""The queues half of a PE: their colors, and what happens when one that is flushed runs empty."""

from __future__ import annotations

from collections import deque
from typing import Any

from meshc.sim.config_space import FLUSHED
from meshc.sim.machine.channel import Channel
from meshc.sim.machine.parts import WholePe
from meshc.sim.program import PeProgram

TEARDOWN_TASK = 29


class PeQueues:
    """What :class:`meshc.sim.machine.pe.Pe` does with its queues. ``shut`` holds those that are
    blocked before they have a color."""

    __slots__ = ()

    program: PeProgram
    t: int
    in_queues: dict[int, int]
    out_queues: dict[int, int]
    out_free: dict[int, int]
    registers: dict[int, int]
    launches: deque[Any]
    local_tasks: dict[int, str]
    flushing: set[int]
    shut: set[int]

    @property
    def pe(self) -> WholePe:
        """The whole PE."""
        raise NotImplementedError

    def channel(self, color: int) -> Channel:
        """The wavelets of one color."""
        raise NotImplementedError

    def is_idle(self, queue: int) -> bool:
        """Whether an input queue of WSE-3 has a data task but no color."""
        without = self.program.arch == "wse3" and self.in_queues.get(queue, -1) < 0
        return without and queue in self.program.data_tasks

    def queue_color(self, number: int) -> int:
        """The color of a data task id: itself on WSE-2, that of the input queue on WSE-3."""
        if self.program.arch == "wse2":
            return number
        return self.input_color(number)

    def input_color(self, queue: int) -> int:
        """The color an input queue listens to."""
        color = self.in_queues.get(queue, -1)
        if color < 0:
            self.pe.machine.fault(self.pe, "", f"input queue {queue} is used but never initialised")
        return color

    def bind_queue(self, is_output: bool, queue: int, color: int) -> None:
        """Give a queue another color; a data task of an input queue goes with it."""
        if is_output:
            self.out_queues[queue] = color
            return
        idle = self.is_idle(queue)
        old, self.in_queues[queue] = self.in_queues.get(queue, -1), color
        if idle:
            channel = self.channel(color)
            channel.task, channel.blocked = self.program.data_tasks[queue], queue in self.shut
        if old >= 0 and self.program.arch == "wse3" and queue in self.program.data_tasks:
            before, after = self.channel(old), self.channel(color)
            after.task, after.blocked = before.task, before.blocked
            before.task, before.blocked = None, True

    def flush(self, number: int) -> None:
        """Tell when a queue is empty; output queues count from 8."""
        if number >= 8:
            free = self.out_free.get(self.out_queues.get(number - 8, -1), 0)
            self.pe.at(max(self.t, free, self.pe.machine.now), self.flushed, number)
        else:
            self.flushing.add(number)

    def end_flushes(self, time: int) -> None:
        """Look which of the input queues that are flushed have run empty."""
        for number in sorted(self.flushing):
            if not self.channel(self.input_color(number)).bursts:
                self.flushing.discard(number)
                self.pe.at(max(time, self.pe.machine.now), self.flushed, number)

    def flushed(self, time: int, number: int) -> None:
        """A flushed queue is empty: its handler runs, or the task of the teardown id."""
        word = FLUSHED[number // 8]
        self.registers[word] = self.registers.get(word, 0) | 1 << number % 8
        name = self.program.empty_handlers.get(number)
        if name is not None:
            self.launches.append((time, name, ()))
            self.pe.wake(time)
        elif TEARDOWN_TASK in self.local_tasks:
            self.pe.activate_now(time, TEARDOWN_TASK)

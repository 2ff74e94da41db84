"""One processing element: memory, registers, queues, tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from meshc.sim.descriptors import FabIn, FabOut, Mem
from meshc.sim.machine.channel import Burst, Channel, Credit, FifoState
from meshc.sim.machine.memory import PeMemory
from meshc.sim.machine.pipe import Issue, Pipe
from meshc.sim.machine.queues import PeQueues
from meshc.sim.machine.reach import reach
from meshc.sim.machine.surroundings import Surroundings
from meshc.sim.machine.vector_operation import Operation
from meshc.sim.program import PeProgram

MARGIN = 64
_LATE = 1 << 61


class Dsr:
    """A data structure register; operations that name it start when it is ``ready``."""

    __slots__ = (
        "activate", "dsd", "is_async", "on_control", "ready", "save", "unblock", "ut",
    )  # fmt: skip

    def __init__(self) -> None:
        self.dsd: Any = None
        self.save = False
        self.is_async = False
        self.activate: int | None = None
        self.unblock: tuple[str, int] | None = None
        self.on_control: Any = None
        self.ut: int | None = None
        self.ready = 0

    def advance(self, count: int, itemsize: int) -> None:
        """With save_address the base moves past the elements used."""
        if self.save and isinstance(self.dsd, Mem):
            step = count * self.dsd.step(itemsize)
            self.dsd = Mem((self.dsd.addr + step) & 0xFFFF, *self.dsd[1:])


class Pe(PeMemory, PeQueues):
    """State of one PE. ``t`` is the local time of the code that runs.

    The code since ``resumed`` has issued ``issued`` vector steps. ``urgent`` holds the tasks of
    high priority, ``rank`` is the priority of microthreads that go no further than the code.
    """

    __slots__ = (
        "activated", "array", "blocked", "busy_until", "channels", "colors", "control", "costs",
        "credits", "current", "current_name", "cycles_busy", "dispatch_at", "drained", "dsrs",
        "fifos",
        "flushing", "functions", "in_queues", "issue", "issued", "launches", "limit",
        "local_tasks", "log", "machine", "mem", "number", "out_free", "out_queues", "plans", "prng",
        "program", "ramp_in", "ramp_out", "ran", "rank", "ready_colors", "registers", "resumed",
        "shut", "slots", "started", "t", "threads", "traces", "tsc_base", "tsc_frozen", "unblocked",
        "unsent", "urgent", "views", "waiting_on", "x", "y",
    )  # fmt: skip

    def __init__(
        self, machine: Surroundings, program: PeProgram, number: int, x: int, y: int
    ) -> None:
        self.machine, self.program, self.number, self.x, self.y = machine, program, number, x, y
        self.costs = machine.costs
        size = (program.end + MARGIN + 7) // 8 * 8
        self.mem = bytearray(size)
        self.array = np.frombuffer(self.mem, np.uint8)
        for addr, data in program.image:
            self.mem[addr : addr + len(data)] = data
        self.slots: list[Any] = list(program.slots)
        self.views: dict[Any, Any] = {}
        self.plans: dict[Any, Any] = {}
        self.channels: dict[int, Channel] = {}
        self.fifos = [FifoState(0) for _ in range(program.fifos)]
        self.dsrs: dict[tuple[str, int], Dsr] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.local_tasks = program.local_tasks
        self.control = program.control_tasks
        self.activated: dict[int, int] = {}
        self.blocked: set[int] = set()
        self.launches: deque[tuple[int, str, tuple[Any, ...]]] = deque()
        self.current: Any = None
        self.current_name = ""
        self.ran: set[str] = set()
        self.started = 0
        self.waiting_on: Operation | None = None
        self.busy_until = 0
        self.drained = 0
        self.dispatch_at = -1
        self.t = 0
        self.limit = 1 << 62
        self.tsc_base = 0
        self.tsc_frozen: int | None = None
        self.prng = 0xDEADBEEF ^ 0x2A5A5A
        self.unblocked = 0
        self.registers: dict[int, int] = {}
        self.in_queues, self.out_queues = dict(program.in_queues), dict(program.out_queues)
        self.flushing: set[int] = set()
        self.shut: set[int] = set()
        self.cycles_busy = 0
        self.out_free: dict[int, int] = {}
        self.unsent: dict[int, int] = {}
        self.ramp_in, self.ramp_out = Pipe(), Pipe()
        self.issue = Issue()
        self.issued = 0
        self.resumed = 0
        self.threads: dict[int, Operation] = {}
        self.urgent: set[tuple[str, int]] = set()
        self.rank = 0
        self.credits: dict[int, Credit] = {}
        self.log = ""
        self.traces: dict[str, list[tuple[str, Any]]] = {}
        self.colors: set[int] = set()
        self.ready_colors: set[int] = set()
        self._bind_data_tasks()

    def _bind_data_tasks(self) -> None:
        for number, name in self.program.data_tasks.items():
            if self.is_idle(number):
                continue  # on WSE-3 a queue without a color starts nothing
            channel = self.channel(self.queue_color(number))
            channel.task = name
            channel.blocked = False

    @property
    def pe(self) -> Pe:
        """This PE."""
        return self

    # --- names of things ---

    def channel(self, color: int) -> Channel:
        """The wavelets of one color."""
        found = self.channels.get(color)
        if found is None:
            found = self.channels[color] = Channel(color)
        return found

    def channel_of(self, source: FabIn) -> Channel:
        """The channel a fabric input reads. On WSE-3 the queue decides, else the color."""
        if self.program.arch == "wse3" and source.queue >= 0:
            return self.channel(self.input_color(source.queue))
        if source.color >= 0:
            return self.channel(source.color)
        return self.channel(self.input_color(source.queue))

    def output_color(self, dst: FabOut) -> int:
        """The color a fabric output sends on."""
        if self.program.arch == "wse3" and dst.queue >= 0:
            color = self.out_queues.get(dst.queue, -1)
            if color < 0:
                self.machine.fault(
                    self, "", f"output queue {dst.queue} is used but never initialised"
                )
            return color
        return dst.color if dst.color >= 0 else self.out_queues.get(dst.queue, -1)

    def dsr(self, bank: str, number: int) -> Dsr:
        """A register; it must have been loaded."""
        found = self.dsrs.get((bank, number))
        if found is None and bank == "dest":
            found = self.dsrs.get(("src0", number))
        if found is None:
            self.machine.fault(self, "", f"register {bank} {number} is used but never loaded")
        return found

    # --- tasks ---

    def at(self, time: int, action: Callable[..., None], *argument: Any) -> None:
        """Call ``action`` with ``time`` and ``argument`` at that time, as an event of this PE."""
        self.machine.put(self.number, time, action, argument)

    def wake(self, time: int) -> None:
        """Look for something to run at ``time`` or as soon as the PE is free."""
        if self.current is not None:
            return
        at = max(time, self.busy_until, self.machine.now)
        if self.dispatch_at < 0 or at < self.dispatch_at:
            self.dispatch_at = at
            self.at(at, self.dispatch)

    def activate_later(self, number: int, time: int) -> None:
        """Activate a local task at ``time``."""
        self.at(max(time, self.machine.now), self.activate_now, number)

    def activate_now(self, time: int, number: int) -> None:
        """Activate a local task."""
        self.activated.setdefault(number, time)
        self.wake(time)

    def deliver(self, time: int, arrival: tuple[int, Burst]) -> None:
        """A burst reaches the PE."""
        color, burst = arrival
        channel = self.channels.get(color)
        if channel is None:
            channel = self.channel(color)
        burst = self.ramp_in.carry(burst, max(burst.t0, channel.free_at))
        channel.free_at = burst.end()
        channel.bursts.append(burst)
        self.poke(channel, time)

    def poke(self, channel: Channel, time: int) -> None:
        """Something about a channel changed: start its task or go on with an operation."""
        if not channel.bursts:
            return
        if self.is_open(channel):
            self.ready_colors.add(channel.color)
            self.wake(max(time, channel.bursts[0].time_of(0)))
        if channel.waiting:
            channel.waiting[0].progress(self.machine.now)

    def is_open(self, channel: Channel) -> bool:
        """Whether the first wavelet of a channel may start a task.

        On WSE-2 colors and local tasks share their ids: a local task bound to the number of a
        color lets control wavelets of that color through.
        """
        if not channel.blocked:
            return True
        shared = channel.color in self.local_tasks and self.program.arch == "wse2"
        return shared and channel.bursts[0].control and channel.color not in self.blocked

    def dispatch(self, now: int) -> None:
        """Run the task that has been ready for the longest time, one of high priority first."""
        if self.current is not None or now < self.dispatch_at:
            return
        self.dispatch_at = -1
        if now < self.busy_until:
            self.wake(self.busy_until)
            return
        best, kind, what, later = 1 << 62, "", None, 1 << 62
        if self.launches and self.launches[0][0] <= now:
            best, kind = self.launches[0][0] + self._lag("launch", 0), "launch"
        for number, since in self.activated.items():
            rank = since + self._lag("local", number)
            if number not in self.blocked and rank < best:
                best, kind, what = rank, "local", number
        for color in sorted(self.ready_colors):
            channel = self.channels[color]
            if not channel.bursts or not self.is_open(channel):
                self.ready_colors.discard(color)
                continue
            since = channel.bursts[0].time_of(0)
            rank = since + self._lag("wavelet", color)
            if since > now:
                later = min(later, since)
            elif rank < best:
                best, kind, what = rank, "wavelet", color
        if kind:
            self.t = now + self.costs.task
            if kind == "wavelet" and what is not None:
                self.t = max(now, self.channels[what].open_at) + self.costs.data_task
            self.start(now, kind, what)
        elif later < 1 << 62:
            self.wake(later)

    def _lag(self, kind: str, number: int) -> int:
        """What puts a task behind those of high priority."""
        return _LATE if self.urgent and (kind, number) not in self.urgent else 0

    def start(self, now: int, kind: str, what: Any) -> None:
        """Run one task."""
        if kind == "launch":
            _, name, args = self.launches.popleft()
            self.run(now, name, args)
        elif kind == "local":
            del self.activated[what]
            table = self.program.teardown if isinstance(what, tuple) else self.local_tasks
            name = table.get(what[1] if isinstance(what, tuple) else what, "")
            if not name:
                self.machine.fault(self, "", f"local task id {what} is activated but not bound")
            self.run(now, name, ())
        else:
            self._start_wavelet(now, self.channels[what])

    def _start_wavelet(self, now: int, channel: Channel) -> None:
        if channel.bursts[0].control:
            words, _, _ = channel.take(1)
            word = int(words[0])
            name = self.control.get(word >> 16 & 63)
            if name is None:
                self.busy_until = now
                if channel.waiting:
                    channel.waiting[0].progress(now)
                self.wake(now + 1)
                return
            count = self.machine.parameters(self.program, name)
            self.run(now, name, (word & 0xFFFF,)[: len(count)])
            return
        if channel.task is None:
            self.ready_colors.discard(channel.color)
            return
        words, _, _ = channel.take(1)
        self.run(now, channel.task, self.machine.split(self.program, channel.task, int(words[0])))

    def run(self, now: int, name: str, args: tuple[Any, ...]) -> None:
        """Run a function as a task until it ends or waits."""
        self.current_name = name
        self.ran.add(name)
        self.started = now
        self.machine.tasks_run += 1
        self.limit = self.t + self.machine.task_limit
        self._pay()
        result = self.functions[name](*args)
        if hasattr(result, "send"):
            self.current = result
            self._resume()
            return
        while result is not None and type(result) is tuple:
            result = result[0](*result[1])
            if hasattr(result, "send"):
                self.current = result
                self._resume()
                return
        self._ended()

    def _resume(self) -> None:
        """Go on with the current generator until it waits or ends."""
        while True:
            try:
                operation = next(self.current)
            except StopIteration as stop:
                if type(stop.value) is tuple:
                    self.current = stop.value[0](*stop.value[1])
                    if hasattr(self.current, "send"):
                        continue
                self.current = None
                self._ended()
                return
            if not operation.done or operation.t > self.machine.now:
                self._rest()
                operation.resume = True
                self.waiting_on = operation
                if operation.done:
                    self.at(operation.t, self.operation_done, operation)
                return
            self.t = max(self.t, operation.t)

    def _pay(self) -> None:
        """Code goes on, later by what microthreads of higher priority have taken."""
        self.t += self.issue.stolen
        self.issue.stolen = 0
        self.resumed, self.issued = self.t, 0

    def _rest(self) -> None:
        """Code ends or waits: microthreads share the steps of its latest stretch."""
        self.issue.main = (self.resumed, self.t, self.issued)

    def _ended(self) -> None:
        self._rest()
        if self.machine.trace is not None:
            name = self.current_name.rsplit("_", 1)[0]
            self.machine.trace.add("task", name, self.x, self.y, self.started, self.t)
        self.cycles_busy += self.t - self.started
        self.busy_until = self.t
        self.machine.last_time = max(self.machine.last_time, self.t)
        if self.flushing:
            self.end_flushes(self.t)
        if self.activated or self.launches or self.ready_colors:
            self.wake(self.t)

    def operation_done(self, time: int, operation: Operation) -> None:
        """An operation finished at ``time``."""
        if operation.resume:
            self.waiting_on = None
            self.t = max(self.t, time)
            self._pay()
            self._resume()
            return
        if self.flushing:
            self.end_flushes(time)
        if operation.activate is not None:
            self.activate_now(time, operation.activate)
        if operation.unblock is not None:
            self.open(*operation.unblock, time)

    # --- gates ---

    def open(self, kind: str, number: int, time: int) -> None:
        """Unblock a task, color or queue."""
        if kind in ("local", "control"):
            self.blocked.discard(number)
            if number in self.activated:
                self.wake(time)
            return
        if kind == "queue" and self.is_idle(number):
            self.shut.discard(number)
            return
        color = self.input_color(number) if kind == "queue" else number
        if self._is_task(kind, color):
            self.open("local", color, time)
            return
        channel = self.channel(color)
        if channel.blocked:
            channel.open_at = time + self.costs.reopen
        channel.blocked = False
        self.poke(channel, time)

    def close(self, kind: str, number: int) -> None:
        """Block a task, color or queue."""
        if kind in ("local", "control"):
            self.blocked.add(number)
            return
        if kind == "queue" and self.is_idle(number):
            self.shut.add(number)
            return
        color = self.input_color(number) if kind == "queue" else number
        if self._is_task(kind, color):
            self.blocked.add(color)
            return
        self.channel(color).blocked = True

    def _is_task(self, kind: str, color: int) -> bool:
        """Whether a color stands for the local task of its number; queues never do."""
        return kind == "color" and color in self.local_tasks and color not in self.channels

    def send(self, dst: FabOut, words: Any, start: int, period: int) -> None:
        """Put wavelets into the fabric."""
        color = self.output_color(dst)
        burst = Burst(words, start, period)
        burst = self.ramp_out.carry(burst, max(start, self.out_free.get(color, 0)))
        self.out_free[color] = burst.end()
        credit = self.credit(dst, len(words)) if self.machine.options.strict_queues else None
        if dst.control:
            for position in range(len(words)):
                one = words[position : position + 1]
                at = burst.time_of(position)
                self.machine.fabric.inject(self, color, Burst(one, at, 1, True, credit))
            return
        burst.credit = credit
        self.machine.fabric.inject(self, color, burst)

    def credit(self, dst: FabOut, count: int = 0) -> Credit:
        """Account for ``count`` wavelets that are sent."""
        color = self.output_color(dst)
        if color not in self.credits:
            sender = self.number, color
            self.credits[color] = Credit(sender=sender, refunds=self.machine.fabric.refunds)
        credit = self.credits[color]
        depth = self.costs.output_depth[max(dst.queue, 0)]
        copies, credit.room = reach(self.machine.fabric, (self.x, self.y, color), depth)
        credit.outstanding += count * copies
        return credit

    def advance_switch(self, dst: FabOut, time: int) -> None:
        """The ``advance_switch`` of a fabric output."""
        self.machine.fabric.advance(self, self.output_color(dst))

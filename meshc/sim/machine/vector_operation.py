"""A vector operation in progress: takes operands as they become available, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshc.sim.descriptors import ENDLESS, FabIn, FabOut, Fifo, Mem
from meshc.sim.machine.channel import Channel, FifoState
from meshc.sim.machine.compute import COMPUTE, DTYPES
from meshc.sim.machine.parts import WholePe
from meshc.sim.vector_ops import OPS


def length_of(operand: Any) -> int:
    """The length an operand contributes to the length rule; 0 for none."""
    return operand.n if isinstance(operand, Mem | FabIn | FabOut) else 0


class Operation:
    """One running operation. ``t`` is the time up to which it has worked."""

    __slots__ = ("activate", "channels", "complete", "done", "done_count", "dst", "fifos_in",
                 "index", "is_async", "n", "name", "on_control", "pe", "place", "priority",
                 "record_sizes", "records", "resume", "spec", "srcs", "t", "unblock",
                 "words")  # fmt: skip

    def __init__(
        self, pe: WholePe, name: str, operands: tuple[Any, ...], index: int | None, place: str
    ) -> None:
        self.pe = pe
        self.name = name
        self.spec = OPS[name]
        self.records = [o for o in operands if type(o).__name__ == "Dsr"]
        pe.t = max([pe.t, *[record.ready for record in self.records]])
        self.record_sizes = [
            DTYPES[kind].itemsize
            for o, kind in zip(operands, self.spec.types, strict=False)
            if type(o).__name__ == "Dsr"
        ]
        plain = [o.dsd if type(o).__name__ == "Dsr" else o for o in operands]
        if index is not None:
            plain = [
                o._replace(addr=(o.addr + 2 * index) & 0xFFFF)
                if isinstance(o, Mem) and o.indexed
                else o
                for o in plain
            ]
        self.dst, self.srcs = plain[0], plain[1:]
        self.index = index or 0
        self.place = place
        self.n = self._length()
        self.done_count = 0
        self.t = pe.t
        self.is_async = False
        self.done = False
        self.complete = True
        self.resume = False
        self.activate: int | None = None
        self.unblock: tuple[str, int] | None = None
        self.on_control: Any = None
        self.priority = max([getattr(o, "priority", 0) for o in plain])
        self.words: Any = None
        self.channels: list[Channel] = [pe.channel_of(s) for s in self.srcs if isinstance(s, FabIn)]
        self.fifos_in: list[FifoState] = [pe.fifos[s.number] for s in self.srcs
                                          if isinstance(s, Fifo)]  # fmt: skip

    def _length(self) -> int:
        for operand in (*self.srcs, self.dst):
            length = length_of(operand)
            if isinstance(operand, Fifo):
                state = self.pe.fifos[operand.number]
                length = state.write_length if operand is self.dst else state.read_length
            if length:
                return 1 << 62 if length & ENDLESS == ENDLESS else length
        if any(isinstance(o, Fifo) for o in (*self.srcs, self.dst)):
            return 1 << 62
        return 1

    @property
    def needs_input(self) -> bool:
        """Whether the operation reads the fabric or a FIFO, or writes a FIFO."""
        return bool(self.channels or self.fifos_in) or isinstance(self.dst, Fifo)

    @property
    def _sets_up(self) -> bool:
        """Whether the set-up begins once the first word is there: that of a microthread is over."""
        return bool(self.channels) and not self.is_async

    def occupy(self, ut: int | None) -> None:
        """Take a microthread: the given one, else that of a register or of a queue.

        On WSE-2 the queue of an output, else of the first input; on WSE-3 the queue of the first
        operand on the fabric, the destination first (documented).
        """
        chosen = [ut, *[r.ut for r in self.records]]
        queues = [o.queue for o in (self.dst, *self.srcs) if isinstance(o, FabIn | FabOut)]
        thread = next((number for number in (*chosen, *queues) if number is not None), -1)
        if thread < 0:
            return
        other = self.pe.threads.get(thread)
        if other is not None and not (other.done and other.t <= self.pe.t):
            self.pe.machine.remark(
                "csl-microthread", f"{self.place} {other.place}",
                f"the operation at {self.place} starts on microthread {thread} while the one at "
                f"{other.place} is still running there (PE ({self.pe.x}, {self.pe.y}))",
            )  # fmt: skip
        self.pe.threads[thread] = self

    def begin(self) -> None:
        """Queue up for inputs and start working."""
        for channel in self.channels:
            channel.waiting.append(self)
        for state in self.fifos_in:
            state.readers.append(self)
        if isinstance(self.dst, Fifo):
            self.pe.fifos[self.dst.number].writers.append(self)
        self.progress(self.pe.machine.now)

    def progress(self, now: int) -> None:
        """Work on all elements that are available now."""
        if self.done:
            return
        while self.done_count < self.n:
            count = self._available(now)
            if count == 0:
                if not self.is_async and self._fifo_stuck():
                    self.complete = False
                    self._finish()
                return
            self._step(count, now)
        self._finish()

    def _available(self, now: int) -> int:
        count = self.n - self.done_count
        for channel, source in zip(self.channels, self._inputs(), strict=True):
            if channel.waiting[0] is not self or not channel.bursts:
                return 0
            if channel.task is not None and not channel.blocked:
                return 0
            burst = channel.bursts[0]
            if burst.time_of(0) > now:
                self.pe.at(burst.time_of(0), self.progress)
                return 0
            if burst.control and (self.on_control is not None or self.pe.is_open(channel)):
                self._control()
                return 0
            left = burst.left()
            count = min(count, left * self._per_wavelet(source.simd))
        for state in self.fifos_in:
            if not len(state.data) or state.readers[0] is not self:
                if not len(state.data):
                    state.events["empty"] = True
                return 0
            count = min(count, len(state.data))
        if isinstance(self.dst, Fifo):
            state = self.pe.fifos[self.dst.number]
            room = state.capacity - len(state.data)
            if room == 0:
                state.events["full"] = True
            count = min(count, room)
        if isinstance(self.dst, FabOut) and self.pe.machine.options.strict_queues:
            count = min(count, self._room(self.dst))
        if count > 1 << 40:
            self.pe.machine.fault(self.pe, self.place, "an endless operation without an input")
        return count

    def _room(self, dst: FabOut) -> int:
        """Elements that the queues behind ``dst`` have room for; without any it waits there."""
        credit = self.pe.credit(dst)
        room = credit.room - credit.outstanding
        if room <= 0 and self not in credit.stalled:
            credit.stalled.append(self)
        return max(0, room) * self._per_wavelet(dst.simd)

    def again(self) -> None:
        """There is room again from the next cycle on."""
        self.pe.at(self.pe.machine.now + 1, self.progress)

    def _inputs(self) -> list[FabIn]:
        return [s for s in self.srcs if isinstance(s, FabIn)]

    def _per_wavelet(self, simd: int) -> int:
        return 2 if simd and self.spec.types[0].bits == 16 else 1  # type: ignore[attr-defined]

    def _fifo_stuck(self) -> bool:
        return not self.channels and bool(self.fifos_in or isinstance(self.dst, Fifo))

    def _control(self) -> None:
        """A control wavelet at the head of an input: it may end the operation, and stays there."""
        if self.on_control is None:
            self.pe.wake(self.pe.machine.now)
            return
        kind, activate, unblock = self.on_control
        self.activate = activate if kind == "activate" else None
        self.unblock = unblock if kind == "unblock" else None
        self.t = max(self.t, self.pe.machine.now)
        self.complete = kind == "terminate"
        self._finish()

    def send_later(self) -> None:
        """An operation without inputs starts on a microthread: its sources are read at once, the
        wavelets follow when the microthread gets its turn."""
        self._refuse_endless()
        self._step(self.n, self.t)
        if self.words is not None:
            self._unsent(1)
        self.pe.at(max(self.t, self.pe.machine.now), self._emit)

    def must_follow(self) -> bool:
        """Whether wavelets of the same color that were sent before have not left yet."""
        return isinstance(self.dst, FabOut) and self.pe.unsent.get(self.color(), 0) > 0

    def color(self) -> int:
        """The color that is sent."""
        assert isinstance(self.dst, FabOut)
        return self.pe.output_color(self.dst)

    def _unsent(self, change: int) -> None:
        self.pe.unsent[self.color()] = self.pe.unsent.get(self.color(), 0) + change

    def _emit(self, now: int) -> None:
        """The microthread of an operation without inputs gets its turn."""
        start, end = self._plan(self.n, max(self.t, now), 0)
        if self.words is not None:
            self._unsent(-1)
            self._send(self.words, start, end)
        self._worked(start, end)
        self._finish()

    def run(self, now: int) -> None:
        """Do all of an operation that needs no inputs."""
        self._refuse_endless()
        self._step(self.n, now)
        self._finish()

    def _refuse_endless(self) -> None:
        if self.n > 1 << 40:
            self.pe.machine.fault(self.pe, self.place, "an endless operation without an input")

    def _step(self, count: int, now: int) -> None:
        """Compute ``count`` elements."""
        pe, spec = self.pe, self.spec
        start, last_in = max(self.t, now), 0
        begins = pe.costs.fabric_in if self._sets_up and not self.done_count else 0
        arrays = []
        for source, kind in zip(self.srcs, spec.types[1:], strict=True):
            dtype = DTYPES[kind]
            if isinstance(source, Mem):
                arrays.append(pe.read(source, dtype, self.done_count, count))
            elif isinstance(source, FabIn):
                raw, first, last = pe.channel_of(source).take(
                    -(-count // self._per_wavelet(source.simd)))  # fmt: skip
                start, last_in = max(start, first + begins), max(last_in, last)
                arrays.append(unpack(raw, dtype, source.simd, count))
            elif isinstance(source, Fifo):
                arrays.append(self._pop(source, dtype, count))
            else:
                arrays.append(source)
        if self.is_async and not self.needs_input:
            self._write(arrays, count, start, start)
            self.done_count = count
            return
        start, end = self._plan(count, start, last_in)
        self._write(arrays, count, start, end)
        self._worked(start, end)
        self.done_count += count
        for state in self.fifos_in:
            state.t = max(state.t, end)
            if state.writers:
                pe.at(end, state.writers[0].progress)

    def _plan(self, count: int, start: int, last_in: int) -> tuple[int, int]:
        """When the work on ``count`` elements starts and ends."""
        pe = self.pe
        steps = pe.costs.vector_cycles(self.spec, self.srcs, self.dst, count)
        for operand in (*self.srcs, self.dst):
            if isinstance(operand, FabIn | FabOut):
                steps = max(steps, -(-count // self._per_wavelet(operand.simd)))
        span = max(steps, last_in + 1 - start)
        if self.is_async:
            take = pe.issue.high if self.priority > pe.rank else pe.issue.low
            span = take(start, steps, span)
        elif self.needs_input:
            pe.issue.pipe.claim(start, steps, span)
        else:
            pe.issued += steps
        return start, start + span

    def _worked(self, start: int, end: int) -> None:
        pe = self.pe
        if not self.is_async:
            pe.cycles_busy -= max(0, start - self.t)  # code stood still
        if pe.machine.trace is not None:
            moves = any(isinstance(o, FabIn | FabOut) for o in (self.dst, *self.srcs))
            waited = -1 if self.is_async else min(self.t, start)
            name = f"@{self.name} {self.place}"
            pe.machine.trace.operation(name, pe.x, pe.y, moves, (waited, start, end))
        self.t = end

    def _pop(self, source: Fifo, dtype: Any, count: int) -> Any:
        state = self.pe.fifos[source.number]
        raw, state.data = state.data[:count], state.data[count:]
        if state.events["full"] and source.activate_pop >= 0:
            state.events["full"] = False
            self.pe.activate_later(source.activate_pop, self.t)
        return unpack(raw, dtype, 0, count)

    def _write(self, arrays: list[Any], count: int, start: int, end: int) -> None:
        pe, dst, dtype = self.pe, self.dst, DTYPES[self.spec.types[0]]
        if isinstance(dst, Mem):
            if reduces(dst, count):
                pe.reduce(self.spec, dst, self.srcs, arrays, count)
            else:
                result = COMPUTE[self.name](*arrays)
                pe.write(dst, dtype, self.done_count, count, result)
            return
        result = np.asarray(COMPUTE[self.name](*arrays))
        result = np.broadcast_to(np.asarray(result, dtype), (count,))
        if isinstance(dst, Fifo):
            state = pe.fifos[dst.number]
            state.data = np.concatenate([state.data, pack(result, 0, 0)])
            state.t = max(state.t, end)
            if state.events["empty"] and dst.activate_push >= 0:
                state.events["empty"] = False
                pe.activate_later(dst.activate_push, end)
            if state.readers:
                pe.at(max(start, pe.machine.now), state.readers[0].progress)
            return
        assert isinstance(dst, FabOut)
        high = self.index if dst.indexed else 0
        words = pack(result, dst.simd if dtype.itemsize == 2 else 0, high)
        if self.is_async and not self.needs_input:
            self.words = words
        else:
            self._send(words, start, end)

    def _send(self, words: Any, start: int, end: int) -> None:
        """Wavelets leave evenly, the last one at ``end``."""
        assert isinstance(self.dst, FabOut)
        period = max(1, (end - start) // len(words))
        first = end - (len(words) - 1) * period - 1
        relay = 0 if self._sets_up else self.pe.costs.relay
        self.pe.send(self.dst, words, max(start, first) + relay, period)

    def _finish(self) -> None:
        """All elements done: leave the queues and tell whoever waits, at time ``t``."""
        self.done = True
        machine, now = self.pe.machine, self.pe.machine.now
        for channel in self.channels:
            if self in channel.waiting:
                channel.waiting.remove(self)
            if channel.waiting:
                self.pe.at(max(now, self.t), channel.waiting[0].progress)
            elif channel.bursts:
                self.pe.wake(max(now, self.t))
        for state in self.fifos_in:
            state.readers.remove(self)
            if state.readers:
                self.pe.at(max(now, self.t), state.readers[0].progress)
        if isinstance(self.dst, Fifo) and self in self.pe.fifos[self.dst.number].writers:
            self.pe.fifos[self.dst.number].writers.remove(self)
        if isinstance(self.dst, FabOut) and self.dst.advance:
            self.pe.advance_switch(self.dst, self.t)
        for record, size in zip(self.records, self.record_sizes, strict=True):
            record.advance(self.done_count, size)
        if isinstance(self.dst, FabOut) and machine.options.strict_queues and self._held():
            return
        if self.is_async or self.resume:
            self.pe.at(max(now, self.t), self.pe.operation_done, self)
        else:
            self.pe.t = max(self.pe.t, self.t)

    def _held(self) -> bool:
        """Whether the queues have no room for all that was sent; then it ends later."""
        assert isinstance(self.dst, FabOut)
        credit = self.pe.credits.get(self.pe.output_color(self.dst))
        if credit is None or credit.outstanding <= credit.room:
            return False
        self.done = False
        credit.held.append(self)
        return True

    def release(self) -> None:
        """There is room for the last wavelets from the next cycle on."""
        self.done = True
        self.t = max(self.t, self.pe.machine.now + 1)
        self.pe.at(self.t, self.pe.operation_done, self)


def reduces(dst: Mem, count: int) -> bool:
    """Whether several elements are written to one place, one after the other."""
    if count < 2 or dst.scalar:
        return count > 1 and dst.scalar
    return dst.stride == 0 and (not dst.dims or any(s == 0 and e > 1 for e, s in dst.dims))


def pack(values: Any, simd: int, high: int) -> Any:
    """Elements as wavelets: 16-bit ones in the low half, two per wavelet with SIMD."""
    if values.dtype.itemsize == 4:
        return np.ascontiguousarray(values).view(np.uint32).copy()
    halves = np.ascontiguousarray(values).view(np.uint16)
    if simd:
        if len(halves) % 2:
            halves = np.append(halves, np.uint16(0))
        return halves.copy().view(np.uint32)
    return halves.astype(np.uint32) | np.uint32(high << 16)


def unpack(words: Any, dtype: Any, simd: int, count: int) -> Any:
    """Wavelets as elements of ``dtype``."""
    if dtype.itemsize == 4:
        return words.view(dtype)
    if simd:
        return np.ascontiguousarray(words).view(np.uint16)[:count].view(dtype)
    return words.astype(np.uint16).view(dtype)

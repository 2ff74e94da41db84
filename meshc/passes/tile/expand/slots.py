"""Rotating buffers of chunks: what moves around a ring while it is worked on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshc.analysis.layout.placement import most_turns
from meshc.ir.affine import Cond, Expr
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.ir.views import Index, Symbol, View
from meshc.passes.tile.expand.emitter import Emitter, expr, point, window


class Slots:
    """``count`` chunks in use and, when they move, one slot more to receive into.

    ``channel`` leads to the next lower rank, ``back`` the other way. ``offset`` says in which slot
    the first chunk lies; it may differ between cores.
    """

    def __init__(
        self,
        emitter: Emitter,
        name: str,
        count: int,
        shape: tuple[int, ...],
        dtype: DType,
        channel: Symbol | None,
    ) -> None:
        self.emitter = emitter
        self.count = count
        self.channel = channel
        self.size = count + 1 if channel is not None else count
        self.offset: Expr | int = 0
        self.buffer: Value = emitter.buffer(name, (self.size, *shape), dtype)

    @classmethod
    def over(cls, emitter: Emitter, buffer: Value, count: int, channel: Symbol | None) -> Slots:
        """Slots in a buffer that is there already."""
        made = cls.__new__(cls)
        made.emitter, made.count, made.channel = emitter, count, channel
        made.size = count + 1 if channel is not None else count
        made.offset, made.buffer = 0, buffer
        return made

    @property
    def buffer_type(self) -> BufferType:
        """Type of the whole buffer."""
        return View(self.buffer).buffer_type

    def view(self, slot: Expr | int, *rest: Index) -> View:
        """Chunk ``slot`` (modulo the size of the buffer)."""
        return View(self.buffer, (point((expr(slot) + self.offset) % self.size), *rest))

    def shift(self, step: Expr | int, *rest: Index, when: Cond | None = None) -> list[Value]:
        """Pass on the first chunk in use at ``step`` and receive the one to come last."""
        if self.channel is None:
            return []
        sent = self.emitter.send(self.channel, self.view(step, *rest), when=when)
        got = self.emitter.recv(self.channel, self.view(step + self.count, *rest), when=when)
        return [sent, got]

    def unshift(self, step: Expr, back: Symbol, *rest: Index, when: Cond) -> list[Value]:
        """The inverse: give back the last chunk in use and receive the one to come first."""
        sent = self.emitter.send(back, self.view((self.count - 1) - step, *rest), when=when)
        got = self.emitter.recv(back, self.view(-step - 1, *rest), when=when)
        return [sent, got]

    def settle(self, *rest: Index) -> None:
        """Bring the first chunk to the first slot, locally."""
        if isinstance(self.offset, Expr):
            every = View(self.buffer, (window(0, self.size), *rest))
            self.emitter.compute("rotate", every, by=self.offset)
            self.offset = 0


@dataclass(frozen=True)
class Turn:
    """Cannon's alignment of one operand: its ring turns by ``ahead`` chunks, a multiple of
    ``stride`` below ``chunks``. With a ring ``back`` it goes the shorter way around, so by at most
    half of it; without, only the usual way."""

    slots: Slots
    ahead: Expr
    stride: int
    chunks: int
    back: Symbol | None
    rest: tuple[Index, ...] = ()

    @property
    def near(self) -> int:
        """Most steps of a core that turns the usual way."""
        return most_turns(self.chunks, self.stride, self.back is not None)

    @property
    def far(self) -> int:
        """Most steps of a core that turns the other way."""
        return self.chunks - self.near - self.stride

    def step(self, step: Expr) -> list[Value]:
        """One step of every core that is not done."""
        near = Cond.gt(self.ahead, step)
        if self.back is None or not self.far:
            return self.slots.shift(step, *self.rest, when=near)
        near &= Cond.le(self.ahead, self.near)
        far = Cond.lt(self.ahead, self.chunks - step) & Cond.gt(self.ahead, self.near)
        back = self.slots.unshift(step, self.back, *self.rest, when=far)
        return self.slots.shift(step, *self.rest, when=near) + back

    def done(self) -> None:
        """Tell the slots where their first chunk lies now."""
        signed = (self.ahead + self.far) % self.chunks - self.far
        self.slots.offset = (signed if self.far else self.ahead) % self.slots.size


def align(emitter: Emitter, turns: Sequence[Turn]) -> None:
    """Turn several rings at once. Afterwards chunks may begin in another slot on each core."""
    steps = max((max(turn.near, turn.far) for turn in turns), default=0)
    if steps:
        with emitter.loop("a", steps) as step:
            emitter.wait(*(token for turn in turns for token in turn.step(step)))
    for turn in turns:
        turn.done()

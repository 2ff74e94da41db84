"""Tile programs compiled for core-by-core execution: one step for each op.

A core runs its steps as a coroutine: it pauses after every step, and at a wait whose message has
not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshc.interp.fifos import Fabric, Message, Posted
from meshc.interp.kernels import Kernel, kernel_named
from meshc.interp.named import Array
from meshc.interp.resolve import Memo, Names
from meshc.interp.windows import Place, Window
from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op
from meshc.ir.ops import tile
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.support.diagnostics import fail


@dataclass(eq=False)
class Core:
    """One core: its memory (one array for each buffer), its names, the transfers in flight.

    ``rounds`` has the scalars of which each round of a loop has its own.
    """

    index: int
    name: str
    env: dict[str, int]
    rounds: Mapping[str, Sequence[int]]
    memory: Sequence[Array]
    fabric: Fabric
    started: dict[Value, Message | Posted] = field(default_factory=dict)
    waits_for: Posted | None = None

    def run(self, body: Body) -> Iterator[None]:
        """The coroutine of a block; ends with the waits that were left out."""
        for step in body.steps:
            if step.guard is None or step.guard(self.env):
                yield from step.run(self)
        yield from self.wait(body.tokens)

    def wait(self, tokens: Sequence[Value]) -> Iterator[None]:
        """End those transfers of ``tokens`` that this core has started."""
        for token in tokens:
            transfer = self.started.pop(token, None)
            if isinstance(transfer, Message):
                if transfer.upstream is not None:
                    yield from self._receive(transfer.upstream)
                transfer.fix()
            elif transfer is not None:
                yield from self._receive(transfer)

    def _receive(self, posted: Posted) -> Iterator[None]:
        while not posted.ended:
            self.waits_for = posted
            yield
        posted.deliver()


@dataclass(eq=False)
class Step:
    """One op; ``guard`` None means that it runs on every core."""

    op: Op
    guard: Memo[bool] | None

    def run(self, core: Core) -> Iterator[None]:
        """Do it on one core."""
        raise NotImplementedError


@dataclass(eq=False)
class Body:
    """A compiled block and the tokens that end with it."""

    steps: list[Step]
    tokens: list[Value]


@dataclass(eq=False)
class ComputeStep(Step):
    """A microkernel: read all operands, compute, store the first."""

    kernel: Kernel
    windows: list[Window]
    fixed: dict[str, Any]
    affine: dict[str, Memo[int]]

    def run(self, core: Core) -> Iterator[None]:
        places = [w.place(core.env) for w in self.windows]
        operands = [p.read(core.memory) for p in places]
        params = self.fixed
        if self.affine:
            params = {**params, **{n: value(core.env) for n, value in self.affine.items()}}
        try:
            places[0].write(core.memory, self.kernel(operands[0], operands[1:], params))
        except ValueError as error:
            self.refuse(core, places, error)
        yield

    def refuse(self, core: Core, places: Sequence[Place], error: ValueError) -> None:
        """Report operands that do not go together."""
        shapes = ", ".join(str(list(p.shape)) for p in places)
        name = f"tile.{getattr(self.op, 'kernel', '')}"
        notes = [f"operands: {shapes}", f"on {core.name}"]
        fail("interp-shape", f"{name}: {error}", self.op.span, notes=notes)


@dataclass(eq=False)
class SendStep(Step):
    """Start a send."""

    channel: str
    window: Window
    token: Value

    def run(self, core: Core) -> Iterator[None]:
        _need_receiver(self.op, core, self.channel)
        message = Message(core.index, core.memory, self.window.place(core.env))
        core.started[self.token] = message
        core.fabric.send(self.channel, message)
        yield


@dataclass(eq=False)
class RecvStep(Step):
    """Start a receive."""

    recv: tile.Recv
    window: Window
    token: Value

    def run(self, core: Core) -> Iterator[None]:
        _need_sender(self.op, core, self.recv.channel)
        posted = Posted(self.recv, core.index, core.memory, self.window.place(core.env))
        core.started[self.token] = posted
        core.fabric.post(posted)
        yield


@dataclass(eq=False)
class RelayStep(Step):
    """Start passing a message on."""

    relay: tile.Relay
    window: Window
    token: Value

    def run(self, core: Core) -> Iterator[None]:
        _need_sender(self.op, core, self.relay.channel)
        _need_receiver(self.op, core, self.relay.onward)
        place = self.window.place(core.env)
        posted = Posted(self.relay, core.index, core.memory, place)
        message = Message(core.index, core.memory, place, upstream=posted)
        posted.onward = core.started[self.token] = message
        core.fabric.send(self.relay.onward, message)
        core.fabric.post(posted)
        yield


@dataclass(eq=False)
class WaitStep(Step):
    """Join transfers."""

    tokens: list[Value]

    def run(self, core: Core) -> Iterator[None]:
        yield from core.wait(self.tokens)
        yield


@dataclass(eq=False)
class LoopStep(Step):
    """A ``for`` (``var`` bound in turn, and the scalars that each round has of its own) or a
    ``sweep`` (once, no variable)."""

    body: Body
    var: str
    count: Memo[int]
    each: tuple[str, ...] = ()

    def rounds(self, core: Core) -> Iterator[None]:
        """The rounds of the loop, in each of which its names have their values."""
        for value in range(self.count(core.env)):
            if self.var:
                core.env[self.var] = value
            for name in self.each:
                core.env[name] = core.rounds[name][value]
            yield
        for name in (self.var, *self.each):
            core.env.pop(name, None)

    def run(self, core: Core) -> Iterator[None]:
        for _ in self.rounds(core):
            yield from core.run(self.body)
            yield


def _need_receiver(op: Op, core: Core, channel: str) -> None:
    if core.index not in core.fabric.routes[channel].receivers:
        _no_partner(op, f"{core.name} sends on @{channel}, but it has no receiver")


def _need_sender(op: Op, core: Core, channel: str) -> None:
    if core.index not in core.fabric.routes[channel].senders:
        _no_partner(op, f"{core.name} receives on @{channel}, but it has no sender")


def _no_partner(op: Op, message: str) -> None:
    fail("interp-partner", message, op.span, help="narrow the guard, or widen the channel's route")


class Compiler:
    """Compiles blocks; ``slots`` number the buffers, ``channels`` are those that exist."""

    def __init__(self, slots: Mapping[Value, int], channels: frozenset[str]) -> None:
        self._slots = slots
        self._channels = channels
        self._open: set[Value] = set()

    def body(self, block: Block, names: Names) -> Body:
        """All ops of ``block`` where ``names`` mean something."""
        steps: list[Step] = []
        tokens: list[Value] = []
        for op in block.ops:
            steps.append(self._step(op, names))
            if isinstance(op, (tile.Send, tile.Recv, tile.Relay)):
                tokens.append(op.result)
                self._open.add(op.result)
        self._open.difference_update(tokens)
        return Body(steps, tokens)

    def makers(self) -> Makers:
        """What makes the step of each kind of op."""
        return _MAKERS

    def _step(self, op: Op, names: Names) -> Step:
        guard = names.cond(op.when, op.span)
        make = self.makers().get(type(op))
        if make is None:
            op.reject("has no meaning here")
        return make(self, op, guard, names)

    def window(self, op: Op, position: int, names: Names) -> Window:
        """The view that is operand number ``position`` of ``op``."""
        view = op.operands[position] if position < len(op.operands) else None
        if not isinstance(view, View) or view.buffer not in self._slots:
            op.reject(f"operand {position + 1} is no view of a buffer")
        return Window(view, self._slots[view.buffer], names, op.span)

    def compute(self, op: tile.Compute, guard: Memo[bool] | None, names: Names) -> Step:
        """A microkernel with the operands its signature has."""
        takes = len(op.declared.operands_of(op.params))
        if len(op.operands) != takes:
            op.reject(f"tile.{op.kernel} takes {takes} operands")
        if (kernel := kernel_named(op.kernel)) is None:
            op.reject(f"the interpreter has no meaning of tile.{op.kernel}")
        windows = [self.window(op, i, names) for i in range(len(op.operands))]
        affine = {n: names.expr(v, op.span) for n, v in op.params.items() if isinstance(v, Expr)}
        fixed = {n: v for n, v in op.params.items() if not isinstance(v, Expr)}
        return ComputeStep(op, guard, kernel, windows, fixed, affine)

    def send(self, op: tile.Send, guard: Memo[bool] | None, names: Names) -> Step:
        """A send on a channel that exists."""
        self._known_channel(op, op.channel)
        return SendStep(op, guard, op.channel, self.window(op, 1, names), op.result)

    def recv(self, op: tile.Recv, guard: Memo[bool] | None, names: Names) -> Step:
        """A receive on a channel that exists."""
        self._known_channel(op, op.channel)
        return RecvStep(op, guard, op, self.window(op, 1, names), op.result)

    def relay(self, op: tile.Relay, guard: Memo[bool] | None, names: Names) -> Step:
        """A relay between channels that exist."""
        self._known_channel(op, op.channel)
        self._known_channel(op, op.onward)
        return RelayStep(op, guard, op, self.window(op, 2, names), op.result)

    def wait(self, op: tile.Wait, guard: Memo[bool] | None, names: Names) -> Step:
        """A wait for tokens of this block or of one around it."""
        for token in op.tensors():
            if token not in self._open:
                fail("interp-token", f"no transfer that {token} names is open here", op.span)
        return WaitStep(op, guard, op.tensors())

    def loop(self, op: tile.For, guard: Memo[bool] | None, names: Names) -> Step:
        """A loop with the same count on every core."""
        if op.var in names.known or not op.var:
            op.reject(f"'{op.var}' cannot be a loop variable here")
        body = self.body(op.regions[0], names.with_names(op.var, *op.each))
        return LoopStep(op, guard, body, op.var, names.expr(op.count, op.span), op.each)

    def sweep(self, op: tile.Sweep, guard: Memo[bool] | None, names: Names) -> Step:
        """A core just runs the body of a sweep: its messages put the cores in order."""
        body = self.body(op.regions[0], names)
        return LoopStep(op, guard, body, "", names.expr(Expr.const(1), op.span))

    def _known_channel(self, op: Op, name: str) -> None:
        if name not in self._channels:
            op.reject(f"there is no channel @{name}")


Makers = Mapping[type[Op], Callable[[Any, Any, Memo[bool] | None, Names], Step]]

_MAKERS: Makers = {
    tile.Compute: Compiler.compute,
    tile.Send: Compiler.send,
    tile.Recv: Compiler.recv,
    tile.Relay: Compiler.relay,
    tile.Wait: Compiler.wait,
    tile.For: Compiler.loop,
    tile.Sweep: Compiler.sweep,
}

"""The walk core by core: the clocks of ``backends/csl/timing`` without slabs and classes of cores.

Every statement moves arrays over the whole mesh, masked by its guard; a sweep does so once for each
rank. It says what the clocks mean and is compared with those that take less time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from meshc.analysis.csl import instruction_costs as costs
from meshc.analysis.csl.joined_transfers import Choice, Group, Transfers
from meshc.analysis.csl.loop_cycles import around
from meshc.analysis.csl.request_rounds import rounds_of
from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.analysis.traffic.turns import turns_of
from meshc.backends.csl.fabric.messages import Messages, in_pairs
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.timing.cases import Cases
from meshc.backends.csl.timing.prices import Prices
from meshc.ir.affine import Cond, IntLike
from meshc.ir.core import Block, Op
from meshc.ir.mesh import Mesh
from meshc.ir.module import Channel, Module
from meshc.ir.ops.tile import (
    Compute,
    For,
    Recv,
    Relay,
    Send,
    Sweep,
    Transfer,
    Wait,
    channel_in,
    channel_out,
)
from meshc.ir.values import Value

_HANDOVER = costs.walked(2)  # from a message's end to its control wavelets, beside a task

Clock = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass
class _Message:
    """When the wavelets of one statement's messages arrive, by the core that receives."""

    first: Clock
    last: Clock


@dataclass
class _Pending:
    """A transfer under way: the cores that started it, when, after how many vector steps, and its
    words."""

    op: Transfer
    cores: Mask
    since: Clock
    steps: Clock
    words: int


class Timing:
    """Runs the clocks of ``module`` through its program; ``cycles`` is the last of them. ``calls``
    are the statements that begin what is called as a function; cases may be ``grouped``. Of
    run-time scalars that are not ``told`` the largest values count."""

    def __init__(
        self,
        module: Module,
        kernels: Kernels,
        calls: Collection[Op] = (),
        grouped: bool = True,
        told: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.calls = calls
        self.mesh = module.the_mesh()
        self.kernels = kernels
        self.costs = kernels.costs
        self.transfers = Transfers(module)
        self.carried = Messages(module)
        self.cases = Cases(module, self.transfers, grouped)
        self.prices = Prices(kernels, self.cases)
        self.rounds = rounds_of(module)
        self.local: set[str] = set()
        shape = tuple(self.mesh.size(name) for name in self.mesh.names)
        base: dict[str, IntLike] = dict(zip(self.mesh.names, np.indices(shape), strict=True))
        self.functions = coordinate_functions(self.mesh)
        self.env: dict[str, IntLike] = {
            name: value.evaluate(base) for name, value in coordinate_values(self.mesh).items()
        }
        self.env |= {name: high for name, (_, high) in module.scalars.items()}
        self.env.update(told)
        self.clock: Clock = np.zeros(shape)
        self.steps: Clock = np.zeros(shape)
        found = {c.name: turns_of(c, self.mesh) for c in module.channels}
        self.turns = {name: turns for name, turns in found.items() if turns is not None}
        self.over: dict[str, Clock] = {name: np.zeros([1] * len(shape)) for name in self.turns}
        self.routes = {c.name: _Route(c, module) for c in module.channels if not c.turns}
        self.messages: dict[str, deque[_Message]] = {c.name: deque() for c in module.channels}
        self.pending: dict[Value, _Pending] = {}
        everywhere = np.ones(shape, bool)
        self.clock += costs.FRAME
        for each in kernels.rotary.at_start.values():
            if each.when is None or each.when.evaluate(self.env):
                self.clock += kernels.cycles_of([each.setter])[0]
        self._switch(everywhere, 0)
        self._block(module.program.body, everywhere)

    @property
    def cycles(self) -> float:
        """Predicted cycles until the slowest core is through."""
        return float(self.clock.max())

    # --- statements

    def _block(self, block: Block, cores: Mask) -> None:
        shared: Cond | None = None
        for op in block.ops:
            if op in self.calls:
                self.clock[cores] += costs.CALLED
            if op.when != shared and self._runs(op.when):
                assert op.when is not None
                self.clock[cores] += self.prices.test(op.when, self.local)
            shared = op.when
            where = self._where(op.when)
            if isinstance(op, (Send, Recv, Relay)) and self._stands_in(op):
                self.clock[cores & ~where] += costs.EFFECT
            self._op(op, cores & where)
        group = self.transfers.of_block.get(id(block))
        if group is not None:
            self._wait(group, cores, id(block))

    def _stands_in(self, op: Transfer) -> bool:
        """Whether cores that do not start a transfer give the signal of its end themselves."""
        group = self.transfers.of_token[op.result]
        alone = group.guard is not None or op.when is None
        chosen = group.choice_of(op) is not None
        return not (group.at_once or alone or chosen or op in group.follows.values())

    def _op(self, op: Op, cores: Mask) -> None:
        if isinstance(op, Compute):
            cycles, steps = self.kernels.work(op, self.local)
            self.clock[cores] += cycles
            self.steps[cores] += steps
        elif isinstance(op, (Send, Recv, Relay)):
            self._start(op, cores)
        elif isinstance(op, Wait):
            group = self.transfers.of_wait.get(op)
            if group is not None:
                self._wait(group, cores, id(op))
        elif isinstance(op, For):
            self._for(op, cores)
        elif isinstance(op, Sweep):
            self._sweep(op, cores)

    def _switch(self, cores: Mask, number: int) -> None:
        """Go to a case of the program."""
        self.clock[cores] += self.cases.switched(number)

    def _for(self, op: For, cores: Mask) -> None:
        (body,) = op.regions
        count = int(op.count.evaluate(self.env, self.functions))
        head = self.cases.head.get(id(op))
        if head is None:
            self.local.add(op.var)
        else:
            self._switch(cores, head)
        alike = all(o.when is None or op.var not in o.when.free_vars for o in body.walk())
        step, gained = 0, np.full((2, *self.clock.shape), -1.0)
        while step < count:
            before = np.array((self.clock, self.steps))
            self.env[op.var] = step
            self.clock[cores] += around(op, count) if head is None else costs.LOOP_OF_CASES
            self.clock[cores] += costs.TAKEN * len(op.each)
            self._block(body, cores)
            step += 1
            after = self.cases.after.get(id(op))
            if head is not None and id(op) not in self.cases.closed:
                self._switch(cores, head if step < count else after)
            elif head is not None and step == count:
                gone = self.cases.switched(after) - self.cases.switched(head)
                self.clock[cores] += gone
            # The last round leads on to another case, so it is not one to go by.
            now = np.array((self.clock, self.steps)) - before
            steady = alike and step < count - 1 and np.array_equal(now, gained)
            gained = now
            if steady:  # and so it goes on
                self._skip(cores, gained, count - step, op)
                break
        self.local.discard(op.var)

    def _skip(self, cores: Mask, gained: Clock, rounds: int, op: For) -> None:
        """Add the ``rounds`` of a loop that are left; each takes what the last one ``gained``,
        cycles and vector steps."""
        self.clock += gained[0] * rounds
        self.steps += gained[1] * rounds
        head = self.cases.head.get(id(op))
        if head is not None:
            after = self.cases.switched(self.cases.after[id(op)])
            self.clock[cores] += after - self.cases.switched(head)

    def _sweep(self, op: Sweep, cores: Mask) -> None:
        (body,) = op.regions
        if id(op) in self.cases.head:
            self._switch(cores, self.cases.head[id(op)])
        if self.rounds is not None and op is self.rounds.work:
            self.clock[cores] += self.kernels.cycles_of(self.kernels.rotary.at_round)[0]
        rank = np.broadcast_to(op.rank.evaluate(self.env, self.functions), cores.shape)
        for step in range(op.count):
            here = cores & (rank == step)
            if here.any():
                self._block(body, here)
        if id(op) in self.cases.head:
            self._switch(cores, self.cases.after[id(op)])

    def _where(self, when: Cond | None) -> Mask:
        if when is None:
            return np.ones(self.clock.shape, bool)
        return np.broadcast_to(when.evaluate(self.env, self.functions), self.clock.shape)

    # --- transfers

    def _start(self, op: Transfer, cores: Mask) -> None:
        here = self.carried.window(op)
        words = here.size // 2 if in_pairs(here) else here.size
        address = self.prices.address(here, self.local)
        combines = isinstance(op, Recv) and op.combine != "store"
        self.clock[cores] += 2 * address if combines else address
        in_memory = [here, here] if combines or isinstance(op, Relay) else [here]
        self.clock[cores] += costs.setup(in_memory) - costs.OPERATION + costs.DESCRIPTOR
        self.pending[op.result] = _Pending(
            op, cores.copy(), self.clock.copy(), self.steps.copy(), words
        )
        name = channel_out(op)
        if isinstance(op, Send) and name in self.turns:
            self.messages[name].append(self._in_turn(op, name, cores, words))
        elif isinstance(op, Send) and name is not None:
            first = self.clock + costs.FABRIC
            self.messages[name].append(self._carry(name, cores, first, first + words - 1))
        elif isinstance(op, Relay):
            self._relay(op, cores, words)

    def _runs(self, when: Cond | None) -> bool:
        """Whether a guard is decided when the program runs."""
        return when is not None and not when.free_vars <= self.mesh.coordinates

    def _in_turn(self, op: Send, name: str, cores: Mask, words: int) -> _Message:
        """The messages of lines whose cores take turns; the next turn begins when the control
        wavelets of this one have passed."""
        turns, over = self.turns[name], self.over[name]
        axis = self.mesh.names.index(turns.axis)
        place = np.indices(cores.shape)[axis]
        root = np.where(cores, place, -1).max(axis, keepdims=True)
        clock = np.where(cores, self.clock, 0).max(axis, keepdims=True)
        first = np.maximum(clock + costs.FABRIC, over)
        last = first + words - 1
        self.over[name] = np.where(
            root >= 0, last + self.costs.task + _HANDOVER + costs.FABRIC, over
        )
        self.pending[op.result].since = (
            np.where(cores, last + self.costs.task + _HANDOVER, self.clock) - words
        )
        hears = (root >= 0) & ((place > root) if turns.way > 0 else (place <= root))
        way = 2 * self.costs.ramp + np.abs(place - root) * self.costs.hop
        return _Message(*(np.where(hears, t + way, np.nan) for t in (first, last)))

    def _relay(self, op: Relay, cores: Mask, words: int) -> None:
        """What a relay sends on follows what it receives."""
        message, start = self._received(op.channel, cores), self.clock + costs.FABRIC
        if self.transfers.of_token[op.result].at_once:
            first = np.maximum(message.first + self.costs.awaited, start)
            last = np.maximum(message.last, first + words - 1)
        else:
            first = np.maximum(message.first, start) + costs.RELAY
            last = np.maximum(message.last + costs.RELAY, first + words - 1)
        self.messages[op.onward].append(self._carry(op.onward, cores, first, last))
        self.pending[op.result].since = np.where(cores, last, self.clock)

    def _carry(self, name: str, cores: Mask, first: Clock, last: Clock) -> _Message:
        """The messages of the senders among ``cores`` at their receivers."""
        route = self.routes[name]
        keep = cores[route.source]
        source = tuple(axis[keep] for axis in route.source)
        target = tuple(axis[keep] for axis in route.target)
        arrived = _Message(np.full(cores.shape, np.nan), np.full(cores.shape, np.nan))
        way = 2 * self.costs.ramp + route.hops[keep] * self.costs.hop
        arrived.first[target] = first[source] + way
        arrived.last[target] = last[source] + way
        return arrived

    def _received(self, name: str, cores: Mask) -> _Message:
        """The oldest message for each of ``cores``, taken out of those under way."""
        first, last = np.zeros(cores.shape), np.zeros(cores.shape)
        left = cores.copy()
        for message in self.messages[name]:
            mine = left & ~np.isnan(message.last)
            first[mine], last[mine] = message.first[mine], message.last[mine]
            message.last[mine] = np.nan
            left &= ~mine
        while self.messages[name] and np.isnan(self.messages[name][0].last).all():
            self.messages[name].popleft()
        return _Message(first, last)

    def _wait(self, group: Group, cores: Mask, where: int) -> None:
        """Move the clocks on to where the transfers of a group have ended, which a core awaits
        within its task, or by returning from it and being resumed in another case."""
        starts = [op.result for op in group.starts if op.result in self.pending]
        found = {token: self.pending.pop(token) for token in starts}
        ends: dict[Value, Clock] = {}
        waits = np.zeros(self.clock.shape, bool)
        for token, one in found.items():
            ends[token] = np.where(one.cores, self._end(one), 0.0)
            waits |= one.cores
        if group.at_once:
            for end in ends.values():
                self.clock = np.maximum(self.clock, end)
            return
        number = self.cases.after[where]
        if group.guard is None or group.guard.is_true or group.shared:
            waits = cores
        left = np.maximum(self.clock + costs.EFFECT, self._moved(list(found.values())))
        join = self.costs.task + costs.JOIN
        resumed = _joined(group, ends, left, join) + self.costs.task + costs.RESUME
        self.clock = np.where(waits, resumed, self.clock)
        self._switch(cores, number)

    def _moved(self, under_way: list[_Pending]) -> Clock:
        """When a core has moved all words of its transfers, one a cycle, in the cycles that its
        vector steps leave, from whichever of them on."""
        latest = np.zeros(self.clock.shape)
        for one in under_way:
            words = np.zeros(self.clock.shape)
            for other in under_way:
                words[other.cores & (other.since >= one.since)] += other.words
            end = one.since + self.steps - one.steps + words
            latest = np.where(one.cores, np.maximum(latest, end), latest)
        return latest

    def _end(self, one: _Pending) -> Clock:
        """When a transfer ends on each core."""
        if isinstance(one.op, Send):
            return one.since + costs.FABRIC + one.words - 1
        if isinstance(one.op, Relay):
            return one.since
        name = channel_in(one.op)
        assert name is not None
        message = self._received(name, one.cores)
        start = one.since + costs.FABRIC
        if self.transfers.of_token[one.op.result].at_once:
            start = np.maximum(start, message.first + self.costs.awaited)
        return np.maximum(message.last + 1, start + one.words)


def _joined(group: Group, ends: dict[Value, Clock], left: Clock, join: int) -> Clock:
    """When the last signal comes to ``resume``: the tasks that join ends run one after the other,
    each once all that it joins have ended, and the core has ``left`` its own task. One takes
    ``join`` cycles."""
    now = np.maximum(left, np.minimum.reduce([*ends.values()]))
    joins = [one for one in group.joins if not one.inner]
    ready = [np.maximum.reduce(_below(group, one.task, ends, join)) for one in joins]
    for one in np.sort(np.array(ready), axis=0) if ready else []:
        now = np.maximum(now, one) + join
    chosen = [_choice_end(choice, ends, join) for choice in group.choices]
    return np.maximum(now, np.maximum.reduce([*ends.values(), *chosen]))


def _choice_end(choice: Choice, ends: dict[Value, Clock], join: int) -> Clock:
    """When the signal of a choice comes: after the tasks that join what a core has started."""
    mine = np.array([ends[op.result] for op in choice.starts if op.result in ends])
    joined: Clock = mine.max(0) + join * np.maximum(0, (mine > 0).sum(0) - 1)
    return joined


def _below(group: Group, task: str, ends: dict[Value, Clock], join: int) -> list[Clock]:
    """Ends of the transfers that ``task`` joins, also through other tasks."""
    signals = group.plain.signals
    found = [ends[t] for t, signal in signals.items() if signal.task == task and t in ends]
    for choice in group.choices:
        if choice.signal is not None and choice.signal.task == task:
            found.append(_choice_end(choice, ends, join))
    for one in group.joins:
        if not one.inner and one.then is not None and one.then.task == task:
            found += _below(group, one.task, ends, join)
    return found


class _Route:
    """Sender and receiver of every message of a channel, and the hops between them."""

    def __init__(self, channel: Channel, module: Module) -> None:
        mesh = module.the_mesh()
        axes = channel.route.inputs
        shape = tuple(mesh.size(name) for name in axes)
        sources, targets = channel.route.pairs(shape)
        inside = ((targets >= 0) & (targets < np.array(shape))).all(axis=1)
        self.source, self.target = (_cores(mesh, axes, p[inside]) for p in (sources, targets))
        crosses = len(axes) > len(mesh.plane)  # an edge, which is one hop
        hops = 1 if crosses else np.abs(sources - targets).sum(axis=1)[inside]
        self.hops = np.resize(hops, self.source[0].shape)


def _cores(
    mesh: Mesh, axes: Sequence[str], points: NDArray[np.intp]
) -> tuple[NDArray[np.intp], ...]:
    """Positions on every axis of ``mesh`` of ``points`` on ``axes``: those of the plane are in each
    region."""
    found = tuple(points.T)
    if len(axes) == len(mesh.names):
        return found
    regions = np.repeat(np.arange(mesh.regions), len(points))
    return (regions, *(np.tile(place, mesh.regions) for place in found))

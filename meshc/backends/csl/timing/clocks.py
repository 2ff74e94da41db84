"""Predicted cycles of an emitted program: a clock per core, moved through the tile program.

All cores run one text, so the clocks are arrays over the mesh and each statement moves those that
its guard admits, as few rows and columns as that is (``parts.py``). A message is known by when its
first and its last wavelet come; a receiver ends when the last one has. Transfers on microthreads
use issue slots that the running task leaves, so what they move is owed by the core at the latest
when it waits. A sweep is run rank by rank, as its messages go. Contention for links and full queues
are left out.

What a statement takes is in ``prices.py``; ``docs/csl.md`` says which of it is calibrated on the
simulator. The model follows Luczynski et al. (HPDC 2024): depth, distance and energy of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from meshc.analysis.csl.joined_transfers import Group
from meshc.analysis.csl.request_rounds import rounds_of
from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.analysis.traffic.turns import turns_of
from meshc.backends.csl.fabric.messages import Messages, in_pairs
from meshc.backends.csl.timing.cases import Cases
from meshc.backends.csl.timing.classes import Classes, round_of
from meshc.backends.csl.timing.joins import joined
from meshc.backends.csl.timing.message_times import Clock, Message, Route, UnderWay
from meshc.backends.csl.timing.parts import Coordinates, Part, everything, names_of, tests_of
from meshc.backends.csl.timing.prices import Prices
from meshc.ir.affine import Cond, Constraint, IntLike
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
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


@dataclass
class _Pending:
    """A transfer under way: the cores that started it, when, after how many vector steps, and its
    words."""

    op: Transfer
    part: Part
    since: Clock
    steps: Clock
    words: int


class Timing:
    """Runs the clocks of ``module`` through its program at ``prices``; ``cycles`` is the last of
    them, and ``spent`` says by how many cycles it moved on in each statement or at the end of each
    block, by ``id``. ``calls`` are the statements that begin what is called as a function. Of
    run-time scalars that are not ``told`` the largest values count."""

    def __init__(
        self,
        module: Module,
        prices: Prices,
        cases: Cases,
        calls: Collection[Op] = (),
        told: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.calls = calls
        self.mesh = module.the_mesh()
        self.prices = prices
        self.fabric = prices.fabric
        self.cases = cases
        self.transfers = cases.transfers
        self.carried = Messages(module)
        self.rounds = rounds_of(module)
        self.local: set[str] = set()
        shape = tuple(self.mesh.size(name) for name in self.mesh.names)
        base: dict[str, IntLike] = dict(
            zip(self.mesh.names, np.indices(shape, sparse=True), strict=True)
        )
        self.env: dict[str, IntLike] = {
            name: value.evaluate(base) for name, value in coordinate_values(self.mesh).items()
        }
        self.env |= {name: high for name, (_, high) in module.scalars.items()}
        self.env.update(told)
        rounds = {op.var for op in module.walk() if isinstance(op, For)}
        self.coordinates = Coordinates(self.env, coordinate_functions(self.mesh), rounds)
        self.part = self.within = everything(shape)  # what receives messages lies within
        self.clock: Clock = np.zeros(shape)
        self.steps: Clock = np.zeros(shape)
        found = {c.name: turns_of(c, self.mesh) for c in module.channels}
        self.turns = {name: turns for name, turns in found.items() if turns is not None}
        self.over: dict[str, Clock] = {}  # when a line is free again
        for name, turns in self.turns.items():
            self.over[name] = np.zeros(shape).min(self.mesh.names.index(turns.axis), keepdims=True)
        self.routes = {c.name: Route(c, self.mesh) for c in module.channels if not c.turns}
        self.messages = UnderWay()
        self.pending: dict[Value, _Pending] = {}
        self.kernels: dict[int, tuple[int, int]] = {}
        self.starts: dict[int, int] = {}
        self.runs: dict[int, list[tuple[Cond | None, list[Op]]]] = {}
        self.last, self.spent = 0, Counter[int]()
        # Whether the arrays of now are also those of a transfer that began, and stay as they are.
        self.kept = self.kept_steps = False
        self._spend(prices.begin(self.env))
        self._switch(0)
        self._note(module.program.body)
        self._block(module.program.body)
        self._note(module.program.body)

    @property
    def cycles(self) -> float:
        """Predicted cycles until the slowest core is through."""
        return float(self.clock.max())

    def _note(self, what: Op | Block) -> None:
        """Ascribe to ``what`` by how much the last clock has moved on."""
        now = int(self.clock.max())
        if now > self.last:
            self.spent[id(what)] += now - self.last
            self.last = now

    # --- parts of the mesh

    def _spend(self, cycles: float) -> None:
        """Move the clocks of the cores that are there."""
        cores = self.part.cores
        if not cycles:
            return
        if self.kept:
            self.clock, self.kept = self.clock.copy(), False
        self.clock += cycles if cores is None else np.where(cores, cycles, 0)

    @contextmanager
    def _on(self, inner: Part) -> Iterator[None]:
        """What follows is about ``inner`` alone, cores of those that are there."""
        outer = self.part
        if inner is outer:
            yield
            return
        clock, steps, index = self.clock, self.steps, outer.index_of(inner)
        kept, kept_steps, mine = self.kept, self.kept_steps, steps[index]
        self.part, self.clock, self.steps = inner, clock[index], mine
        yield
        if kept:
            clock = clock.copy()
        clock[index] = self.clock
        if self.steps is not mine:
            steps, kept_steps = steps.copy() if kept_steps else steps, False
            steps[index] = self.steps
        self.part, self.clock, self.steps = outer, clock, steps
        self.kept, self.kept_steps = False, kept_steps

    def _now(self) -> tuple[Clock, Clock]:
        """The clocks and vector steps of now, which are kept as they are."""
        if self.clock.base is not None or self.steps.base is not None:
            return self.clock.copy(), self.steps.copy()
        self.kept = self.kept_steps = True
        return self.clock, self.steps

    # --- statements

    def _block(self, block: Block) -> None:
        shared: Cond | None = None
        for when, ops in self._runs(block):
            if ops[0] in self.calls:
                self._spend(self.prices.call)
            if when is not None and when != shared and not when.free_vars <= self.mesh.coordinates:
                self._spend(self.prices.test(when, self.local))
            shared = when
            inner = self.coordinates.where(self.part, when)
            idle = self.prices.effect * sum(map(self._stands_in, ops))
            self._spend(idle)
            if inner.empty:
                continue
            with self._on(inner):
                self._spend(-idle)
                for op in ops:
                    self._op(op)
                    self._note(op)
        group = self.transfers.of_block.get(id(block))
        if group is not None:
            self._wait(group, id(block))
            self._note(block)

    def _runs(self, block: Block) -> list[tuple[Cond | None, list[Op]]]:
        """The statements of a block that stand behind each other under one guard; one that is
        called begins anew."""
        found = self.runs.get(id(block))
        if found is None:
            found = self.runs[id(block)] = []
            for op in block.ops:
                if found and op.when == found[-1][0] and op not in self.calls:
                    found[-1][1].append(op)
                else:
                    found.append((op.when, [op]))
        return found

    def _stands_in(self, op: Op) -> bool:
        """Whether cores that do not start a transfer give the signal of its end themselves."""
        if not isinstance(op, (Send, Recv, Relay)):
            return False
        group = self.transfers.of_token[op.result]
        alone = group.guard is not None or op.when is None
        chosen = group.choice_of(op) is not None
        return not (group.at_once or alone or chosen or op in group.follows.values())

    def _op(self, op: Op) -> None:
        if isinstance(op, Compute):
            kernel, steps = self.kernel_of(op)
            cores = self.part.cores
            self._spend(kernel)
            if steps:
                self.steps = self.steps + (steps if cores is None else np.where(cores, steps, 0))
                self.kept_steps = False
        elif isinstance(op, (Send, Recv, Relay)):
            self._start(op)
        elif isinstance(op, Wait):
            group = self.transfers.of_wait.get(op)
            if group is not None:
                self._wait(group, id(op))
        elif isinstance(op, For):
            self._for(op)
        elif isinstance(op, Sweep):
            self._sweep(op)

    def kernel_of(self, op: Compute) -> tuple[int, int]:
        """What a kernel takes, and how much of it are vector steps."""
        found = self.kernels.get(id(op))
        if found is None:
            found = self.kernels[id(op)] = self.prices.kernel(op, self.local)
        return found

    def _switch(self, number: int) -> None:
        """Go to a case of the program."""
        self._spend(self.prices.switched(number))

    def _for(self, op: For) -> None:
        head = self.cases.head.get(id(op))
        if head is None:
            self.local.add(op.var)
        else:
            self._switch(head)
        self._rounds(op, self._by_classes(op))
        self.local.discard(op.var)

    def _by_classes(self, op: For) -> int:
        """Run rounds of a loop on one core of each class, while that saves anything; how many there
        were. 0, and nothing is changed, where a message outlasts its round."""
        (body,) = op.regions
        what = round_of(body, self.mesh, self.routes)
        outer, clock, steps = self.part, self.clock, self.steps
        if what is None or outer.cores is not None or self.messages.any_on(what.channels):
            return 0
        if clock.size != clock.shape[-2] * clock.shape[-1]:
            return 0  # cores of several regions
        classes = Classes(what, outer, clock, steps)
        if not classes.closed:
            return 0
        kept, kept_steps, within = self.kept, self.kept_steps, self.within
        spent, last = self.spent.copy(), self.last
        done = self._rounds_of(op, classes)
        self.messages.clear(what.channels)
        self.part, self.within = outer, within
        if done:
            self.clock, self.steps = classes.everywhere()
            self.kept = self.kept_steps = False
        else:
            self.clock, self.steps, self.spent, self.last = clock, steps, spent, last
            self.kept, self.kept_steps = kept, kept_steps
        return done

    def _rounds_of(self, op: For, classes: Classes) -> int:
        """Rounds of a loop on the cores that stand for ``classes``, while these are few; how many
        there were, or 0 where messages are under way behind one."""
        (body,) = op.regions
        rounds = int(op.count.evaluate(self.env, self.coordinates.functions))
        head = self.cases.head.get(id(op))
        tests = self._tests(body, op.var)
        changes = [0, *self.coordinates.changes(tests, op.var, rounds)]
        done, steady = 0, False
        while done < rounds and classes.few:
            self.env[op.var] = done
            if changes and changes[0] == done:
                changes, steady = changes[1:], False
                classes.told(self.coordinates)
            self.part = self.within = classes.chosen()
            self.clock, self.steps = classes.walked()
            self.kept = self.kept_steps = False
            spent = self.spent.copy()
            self._spend(self.prices.round(op, rounds, head is not None))
            self._block(body)
            done += 1
            if self.messages.any_on(classes.channels):
                return 0
            if head is not None:
                self._go_on(op, head, done < rounds)
            classes.moved(self.clock, self.steps)
            # What led to this round is among what it took: only the second such round is like it.
            was, steady = steady, classes.steady
            more = min(changes[0] if changes else rounds, rounds - 1) - done
            if was and steady and more > 0:
                classes.skip(more)
                self._note_rounds(spent, more)
                done += more
        return done

    def _rounds(self, op: For, done: int) -> None:
        """The rounds of a loop behind so many, one by one until they are alike."""
        (body,) = op.regions
        rounds = int(op.count.evaluate(self.env, self.coordinates.functions))
        head = self.cases.head.get(id(op))
        alike = not self._tests(body, op.var)  # else messages of a round may last longer
        before = gained = None
        spent = self.spent
        while done < rounds:
            self.env[op.var] = done
            if alike:
                before, spent = self._now(), self.spent.copy()
            self._spend(self.prices.round(op, rounds, head is not None))
            self._block(body)
            done += 1
            if head is not None:
                self._go_on(op, head, done < rounds)
            # The last round leads on to another case, so it is not one to go by.
            if before is None or done >= rounds - 1:
                continue
            now = self.clock - before[0], self.steps - before[1]
            if gained is not None and all(map(np.array_equal, now, gained)):  # and so it goes on
                self._skip(now, rounds - done, op)
                self._note_rounds(spent, rounds - done)
                break
            gained = now

    def _tests(self, body: Block, var: str) -> set[Constraint | Cond]:
        """The tests of guards that are about the rounds of a loop."""
        guards = {op.when for op in body.walk() if op.when is not None}
        return {test for when in guards for test in tests_of(when) if var in names_of(test)}

    def _go_on(self, op: For, head: int, more: bool) -> None:
        """Behind a round go to the next one, or to what comes after the loop."""
        after = self.cases.after[id(op)]
        if id(op) not in self.cases.closed:
            self._switch(head if more else after)
        elif not more:  # the wait took what leads to another round
            self._spend(self.prices.switched(after) - self.prices.switched(head))

    def _note_rounds(self, before: Counter[int], rounds: int) -> None:
        """Ascribe ``rounds`` that were skipped as the last one, which began with ``before``."""
        for what, cycles in self.spent.items():
            more = (cycles - before[what]) * rounds
            self.spent[what] += more
            self.last += more

    def _skip(self, gained: tuple[Clock, Clock], rounds: int, op: For) -> None:
        """Add the ``rounds`` with which a loop ends; each takes the cycles and vector steps that
        the last one ``gained``."""
        self.clock, self.steps = self.clock + gained[0] * rounds, self.steps + gained[1] * rounds
        self.kept = self.kept_steps = False
        head = self.cases.head.get(id(op))
        if head is not None:
            after = self.prices.switched(self.cases.after[id(op)])
            self._spend(after - self.prices.switched(head))

    def _sweep(self, op: Sweep) -> None:
        (body,) = op.regions
        if id(op) in self.cases.head:
            self._switch(self.cases.head[id(op)])
        if self.rounds is not None and op is self.rounds.work:
            self._spend(self.prices.request)
        for here in self.coordinates.ranks(self.part, op.rank, op.count):
            with self._on(here):
                self._block(body)
        if id(op) in self.cases.head:
            self._switch(self.cases.after[id(op)])

    # --- transfers

    def _start(self, op: Transfer) -> None:
        here = self.carried.window(op)
        words = here.size // 2 if in_pairs(here) else here.size
        price = self.starts.get(id(op))
        if price is None:
            combines = isinstance(op, Recv) and op.combine != "store"
            price = self.prices.transfer(here, combines, isinstance(op, Relay), self.local)
            self.starts[id(op)] = price
        self._spend(price)
        one = _Pending(op, self.part, *self._now(), words)
        self.pending[op.result] = one
        name = channel_out(op)
        if isinstance(op, Send) and name in self.turns:
            self.messages.send(name, self._in_turn(one, name))
        elif isinstance(op, Send) and name is not None:
            self._carry(name, self.clock + (self.fabric.start + words - 1), words - 1)
        elif isinstance(op, Relay):
            self._relay(one, op)

    def _carry(self, name: str, last: Clock, lead: Clock | int) -> None:
        """Send what the cores that are there put on a channel until ``last``, ``lead`` cycles
        long."""
        fabric = self.fabric
        message = self.routes[name].carry(
            self.part, self.within, last, lead, fabric.hop, fabric.ramps
        )
        self.messages.send(name, message)

    def _relay(self, one: _Pending, op: Relay) -> None:
        """What a relay sends on follows what it receives."""
        last, lead = self.messages.take(op.channel, self.part)
        start, fabric = self.clock + self.fabric.start, self.fabric
        if self.transfers.of_token[op.result].at_once:
            first = np.maximum(last - lead + fabric.awaited, start)
            last = np.maximum(last, first + (one.words - 1))
        else:
            first = np.maximum(last - lead, start) + fabric.relay
            last = np.maximum(last + fabric.relay, first + (one.words - 1))
        self._carry(op.onward, last, last - first)
        one.since = last

    def _in_turn(self, one: _Pending, name: str) -> Message:
        """The messages of lines whose cores take turns; the next turn begins when the control
        wavelets of this one have passed."""
        turns, cores, fabric = self.turns[name], self.part.cores, self.fabric
        axis = self.mesh.names.index(turns.axis)
        line = [1] * len(self.part.at)
        line[axis] = -1
        senders = np.broadcast_to(self.part.at[axis].reshape(line), self.part.shape)
        clock = self.clock
        if cores is not None:
            senders, clock = np.where(cores, senders, -1), np.where(cores, clock, 0)
        root, clock = senders.max(axis, keepdims=True), clock.max(axis, keepdims=True)
        lines = [np.zeros(1, np.intp) if n == axis else at for n, at in enumerate(self.part.at)]
        over = self.over[name][np.ix_(*lines)]
        first = np.maximum(clock + fabric.start, over)
        last = first + one.words - 1
        ended = last + fabric.handover
        self.over[name][np.ix_(*lines)] = np.where(root >= 0, ended + fabric.start, over)
        one.since = np.broadcast_to(ended - one.words, self.part.shape)
        place = np.arange(turns.size)
        at = tuple(place if n == axis else at for n, at in enumerate(self.part.at))
        place = place.reshape(line)
        hears = (root >= 0) & ((place > root) if turns.way > 0 else (place <= root))
        way = fabric.ramps + np.abs(place - root) * fabric.hop
        return Message.of(at, last + way, one.words - 1, hears)

    def _wait(self, group: Group, where: int) -> None:
        """Move the clocks on to where the transfers of a group have ended, which a core awaits
        within its task, or by returning from it and being resumed in another case."""
        tokens = [op.result for op in group.starts]
        found = {t: self.pending.pop(t) for t in tokens if t in self.pending}
        if group.at_once:
            for one in found.values():
                self.clock = np.maximum(self.clock, self._spread(one, self._end(one)))
            return
        if group.guard is None or group.guard.is_true or group.shared:
            self._resume(group, found)
        elif found:
            with self._on(next(iter(found.values())).part):
                self._resume(group, found)
        self._switch(self.cases.after[where])

    def _resume(self, group: Group, found: Mapping[Value, _Pending]) -> None:
        """Return from the task and be resumed when what was ``found`` of a group has ended."""
        ends = {op.result: np.zeros(self.part.shape) for op in group.starts}
        ends |= {token: self._spread(one, self._end(one)) for token, one in found.items()}
        left = np.maximum(self.clock + self.prices.effect, self._moved([*found.values()]))
        resumed = joined(group, ends, left, self.fabric.join) + self.fabric.resume
        cores = self.part.cores
        self.clock = resumed if cores is None else np.where(cores, resumed, self.clock)

    def _spread(self, one: _Pending, clock: Clock) -> Clock:
        """``clock`` of the cores that started a transfer, 0 of others that are there."""
        if one.part is self.part and one.part.cores is None:
            return clock
        found = np.zeros(self.part.shape)
        cores = one.part.cores
        found[self.part.index_of(one.part)] = clock if cores is None else np.where(cores, clock, 0)
        return found

    def _moved(self, under_way: list[_Pending]) -> Clock:
        """When a core has moved all words of its transfers, one a cycle, in the cycles that its
        vector steps leave: those of each transfer, and of all that began no earlier, behind its
        beginning."""
        latest, owed = np.zeros(self.clock.shape), 0
        if all(map(self._begins, under_way)):
            # They began one after the other, on all cores that are there.
            for one in reversed(under_way):
                owed += one.words
                latest = np.maximum(latest, one.since + (self.steps - one.steps + owed))
            return latest
        begun = [self._from(one) for one in under_way]
        for one, since in zip(under_way, begun, strict=True):
            words = sum(
                np.where(other >= since, behind.words, 0)
                for behind, other in zip(under_way, begun, strict=True)
            )
            here = self.part.index_of(one.part)
            end = (since + self.steps + words)[here] - one.steps
            latest[here] = np.maximum(latest[here], end)
        return latest

    def _from(self, one: _Pending) -> Clock:
        """When the cores that are there began a transfer; before everything where they did not."""
        found = np.full(self.clock.shape, -np.inf)
        cores = one.part.cores
        found[self.part.index_of(one.part)] = (
            one.since if cores is None else np.where(cores, one.since, -np.inf)
        )
        return found

    def _begins(self, one: _Pending) -> bool:
        """Whether a transfer began when its statement was run, on all cores that are there."""
        whole = one.part is self.part and one.part.cores is None
        return whole and not isinstance(one.op, Relay) and channel_out(one.op) not in self.turns

    def _end(self, one: _Pending) -> Clock:
        """When a transfer ends on each core that started it."""
        if isinstance(one.op, Send):
            return one.since + (self.fabric.start + one.words - 1)
        if isinstance(one.op, Relay):
            return one.since
        name = channel_in(one.op)
        assert name is not None
        last, lead = self.messages.take(name, one.part)
        end = one.since + (self.fabric.start + one.words)
        if self.transfers.of_token[one.op.result].at_once:
            np.maximum(end, last - lead + (self.fabric.awaited + one.words), out=end)
        return np.maximum(end, last + 1, out=end)

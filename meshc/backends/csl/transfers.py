"""Which transfers each wait joins, and which ids signal their ends.

Transfers that are waited for at once, of which a core starts one, are synchronous operations.
Others run on microthreads and signal: of two inputs of a *join* one activates its task and the
other unblocks it, so the task runs when both have come and no code counts. ``resume`` is the last
join of a wait. While another wait is still open, the ends of a wait's transfers are kept in a flag
instead (``shared``). A queue serves one operation at a time, so of several transfers on one channel
the end of each starts the next (``follows``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.analysis.isl import is_empty, is_subset
from meshc.ir.affine import Cond
from meshc.ir.core import Block
from meshc.ir.module import Module
from meshc.ir.ops.tile import Recv, Relay, Send, Transfer, Wait, channel_in, channel_out
from meshc.ir.values import Value
from meshc.support.diagnostics import fail
from meshc.support.plmr import violates

RESUME = "resume"


@dataclass(frozen=True)
class Signal:
    """What the end of a transfer, or of a join, does to the task called ``task``."""

    verb: str  # activate or unblock
    task: str


@dataclass
class Join:
    """A task that has two inputs; ``then`` is what it does when both have come."""

    task: str
    then: Signal | None


@dataclass
class Group:
    """The transfers that one wait joins; ``number`` counts the groups of a program."""

    number: int
    starts: list[Transfer]
    begin: int
    end: int
    at_once: bool = False
    shared: bool = False
    joins: list[Join] = field(default_factory=list)
    follows: dict[Value, Transfer] = field(default_factory=dict)
    signals: dict[Value, Signal] = field(default_factory=dict)

    @property
    def guard(self) -> Cond | None:
        """The common guard of the transfers; None when there is none or they differ."""
        guards = {op.when for op in self.starts}
        return next(iter(guards)) if len(guards) == 1 else None

    def last_of(self, start: Transfer) -> Transfer:
        """The last of the transfers that begin one after the other once ``start`` has begun."""
        while start.result in self.follows:
            start = self.follows[start.result]
        return start


class Transfers:
    """Groups of a program, by the wait or block that ends them."""

    def __init__(self, module: Module) -> None:
        self.of_wait: dict[Wait, Group] = {}
        self.of_block: dict[int, Group] = {}
        self.of_token: dict[Value, Group] = {}
        self._clock = 0
        self._groups: list[Group] = []
        self._visit(module.program.body)
        self._check_queues()
        for group in self._groups:
            if not group.at_once:
                group.shared = self._overlaps(group)
                _queue_up(group)
                self._name_joins(group)

    @property
    def suspends(self) -> bool:
        """Whether the program has to wait for anything by returning from its task."""
        return any(not g.at_once for g in self._groups)

    def suspends_in(self, block: Block) -> bool:
        """Whether some wait inside ``block`` returns from the task."""
        tokens = [t for op in block.walk() for t in op.results]
        return any(not self.of_token[t].at_once for t in tokens if t in self.of_token)

    # --- groups

    def _visit(self, block: Block) -> None:
        open_: dict[Value, tuple[Transfer, int]] = {}
        for op in block.ops:
            self._clock += 1
            if isinstance(op, (Send, Recv, Relay)):
                open_[op.result] = (op, self._clock)
            elif isinstance(op, Wait):
                tokens = [t for t in op.operands if isinstance(t, Value)]
                found = [open_.pop(t) for t in tokens if t in open_]
                if found:
                    _check_guard(op, [start for start, _ in found])
                    self.of_wait[op] = self._group(found, _alone(block, op, found))
            for region in op.regions:
                self._visit(region)
        self._clock += 1
        if open_:
            found = list(open_.values())
            self.of_block[id(block)] = self._group(found, _alone(block, None, found))

    def _group(self, found: list[tuple[Transfer, int]], at_once: bool) -> Group:
        begin = min(clock for _, clock in found)
        group = Group(len(self._groups), [op for op, _ in found], begin, self._clock, at_once)
        self._groups.append(group)
        self.of_token |= {op.result: group for op in group.starts}
        return group

    def _overlaps(self, group: Group) -> bool:
        return any(
            other is not group
            and not other.at_once
            and other.begin <= group.end
            and group.begin <= other.end
            for other in self._groups
        )

    def _check_queues(self) -> None:
        """A queue serves one operation at a time."""
        for one in self._groups:
            for other in self._groups:
                if other is not one and other.begin <= one.end and one.begin <= other.end:
                    for start in one.starts:
                        for rival in other.starts:
                            _check_rivals(start, rival)

    # --- tasks

    def _name_joins(self, group: Group) -> None:
        """Name the joins of a group by their place in it, so that groups which are not open
        together use the same tasks for the same things."""
        tokens = [op.result for op in group.starts if op.result not in group.follows]
        if not group.shared:
            self._spread(group, tokens, RESUME, "joined")
            return
        top = f"ended_{group.number}"
        group.joins.append(Join(top, None))
        self._spread(group, tokens, top, f"joined_{group.number}")

    def _spread(self, group: Group, tokens: list[Value], task: str, path: str) -> None:
        """Make ``task`` run when all of ``tokens`` have ended."""
        if len(tokens) == 1:
            group.signals[tokens[0]] = Signal("activate", task)
            return
        half = (len(tokens) + 1) // 2
        self._branch(group, tokens[:half], Signal("activate", task), f"{path}_a")
        self._branch(group, tokens[half:], Signal("unblock", task), f"{path}_b")

    def _branch(self, group: Group, tokens: list[Value], then: Signal, path: str) -> None:
        if len(tokens) == 1:
            group.signals[tokens[0]] = then
            return
        group.joins.append(Join(path, then))
        self._spread(group, tokens, path, path)


def _alone(block: Block, wait: Wait | None, found: list[tuple[Transfer, int]]) -> bool:
    """Whether the transfers stand right before their wait and no core starts two of them."""
    starts = [op for op, _ in found]
    end = len(block.ops) if wait is None else block.ops.index(wait)
    if block.ops[end - len(starts) : end] != starts:
        return False
    return all(exclusive(a, b) for n, a in enumerate(starts) for b in starts[:n])


def exclusive(one: Transfer, other: Transfer) -> bool:
    """Whether no core starts both transfers."""
    if one.when is None or other.when is None:
        return False
    return is_empty(one.when & other.when)


def _queue_up(group: Group) -> None:
    """Let each transfer start the next one on its channel, and check that this can be done."""
    for number, later in enumerate(group.starts):
        before = [op for op in group.starts[:number] if _same_queue(op, later)]
        if not before:
            continue
        first = before[-1]
        if first.when != later.when or isinstance(first, Relay) or isinstance(later, Relay):
            _check_rivals(first, later)
            continue
        group.follows[first.result] = later
        group.signals[first.result] = Signal("activate", f"next_{group.number}_{number}")


def _same_queue(one: Transfer, other: Transfer) -> bool:
    ends = (channel_in, channel_out)
    return any(end(one) is not None and end(one) == end(other) for end in ends)


def _check_rivals(one: Transfer, other: Transfer) -> None:
    if _same_queue(one, other) and not exclusive(one, other):
        fail(
            "csl-overlap",
            f"two transfers on channel @{other.channel} are under way at once; a queue of the "
            "device serves one",
            other.span,
            notes=(violates("R"),),
        )


def _check_guard(wait: Wait, starts: list[Transfer]) -> None:
    """A core that started a transfer must come to its wait; others do not count."""
    if wait.when is None:
        return
    guards = {start.when or Cond.true() for start in starts}
    if any(guard != wait.when and not is_subset(guard, wait.when) for guard in guards):
        fail(
            "csl-wait",
            "a wait under a guard of its own, which not all who start its transfers fulfil",
            wait.span,
            help="guard the transfers; a token that was not started does not count",
        )

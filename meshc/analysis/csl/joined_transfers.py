"""Which transfers each wait joins, and which ids signal their ends.

Transfers that are waited for at once, of which a core starts one, are synchronous operations.
Others run on microthreads and signal: of two inputs of a *join* one activates its task and the
other unblocks it, so the task runs when both have come and no code counts. ``resume`` is the last
join of a wait. While another wait is still open, the ends of a wait's transfers are kept in a flag
instead (``shared``). A queue serves one operation at a time, so of several transfers on one channel
the end of each starts the next (``follows``). Transfers that exclude each other share a signal (a
*choice*); a send in turn is followed by a task that ends the turn before it signals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from meshc.analysis.proofs.isl import Scope, is_empty, is_subset
from meshc.analysis.proofs.name_bounds import largest
from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Block
from meshc.ir.module import Module
from meshc.ir.ops.tile import For, Recv, Relay, Send, Transfer, Wait, channel_in, channel_out
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
    """A task that has two inputs, or one; ``then`` is what it does when all have come. ``inner``
    ones join what a core starts in a case of a choice."""

    task: str
    then: Signal | None
    inputs: int = 2
    inner: bool = False


@dataclass
class Alternative:
    """The transfers of a choice that a core starts together where ``when`` holds and no case
    before has held."""

    when: Cond
    starts: list[Transfer]
    signals: dict[Value, Signal] = field(default_factory=dict)
    turns: dict[Value, str] = field(default_factory=dict)
    idle: Signal | None = None


@dataclass
class Choice:
    """Transfers that exclude each other, at least two and two: they give one signal together, and
    which of them come to it depends on the core and the step. The last case is all that is left."""

    starts: list[Transfer]
    cases: list[Alternative]
    signal: Signal | None = None


@dataclass
class Group:
    """The transfers that one wait joins; ``number`` counts the groups of a program.

    ``cases`` are what cores start in different places of the program: a choice's, or one for all
    the others. ``inputs`` is how many signals come to the wait.
    """

    number: int
    starts: list[Transfer]
    begin: int
    end: int
    at_once: bool = False
    shared: bool = False
    inputs: int = 0
    joins: list[Join] = field(default_factory=list)
    follows: dict[Value, Transfer] = field(default_factory=dict)
    plain: Alternative = field(default_factory=lambda: Alternative(Cond.true(), []))
    choices: list[Choice] = field(default_factory=list)

    @property
    def guard(self) -> Cond | None:
        """The common guard of the transfers; None when there is none or they differ."""
        guards = {op.when for op in self.starts}
        return next(iter(guards)) if len(guards) == 1 else None

    def closes(self, loop: For) -> bool:
        """Whether a core that is about to wait for the transfers may already go to the next round
        of ``loop``: nothing that their ends do, and no test for the wait, names its variable."""
        guard = self.guard
        tested = guard is not None and loop.var in guard.free_vars
        later = self.follows or any(case.turns for case in self.cases)
        return not (self.at_once or self.shared or tested or later)

    @property
    def cases(self) -> list[Alternative]:
        """Every case of the group."""
        return [self.plain, *(case for choice in self.choices for case in choice.cases)]

    def choice_of(self, start: Transfer) -> Choice | None:
        """The choice that ``start`` belongs to."""
        return next((c for c in self.choices if start in c.starts), None)

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
        self._blocks: list[Block] = []
        self._bounds = bounds(largest(module))
        self._visit(module.program.body)
        self._check_queues()
        for group in self._groups:
            if not group.at_once:
                group.shared = self._overlaps(group)
                _queue_up(group)
                _find_choices(self._blocks[group.number], group, self._bounds)
                self._name_joins(module, group)

    def closing(self, loop: For) -> int | None:
        """By its ``id`` the wait, or block, with which each round of ``loop`` ends, so that a core
        goes from there to the next one; None where that does something else."""
        (body,) = loop.regions
        last = body.ops[-1] if body.ops else None
        group = self.of_block.get(id(body))
        if group is not None:
            return id(body) if group.closes(loop) else None
        group = self.of_wait.get(last) if isinstance(last, Wait) else None
        return id(last) if group is not None and group.closes(loop) else None

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
                    self.of_wait[op] = self._group(block, found, _alone(block, op, found))
            for region in op.regions:
                self._visit(region)
        self._clock += 1
        if open_:
            found = list(open_.values())
            self.of_block[id(block)] = self._group(block, found, _alone(block, None, found))

    def _group(self, block: Block, found: list[tuple[Transfer, int]], at_once: bool) -> Group:
        begin = min(clock for _, clock in found)
        group = Group(len(self._groups), [op for op, _ in found], begin, self._clock, at_once)
        self._groups.append(group)
        self._blocks.append(block)
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

    def _name_joins(self, module: Module, group: Group) -> None:
        """Name the joins of a group by their place in it, so that groups which are not open
        together use the same tasks for the same things."""
        leaves: list[Transfer | Choice] = []
        for op in group.starts:
            choice = group.choice_of(op)
            leaf = choice or op
            if op.result not in group.follows and leaf not in leaves:
                leaves.append(leaf)
        group.inputs = len(leaves)
        if not group.shared:
            self._spread(group, group.plain, leaves, RESUME, "joined")
        else:
            top = f"ended_{group.number}"
            group.joins.append(Join(top, None, min(2, len(leaves))))
            self._spread(group, group.plain, leaves, top, f"joined_{group.number}")
        for case in group.cases:
            _name_turns(module, group, case)

    def _spread(
        self,
        group: Group,
        case: Alternative,
        leaves: Sequence[Transfer | Choice],
        task: str,
        path: str,
    ) -> None:
        """Make ``task`` run when all of ``leaves`` have ended."""
        if len(leaves) == 1:
            self._signal(group, case, leaves[0], Signal("activate", task), path)
            return
        half = (len(leaves) + 1) // 2
        self._branch(group, case, leaves[:half], Signal("activate", task), f"{path}_a")
        self._branch(group, case, leaves[half:], Signal("unblock", task), f"{path}_b")

    def _branch(
        self,
        group: Group,
        case: Alternative,
        leaves: Sequence[Transfer | Choice],
        then: Signal,
        path: str,
    ) -> None:
        if len(leaves) == 1:
            self._signal(group, case, leaves[0], then, path)
            return
        group.joins.append(Join(path, then, inner=case is not group.plain))
        self._spread(group, case, leaves, path, path)

    def _signal(
        self, group: Group, case: Alternative, leaf: Transfer | Choice, signal: Signal, path: str
    ) -> None:
        if not isinstance(leaf, Choice):
            case.signals[leaf.result] = signal
            return
        leaf.signal = signal
        for inner in leaf.cases:
            if inner.starts:
                self._branch(group, inner, inner.starts, signal, f"{path}_{signal.verb[0]}")
            else:
                inner.idle = signal


def _name_turns(module: Module, group: Group, case: Alternative) -> None:
    """Name what ends turns by channel and signal: the same for groups with the same joins."""
    for op in group.starts:
        name = channel_out(op)
        channel = module.channel(name) if name is not None else None
        if channel is None or not channel.turns or op.result not in case.signals:
            continue
        if op.result in group.follows or op in group.follows.values():
            _check_rivals(op, op)
        signal = case.signals[op.result]
        number = module.channels.index(channel)
        case.turns[op.result] = f"turn_{number}_{signal.verb}_{signal.task}"


def _find_choices(block: Block, group: Group, known: Scope) -> None:
    """Gather transfers that exclude each other, where they stand side by side."""
    left = [op for op in group.starts if op.result not in group.follows]
    left = [op for op in left if op not in group.follows.values()]
    for number, one in enumerate(left):
        if group.choice_of(one) is not None:
            continue
        found = _excluding(one, left[number + 1 :])
        places = [block.ops.index(op) for op in found]
        side_by_side = places == list(range(places[0], places[0] + len(places)))
        if 1 < len(found) <= _MOST_CHOICES and side_by_side:
            group.choices.append(Choice(found, _cases(found, known)))


_MOST_CHOICES = 4


def _excluding(one: Transfer, others: list[Transfer]) -> list[Transfer]:
    """``one`` and those of ``others`` that exclude it, or each other in a row, in their order."""
    found, left = [one], list(others)
    while more := [op for op in left if any(exclusive(op, known) for known in found)]:
        found += more
        left = [op for op in left if op not in more]
    return [op for op in (one, *others) if op in found]


def bounds(most: Mapping[str, int]) -> Scope:
    """What is known of names that are not negative and at most so large."""
    return Scope(Cond.all(Cond.between(0, Expr.var(n), most[n] + 1) for n in sorted(most)))


def _cases(starts: list[Transfer], known: Scope) -> list[Alternative]:
    """What cores can start of ``starts`` at once, each under the plainest test that tells it from
    the cases behind it, those of fewest transfers first."""
    guards = list(dict.fromkeys(op.when or Cond.true() for op in starts))
    left: list[tuple[bool, ...]] = []
    for holds in product((True, False), repeat=len(guards)):
        if not is_empty(_all(guards, holds), known):
            left.append(holds)
    left.sort(key=sum)
    found: list[Alternative] = []
    while left:
        holds, when = _next_case(guards, left)
        left.remove(holds)
        of = dict(zip(guards, holds, strict=True))
        found.append(Alternative(when, [op for op in starts if of[op.when or Cond.true()]]))
    return found


def _next_case(guards: list[Cond], left: list[tuple[bool, ...]]) -> tuple[tuple[bool, ...], Cond]:
    """A case of ``left`` and a test for it: one guard if it holds in this case alone."""
    if len(left) == 1:
        return left[0], Cond.true()
    for chosen in left:
        for number, guard in enumerate(guards):
            if chosen[number] and sum(holds[number] for holds in left) == 1:
                return chosen, guard
    return left[0], _all(guards, left[0])


def _all(guards: list[Cond], holds: tuple[bool, ...]) -> Cond:
    return Cond.all(g if here else ~g for g, here in zip(guards, holds, strict=True))


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
        group.plain.signals[first.result] = Signal("activate", f"next_{group.number}_{number}")


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

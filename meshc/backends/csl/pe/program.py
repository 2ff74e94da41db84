"""The statements of a phase as the cases of one resume task.

``step()`` runs until it has to wait for a transfer; then it notes in ``pc`` where to go on and
returns, and the last end of what it waits for activates ``resume``. Loops without such waits stay
loops; others become cases. A sweep means nothing to a core, so only its body is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from meshc.analysis.csl.joined_transfers import (
    RESUME,
    Alternative,
    Choice,
    Group,
    Join,
    Signal,
    Transfers,
)
from meshc.analysis.csl.repeats import Run, repeated_runs
from meshc.analysis.csl.request_rounds import rounds_of
from meshc.backends.csl.fabric.channels import Ends
from meshc.backends.csl.fabric.messages import Messages
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.guards import Guards
from meshc.backends.csl.spelling.memory_dsds import Descriptors, builtin
from meshc.backends.csl.spelling.names import of_rounds, plain
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.backends.csl.tree.printed import spelled
from meshc.ir.affine import Cond
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Recv, Relay, Send, Sweep, Transfer, Wait
from meshc.ir.views import View
from meshc.support.diagnostics import fail

_COMBINE = {"store": "fmov", "add": "fadd", "max": "fmax"}


@dataclass
class Case:
    """One case of the switch: a comment and its statements; ``leads`` says that it sets ``pc``, in
    the statement ``turn`` where it waits or ends a round of a loop."""

    comment: str
    body: list[csl.Statement] = field(default_factory=list)
    leads: bool = False
    turn: int = 0


@dataclass
class _Guarded:
    """Statements under one guard, and those of the other cores, gathered to share an ``if``."""

    guard: Cond | None = None
    hint: str = ""
    body: list[csl.Statement] = field(default_factory=list)
    other: list[csl.Statement] = field(default_factory=list)


class Lowering:
    """Writes the program of ``module`` as cases; runs of statements that are the same in several
    places are ``functions``, unless nothing is ``shared``, whose ops are ``alike`` with those that
    were written. The wait with which the rounds of a loop end leads ``direct`` to the next one, or
    is a case of its own."""

    def __init__(
        self,
        module: Module,
        guards: Guards,
        descriptors: Descriptors,
        ends: Ends,
        kernels: Kernels,
        shared: bool = True,
        direct: bool = True,
    ) -> None:
        self.module = module
        self.direct = direct
        self._closing: dict[int, str] = {}
        self.guards = guards
        self.descriptors = descriptors
        self.ends = ends
        self.kernels = kernels
        self.transfers = Transfers(module)
        self.runs = repeated_runs(module, self.transfers) if shared else {}
        self.rounds = rounds_of(module)
        self.functions: list[csl.Statement] = []
        self._written: dict[Run, str] = {}
        self.alike: dict[Op, Op] = {}
        self.messages = Messages(module)
        self.cases = [Case("start")]
        self.loops: list[str] = []
        self.counters: dict[str, str] = {}
        self.shared: list[Group] = []
        self._pending = _Guarded()
        self._into: list[csl.Statement] | None = None
        self._block(module.program.body)
        self._flush()

    # --- where statements go

    @property
    def _body(self) -> list[csl.Statement]:
        return self.cases[-1].body if self._into is None else self._into

    def _put(
        self,
        body: csl.Statements,
        guard: Cond | None = None,
        hint: str = "",
        other: csl.Statements = (),
    ) -> None:
        """Add statements under a guard, ``other`` where it does not hold."""
        if self._pending.guard != guard:
            self._flush()
            self._pending = _Guarded(guard, hint)
        self._pending.body += body
        self._pending.other += other

    def _flush(self) -> None:
        pending, self._pending = self._pending, _Guarded()
        if not pending.body and not pending.other:
            return
        guard = Cond.true() if pending.guard is None else pending.guard
        test = self.guards.test(guard, pending.hint)
        self._body.extend(csl.chosen([(test, pending.body), (csl.TRUE, pending.other)]))

    def _captured(self, write: Callable[[], None]) -> list[csl.Statement]:
        """The statements that ``write`` adds."""
        self._flush()
        outer, self._into = self._into, []
        write()
        self._flush()
        found, self._into = self._into, outer
        return found

    def _next_case(self, comment: str) -> int:
        """Begin a case; the one before leads to it unless it says where it leads."""
        self._flush()
        number = len(self.cases)
        if not self.cases[-1].leads:
            self.cases[-1].body.append(csl.assign("pc", number))
        self.cases.append(Case(comment))
        return number

    # --- statements

    def _block(self, block: Block) -> None:
        left = iter(block.ops)
        for op in left:
            run = self.runs.get(op)
            if run is None:
                self._op(op)
                continue
            self._put([csl.do(self._function(run))])
            for written, here in zip(run.ops, (op, *islice(left, len(run.ops) - 1)), strict=True):
                self.alike |= zip(_with_all_inside(here), _with_all_inside(written), strict=True)
        group = self.transfers.of_block.get(id(block))
        if group is not None:
            self._wait(group, id(block))

    def _function(self, run: Run) -> str:
        """The function that a run of statements becomes."""
        if run not in self._written:
            body = self._captured(lambda: self._ops(run.ops))
            name = self._written[run] = self.guards.names.fresh(_name(run))
            remark = f"In {run.places} places of the program."
            self.functions.append(csl.function(name, [], body, remark=remark))
        return self._written[run]

    def _ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self._op(op)

    def _op(self, op: Op) -> None:
        if isinstance(op, Compute):
            became = csl.Became(op, tuple(self.kernels.statements(op)), said(op))
            self._put([became], op.when, f"{op.kernel}_here")
        elif isinstance(op, (Send, Recv, Relay)):
            self._transfer(op)
        elif isinstance(op, Wait):
            group = self.transfers.of_wait.get(op)
            if group is not None:
                self._wait(group, id(op))
        elif isinstance(op, For):
            self._for(op)
        elif isinstance(op, Sweep):
            self._sweep(op)
        else:
            fail("csl-op", f"the CSL back end does not know {op.NAME}", op.span)

    # --- transfers

    def _transfer(self, op: Transfer) -> None:
        group = self.transfers.of_token[op.result]
        hint = f"{op.channel}_{_VERBS[type(op)]}"
        if group.at_once:
            body: list[csl.Statement] = [self._operation(op)]
            if isinstance(op, Send) and self.module.channel(op.channel).turns:
                body += self._handover(op, self._over(op), [])
            self._put(body, op.when, hint)
            return
        if op in group.follows.values():
            return  # the end of the transfer before it starts this one
        choice = group.choice_of(op)
        if choice is not None:
            if op is choice.starts[0]:
                self._choice(choice)
            return
        start = self._start(op, group.plain)
        alone = group.guard is not None or op.when is None
        last = group.plain.signals[group.last_of(op).result]
        self._put([start], op.when, hint, () if alone else (_effect(last),))

    def _start(self, op: Transfer, case: Alternative) -> csl.Statement:
        """The operation of a transfer, and what its end does."""
        signal = case.signals[op.result]
        if op.result in case.turns:
            signal = Signal("activate", case.turns[op.result])
        return self._operation(op, _options(signal))

    def _choice(self, choice: Choice) -> None:
        """Transfers of which a core starts those of one case."""
        arms: list[tuple[csl.Expression, csl.Statements]] = []
        for number, case in enumerate(choice.cases):
            inner = [self._start(op, case) for op in case.starts]
            inner += [_effect(case.idle)] if case.idle is not None else []
            hint = f"{choice.starts[0].channel}_{number}_here"
            arms.append((self.guards.test(case.when, hint), inner))
        self._put(csl.chosen(arms))

    def _over(self, op: Send, *options: csl.Expression) -> csl.Statement:
        """The operation that ends a turn."""
        return csl.do("@mov32", *self.ends.handover(op.channel, self.guards.test), *options)

    def _handover(
        self, op: Send, over: csl.Statement, otherwise: csl.Statements
    ) -> list[csl.Statement]:
        """What follows a message: ``over`` if it was the last of a turn."""
        each = self.module.channel(op.channel).turns
        if each == 1:
            return [over]
        if op.channel not in self.counters:
            color = self.ends.of[op.channel, "send"].color
            self.counters[op.channel] = self.guards.names.fresh(f"{color}_sent")
        count = self.counters[op.channel]
        last = csl.when(csl.infix(count, "==", each), [csl.assign(count, 0), over], otherwise)
        return [csl.assign(count, 1, "+="), last]

    def _operation(self, op: Transfer, *options: csl.Expression) -> csl.Statement:
        """The vector operation of a transfer."""
        here = self.messages.window(op)
        memory = self.descriptors.memory(here)

        def fabric(name: str, verb: str) -> csl.Expression:
            return self.ends.descriptor(name, verb, here)

        combine = "store" if isinstance(op, Send) else op.combine
        if isinstance(op, Send):
            operands = [fabric(op.channel, "send"), memory]
        else:
            source = fabric(op.channel, "recv")
            to = fabric(op.onward, "send") if isinstance(op, Relay) else memory
            combines = isinstance(op, Relay) or combine != "store"
            operands = [to, source, memory] if combines else [to, source]
        return csl.Became(
            op, (csl.do(builtin(_COMBINE[combine], here.dtype), *operands, *options),)
        )

    def _wait(self, group: Group, where: int) -> None:
        """Return from the task until the transfers of ``group`` have ended; at the wait ``where`` a
        round of a loop may end, which is counted before."""
        if group.at_once:
            return
        self._flush()
        case = self.cases[-1]
        variable = self._closing.get(where)
        if variable:
            case.body += [csl.assign(variable, 1, "+="), csl.Remark(f"once {_names(group)} ended")]
        case.turn = len(case.body)
        case.body.append(csl.assign("pc", len(self.cases)))
        case.leads = True
        leave = self._leave(group)
        guard = Cond.true() if group.guard is None else group.guard
        case.body += csl.chosen([(self.guards.test(guard, "waits"), leave)])
        if variable:
            return
        self._next_case(f"{_names(group)} ended")
        if group.shared:
            self._put([csl.assign(f"ended_{group.number}_now", csl.FALSE)])

    def _leave(self, group: Group) -> list[csl.Statement]:
        resume = csl.do("@unblock", f"{RESUME}_id")
        if group.shared:
            self.shared.append(group)
            flag = csl.Name(f"ended_{group.number}_now")
            wanted = csl.assign(f"ended_{group.number}_wanted", csl.TRUE)
            return [csl.when(csl.Prefix("!", flag), [wanted, resume, csl.Return()])]
        return [*([resume] if group.inputs == 1 else []), csl.Return()]

    # --- loops

    def _for(self, op: For) -> None:
        (body,) = op.regions
        count = expression(op.count, self.guards.spelling)
        variable = self.guards.declare(op.var)
        if self.transfers.suspends_in(body):
            self._suspending_for(op, body, count)
            return
        rounds = [*self._scalars_of_round(op), *self._captured(lambda: self._block(body))]
        captured = variable if csl.Name(variable) in csl.walk(rounds) else "_"
        self._put([csl.Became(op, (csl.loop(captured, count, rounds),))], op.when, "loop_here")

    def _suspending_for(self, op: For, body: Block, count: csl.Expression) -> None:
        variable = self.guards.variables[op.var]
        self.loops.append(variable)
        self._flush()
        self._body.append(csl.Became(op, (csl.assign(variable, 0),)))
        entry = self.cases[-1]
        last_step = op.count.constant - 1 if op.count.is_const else f"{spelled(count)} - 1"
        head = self._next_case(f"for {variable} = 0 .. {last_step}")
        self._body.extend(self._scalars_of_round(op))
        closing = self.transfers.closing(op) if self.direct else None
        if closing is not None:
            self._closing[closing] = variable
        self._block(body)
        self._flush()
        last = self.cases[-1]
        after = self._next_case(f"after the loop over {variable}")
        more = csl.infix(variable, "<", count)
        if closing is None:
            last.turn = len(last.body)
            last.body[-1:] = [csl.assign(variable, 1, "+="), last.body[-1]]
        last.body[last.turn] = csl.assign("pc", csl.either(more, head, after))
        guard = Cond.true() if op.when is None else op.when
        surely = op.count.is_const and op.count.constant > 0
        begins = csl.all_of([self.guards.test(guard, "loop_here"), csl.TRUE if surely else more])
        entry.body[-1] = csl.assign("pc", csl.either(begins, head, after))

    def _scalars_of_round(self, op: For) -> list[csl.Statement]:
        """What a round of ``op`` begins with: its scalars, from those of all rounds."""
        return [
            csl.assign(
                self.guards.spell(name), csl.element(of_rounds(name), self.guards.spell(op.var))
            )
            for name in op.each
        ]

    def _sweep(self, op: Sweep) -> None:
        (body,) = op.regions
        start = self.kernels.rotary.at_round if self._is_work(op) else []
        if op.when is None or op.when.is_true:
            self._block(body)
            return
        if not self.transfers.suspends_in(body):
            inner = self._captured(lambda: self._block(body))
            self._put([*start, *inner], op.when, "sweep_here")
            return
        self._flush()
        entry = self.cases[-1]
        test = self.guards.test(op.when, "sweep_here")
        begin = self._next_case("a request" if self._is_work(op) else "chain")
        self._block(body)
        self.cases[begin].body[:0] = start  # known when all of the body is written
        after = self._next_case(f"after the {'request' if self._is_work(op) else 'chain'}")
        entry.body[-1] = csl.assign("pc", csl.either(test, begin, after))

    def _is_work(self, op: Sweep) -> bool:
        """Whether ``op`` is what a round does for a request that is there."""
        return self.rounds is not None and op is self.rounds.work

    # --- tasks

    def tasks(self) -> dict[str, list[csl.Statement]]:
        """What each task besides ``resume`` does, by its name."""
        found: dict[str, list[csl.Statement]] = {}
        for group in self.transfers.of_token.values():
            for join in group.joins:
                found.setdefault(join.task, self._join(join, group))
            for token, op in group.follows.items():
                options = _options(group.plain.signals[op.result])
                found[group.plain.signals[token].task] = [self._operation(op, options)]
            for case in group.cases:
                for op in group.starts:
                    if isinstance(op, Send) and op.result in case.turns:
                        turn = self._turn(op, case.signals[op.result])
                        found[case.turns[op.result]] = turn
        return found

    def _turn(self, op: Send, signal: Signal) -> list[csl.Statement]:
        """What the end of a send in turn does."""
        return self._handover(op, self._over(op, _options(signal)), [_effect(signal)])

    def _join(self, join: Join, group: Group) -> list[csl.Statement]:
        """What a join does when all that it joins has ended."""
        block = [csl.do("@block", f"{join.task}_id")] if join.inputs > 1 else []
        if join.then is not None:
            return [*block, _effect(join.then)]
        wanted = csl.Name(f"ended_{group.number}_wanted")
        resume = [csl.assign(wanted, csl.FALSE), csl.do("@activate", f"{RESUME}_id")]
        return [*block, csl.assign(f"ended_{group.number}_now", csl.TRUE), csl.when(wanted, resume)]

    def blocked(self) -> list[str]:
        """Tasks that wait for their second input from the start."""
        joins = (join for group in self.transfers.of_token.values() for join in group.joins)
        return [RESUME, *dict.fromkeys(join.task for join in joins if join.inputs > 1)]


def _with_all_inside(op: Op) -> Iterator[Op]:
    yield op
    for region in op.regions:
        yield from region.walk()


def _name(run: Run) -> str:
    """What the statements of a run do, and to what."""
    words = [op.kernel for op in run.ops if isinstance(op, Compute)]
    inner = [each for op in run.ops for each in (op, *(o for r in op.regions for o in r.ops))]
    if any(isinstance(op, Recv) and op.combine != "store" for op in inner):
        words.append("reduce")
    elif any(isinstance(op, (Send, Recv, Relay)) for op in inner):
        words.append("send")
    views = [view for op in inner for view in op.views()]
    return "_".join([*dict.fromkeys(words), views[0].buffer.name])


_VERBS = {Send: "sends", Recv: "receives", Relay: "relays"}


_MOST_SAID = 80


def said(op: Compute) -> str:
    """The op that a piece of code came from; without indices where these are long."""
    views = [v for v in op.operands if isinstance(v, View)]
    text = plain(f"{op.kernel} {', '.join(map(str, views))}")
    if len(text) <= _MOST_SAID:
        return text
    return plain(f"{op.kernel} {', '.join(str(v.buffer) for v in views)}")[:_MOST_SAID]


def _options(signal: Signal) -> csl.Expression:
    action = {signal.verb: csl.Name(f"{signal.task}_id")}
    return csl.record(**{"async": csl.TRUE}, **action)


def _effect(signal: Signal) -> csl.Statement:
    return csl.do(f"@{signal.verb}", f"{signal.task}_id")


def _names(group: Group) -> str:
    """What a wait is for, in a comment."""
    names = dict.fromkeys(f"{_VERBS[type(op)][:-1]} on {plain(op.channel)}" for op in group.starts)
    return ", ".join(names)

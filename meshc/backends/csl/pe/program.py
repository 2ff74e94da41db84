"""The statements of a phase as the cases of one resume task.

``step()`` runs until it has to wait for a transfer; then it notes in ``pc`` where to go on and
returns, and the last end of what it waits for activates ``resume``. Loops without such waits stay
loops; others become cases. A sweep means nothing to a core, so only its body is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshc.analysis.csl.repeats import Run, repeated_runs
from meshc.analysis.csl.rounds import rounds_of
from meshc.analysis.csl.transfers import RESUME, Alternative, Choice, Group, Join, Signal, Transfers
from meshc.backends.csl.fabric.channels import Ends
from meshc.backends.csl.fabric.messages import Messages
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.spelling.descriptors import Descriptors, builtin
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.guards import Guards
from meshc.backends.csl.spelling.names import of_rounds, plain
from meshc.ir.affine import Cond
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, For, Recv, Relay, Send, Sweep, Transfer, Wait
from meshc.ir.views import View
from meshc.support.diagnostics import fail

_PAD = "    "
_COMBINE = {"store": "fmov", "add": "fadd", "max": "fmax"}


@dataclass
class Case:
    """One case of the switch: a comment and its lines; ``leads`` says that it sets ``pc``, in the
    line ``turn`` where it waits or ends a round of a loop."""

    comment: str
    lines: list[str] = field(default_factory=list)
    leads: bool = False
    turn: int = 0


@dataclass(frozen=True)
class Task:
    """A task besides ``resume``; ``blocked`` says that it waits for a second input."""

    name: str
    body: list[str]
    blocked: bool = False


@dataclass
class _Guarded:
    """Lines under one guard, and those of the other cores, gathered to share an ``if``."""

    guard: Cond | None = None
    hint: str = ""
    lines: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


class Lowering:
    """Writes the program of ``module`` as cases; runs of statements that are the same in several
    places are ``functions``, unless nothing is ``shared``. The wait with which the rounds of a loop
    end leads ``direct`` to the next one, or is a case of its own."""

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
        self.functions: list[str] = []
        self._written: dict[Run, str] = {}
        self.messages = Messages(module)
        self.cases = [Case("start")]
        self.loops: list[str] = []
        self.counters: dict[str, str] = {}
        self.shared: list[Group] = []
        self._pending = _Guarded()
        self._into: list[str] | None = None
        self._block(module.program.body)
        self._flush()

    # --- where lines go

    @property
    def _lines(self) -> list[str]:
        return self.cases[-1].lines if self._into is None else self._into

    def _put(
        self,
        lines: list[str],
        guard: Cond | None = None,
        hint: str = "",
        other: tuple[str, ...] = (),
    ) -> None:
        """Add lines under a guard, ``other`` where it does not hold."""
        if self._pending.guard != guard:
            self._flush()
            self._pending = _Guarded(guard, hint)
        self._pending.lines += lines
        self._pending.other += other

    def _flush(self) -> None:
        pending, self._pending = self._pending, _Guarded()
        if not pending.lines and not pending.other:
            return
        if pending.guard is None or pending.guard.is_true:
            self._lines.extend(pending.lines)
            return
        test = self.guards.text(pending.guard, pending.hint)
        self._lines.append(f"if ({test}) {{")
        self._lines.extend(_PAD + line for line in pending.lines)
        if pending.other:
            self._lines.append("} else {")
            self._lines.extend(_PAD + line for line in pending.other)
        self._lines.append("}")

    def _captured(self, write: Callable[[], None]) -> list[str]:
        """The lines that ``write`` adds."""
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
            self.cases[-1].lines.append(f"pc = {number};")
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
            self._put([f"{self._function(run)}();"])
            for _ in run.ops[1:]:
                next(left)
        group = self.transfers.of_block.get(id(block))
        if group is not None:
            self._wait(group, id(block))

    def _function(self, run: Run) -> str:
        """The function that a run of statements becomes."""
        if run not in self._written:
            lines = self._captured(lambda: self._ops(run.ops))
            name = self._written[run] = self.guards.names.fresh(_name(run))
            lines = [f"fn {name}() void {{", *(_PAD + line for line in lines), "}"]
            self.functions += ["", f"// In {run.places} places of the program.", *lines]
        return self._written[run]

    def _ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self._op(op)

    def _op(self, op: Op) -> None:
        if isinstance(op, Compute):
            first, *rest = self.kernels.lines(op)
            lines = [f"{first} // {said(op)}", *rest]
            self._put(lines, op.when, f"{op.kernel}_here")
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
            lines = [f"{self._operation(op)});"]
            if isinstance(op, Send) and self.module.channel(op.channel).turns:
                lines += self._handover(op, f"@mov32({self._wavelets(op)});", [])
            self._put(lines, op.when, hint)
            return
        if op in group.follows.values():
            return  # the end of the transfer before it starts this one
        choice = group.choice_of(op)
        if choice is not None:
            if op is choice.starts[0]:
                self._choice(choice)
            return
        line = self._start(op, group.plain)
        alone = group.guard is not None or op.when is None
        last = group.plain.signals[group.last_of(op).result]
        self._put([line], op.when, hint, () if alone else (_effect(last),))

    def _start(self, op: Transfer, case: Alternative) -> str:
        """The operation of a transfer, and what its end does."""
        signal = case.signals[op.result]
        if op.result in case.turns:
            signal = Signal("activate", case.turns[op.result])
        return f"{self._operation(op)}, {_options(signal)});"

    def _choice(self, choice: Choice) -> None:
        """Transfers of which a core starts those of one case."""
        lines: list[str] = []
        for number, case in enumerate(choice.cases):
            inner = [self._start(op, case) for op in case.starts]
            inner += [_effect(case.idle)] if case.idle is not None else []
            if case.when.is_true:
                head = "} else {" if number else ""
            else:
                test = self.guards.text(case.when, f"{choice.starts[0].channel}_{number}_here")
                head = f"{'} else ' if number else ''}if ({test}) {{"
            lines += [head, *(_PAD + line for line in inner)] if head else inner
        self._put([*lines, "}"] if len(choice.cases) > 1 else lines)

    def _wavelets(self, op: Send) -> str:
        """The operands of the operation that ends a turn."""
        return self.ends.handover(op.channel, self.guards.text)

    def _handover(self, op: Send, over: str, otherwise: list[str]) -> list[str]:
        """What follows a message: ``over`` if it was the last of a turn."""
        each = self.module.channel(op.channel).turns
        if each == 1:
            return [over]
        if op.channel not in self.counters:
            color = self.ends.of[op.channel, "send"].color
            self.counters[op.channel] = self.guards.names.fresh(f"{color}_sent")
        count = self.counters[op.channel]
        lines = [f"{count} += 1;", f"if ({count} == {each}) {{", f"{_PAD}{count} = 0;"]
        lines += [f"{_PAD}{over}"]
        if otherwise:
            lines += ["} else {", *(_PAD + line for line in otherwise)]
        return [*lines, "}"]

    def _operation(self, op: Transfer) -> str:
        """The vector operation of a transfer, its last parenthesis left open."""
        here = self.messages.window(op)
        memory = self.descriptors.memory(here)

        def fabric(name: str, verb: str) -> str:
            return self.ends.descriptor(name, verb, here)

        if isinstance(op, Send):
            return (
                f"{builtin(_COMBINE['store'], here.dtype)}({fabric(op.channel, 'send')}, {memory}"
            )
        source = fabric(op.channel, "recv")
        combined = builtin(_COMBINE[op.combine], here.dtype)
        if isinstance(op, Relay):
            return f"{combined}({fabric(op.onward, 'send')}, {source}, {memory}"
        if op.combine == "store":
            return f"{combined}({memory}, {source}"
        return f"{combined}({memory}, {source}, {memory}"

    def _wait(self, group: Group, where: int) -> None:
        """Return from the task until the transfers of ``group`` have ended; at the wait ``where`` a
        round of a loop may end, which is counted before."""
        if group.at_once:
            return
        self._flush()
        case = self.cases[-1]
        variable = self._closing.get(where)
        ended = f"// once {_names(group)} ended"
        case.lines += [f"{variable} += 1;", ended, ""] if variable else [f"pc = {len(self.cases)};"]
        case.turn = len(case.lines) - 1
        case.leads = True
        leave = self._leave(group)
        guard = group.guard
        if guard is None or guard.is_true:
            case.lines += leave
        else:
            test = self.guards.text(guard, "waits")
            case.lines += [f"if ({test}) {{", *(_PAD + line for line in leave), "}"]
        if variable:
            return
        self._next_case(f"{_names(group)} ended")
        if group.shared:
            self._put([f"ended_{group.number}_now = false;"])

    def _leave(self, group: Group) -> list[str]:
        if group.shared:
            self.shared.append(group)
            flag = f"ended_{group.number}_now"
            wanted = [f"ended_{group.number}_wanted = true;", f"@unblock({RESUME}_id);", "return;"]
            return [f"if (!{flag}) {{", *(_PAD + line for line in wanted), "}"]
        single = [f"@unblock({RESUME}_id);"] if group.inputs == 1 else []
        return [*single, "return;"]

    # --- loops

    def _for(self, op: For) -> None:
        (body,) = op.regions
        count = expression(op.count, self.guards.spelling)
        if not self.transfers.suspends_in(body):
            variable = self.guards.declare(op.var)
            own = self._scalars_of_round(op)
            lines = [*own, *self._captured(lambda: self._block(body))]
            captured = variable if op.var in self.guards.spelled else "_"
            head = f"for (@range(i16, {count})) |{captured}| {{"
            self._put([head, *(_PAD + line for line in lines), "}"], op.when, "loop_here")
            return
        self._suspending_for(op, body, count)

    def _suspending_for(self, op: For, body: Block, count: str) -> None:
        variable = self.guards.declare(op.var)
        self.loops.append(variable)
        self._flush()
        self._lines.append(f"{variable} = 0;")
        entry = self.cases[-1]
        last_step = op.count.constant - 1 if op.count.is_const else f"{count} - 1"
        head = self._next_case(f"for {variable} = 0 .. {last_step}")
        self._lines.extend(self._scalars_of_round(op))
        closing = self.transfers.closing(op) if self.direct else None
        if closing is not None:
            self._closing[closing] = variable
        self._block(body)
        self._flush()
        last = self.cases[-1]
        after = self._next_case(f"after the loop over {variable}")
        if closing is None:
            last.lines[-1:] = [f"{variable} += 1;", ""]
            last.turn = len(last.lines) - 1
        last.lines[last.turn] = f"pc = if ({variable} < {count}) {head} else {after};"
        tests = [] if op.count.is_const and op.count.constant > 0 else [f"{variable} < {count}"]
        if op.when is not None and not op.when.is_true:
            tests.insert(0, self.guards.text(op.when, "loop_here"))
        if tests:
            entry.lines[-1] = f"pc = if ({' and '.join(tests)}) {head} else {after};"

    def _scalars_of_round(self, op: For) -> list[str]:
        """What a round of ``op`` begins with: its scalars, from those of all rounds."""
        round_ = self.guards.spell(op.var) if op.each else ""
        return [f"{self.guards.spell(name)} = {of_rounds(name)}[{round_}];" for name in op.each]

    def _sweep(self, op: Sweep) -> None:
        (body,) = op.regions
        start = self.kernels.rotary.at_round if self._is_work(op) else []
        if op.when is None or op.when.is_true:
            self._block(body)
            return
        if not self.transfers.suspends_in(body):
            lines = self._captured(lambda: self._block(body))
            self._put([*start, *lines], op.when, "sweep_here")
            return
        self._flush()
        entry = self.cases[-1]
        test = self.guards.text(op.when, "sweep_here")
        begin = self._next_case("a request" if self._is_work(op) else "chain")
        self._block(body)
        self.cases[begin].lines[:0] = start  # known when all of the body is written
        after = self._next_case(f"after the {'request' if self._is_work(op) else 'chain'}")
        entry.lines[-1] = f"pc = if ({test}) {begin} else {after};"

    def _is_work(self, op: Sweep) -> bool:
        """Whether ``op`` is what a round does for a request that is there."""
        return self.rounds is not None and op is self.rounds.work

    # --- tasks

    def tasks(self) -> list[Task]:
        """Each task besides ``resume``."""
        found: dict[str, Task] = {}
        for group in self.transfers.of_token.values():
            for join in group.joins:
                found.setdefault(join.task, self._join(join, group))
            for token, op in group.follows.items():
                options = _options(group.plain.signals[op.result])
                task = group.plain.signals[token].task
                found[task] = Task(task, [f"{self._operation(op)}, {options});"])
            for case in group.cases:
                for op in group.starts:
                    if isinstance(op, Send) and op.result in case.turns:
                        task = case.turns[op.result]
                        found[task] = Task(task, self._turn(op, case.signals[op.result]))
        return list(found.values())

    def _turn(self, op: Send, signal: Signal) -> list[str]:
        """The task at the end of a send in turn."""
        over = f"@mov32({self._wavelets(op)}, {_options(signal)});"
        return self._handover(op, over, [_effect(signal)])

    def _join(self, join: Join, group: Group) -> Task:
        blocked = join.inputs > 1
        block = [f"@block({join.task}_id);"] if blocked else []
        return Task(join.task, [*block, *self._ended(join, group)], blocked)

    def _ended(self, join: Join, group: Group) -> list[str]:
        """What a join does when all that it joins has ended."""
        if join.then is not None:
            return [_effect(join.then)]
        wanted = f"ended_{group.number}_wanted"
        inner = [f"{wanted} = false;", f"@activate({RESUME}_id);"]
        return [
            f"ended_{group.number}_now = true;",
            f"if ({wanted}) {{",
            *(_PAD + line for line in inner),
            "}",
        ]

    def blocked(self) -> list[str]:
        """Tasks that wait for their second input from the start."""
        return [RESUME, *(task.name for task in self.tasks() if task.blocked)]


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


def _options(signal: Signal) -> str:
    return f".{{ .async = true, .{signal.verb} = {signal.task}_id }}"


def _effect(signal: Signal) -> str:
    return f"@{signal.verb}({signal.task}_id);"


def _names(group: Group) -> str:
    """What a wait is for, in a comment."""
    names = dict.fromkeys(f"{_VERBS[type(op)][:-1]} on {plain(op.channel)}" for op in group.starts)
    return ", ".join(names)

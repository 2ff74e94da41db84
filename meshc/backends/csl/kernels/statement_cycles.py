"""Predicted cycles of statements of CSL, read off the tree that is emitted.

Scalar code takes what ``docs/sim.md`` lists under Time: a cycle for each operation and load, more
for divisions, choices, calls and the library's functions; what was worked out before in straight
code is known. An operation on vectors takes its set-up and then its steps, in which transfers of
the core stand still. Of what only the run knows the tree says how much counts: the passes of a
loop, the elements of a descriptor, how often the first arm of a choice is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from meshc.analysis.csl.instruction_costs import (
    BACK,
    BEGIN_OF_LOOP,
    BEGIN_OF_LOOP_WRITTEN_OUT,
    BRANCH,
    CALL,
    CALLED,
    CONSTANT,
    DESCRIPTOR,
    DIVISION,
    DRAINED,
    FUNCTION,
    GRID,
    LENGTH,
    MAPPED,
    NUMBER,
    OFFSET,
    OPERATION,
    PASS,
    REAL_DIVISION,
    REBASED,
    TO_INTEGER,
    UNROLLED,
    WRITTEN,
    Costs,
    operation_steps,
)
from meshc.analysis.csl.strided_windows import Dim, Window, has_one_dim, own
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Expr

_OF_A_CALL = 2
"""Operations of a call and its result that make a loop longer to write out and take no cycles."""
_MOVED, _RESIZED = "@increment_dsd_offset", "@set_dsd_length"
_ROW = "own.row_of_a_register"
"""How often an operation has moved a register on."""
_LONG = 12
"""Statements of a function that the vendor's compiler does not write in the place of a call."""


@dataclass
class _Read:
    """What was read so far of some code: its ``cycles``, the ``steps`` among them, and how many
    ``operations`` of scalar code there are. ``local`` names and ``known`` expressions need nothing,
    ``ready`` says when registers that were written may be named, ``ended`` when the last operation
    had its last step, ``stays`` whether there is a call or a loop that is not written out,
    ``windows`` has descriptors by the names that the code gives them, of which some are ``made``
    when the program runs, and ``counters`` are those of loops that are written out."""

    local: set[str]
    windows: dict[str, Window] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    known: set[csl.Expression] = field(default_factory=set)
    counters: frozenset[str] = frozenset()
    ready: dict[str, float] = field(default_factory=dict)
    cycles: float = 0
    steps: float = 0
    operations: float = 0
    ended: float = 0
    stays: bool = False

    def spend(self, cycles: float) -> None:
        """Scalar code."""
        self.cycles += cycles
        self.operations += cycles

    def inside(self, local: Iterable[str] = (), counters: Iterable[str] = ()) -> _Read:
        """What is to be read of code inside of this, where nothing is known yet."""
        found = _Read({*self.local, *local}, {**self.windows}, {*self.made})
        found.counters = self.counters | {*counters}
        found.ready = dict.fromkeys(self.ready, 0.0)
        return found

    def take(self, other: _Read, times: float = 1) -> None:
        """So many ``times`` what was read inside."""
        self.cycles += times * other.cycles
        self.steps += times * other.steps
        self.operations += times * other.operations
        self.stays |= other.stays


class StatementCycles:
    """Reads statements that name ``functions``, descriptors, whose ``windows`` are known, and
    registers, of which some are ``held``: they have a descriptor from the start on. ``numbers`` are
    constants by name, and ``starts`` says where addresses lie in their buffers."""

    def __init__(
        self,
        costs: Costs,
        windows: Mapping[csl.Expression, Window],
        functions: Mapping[str, csl.Function],
        held: Mapping[str, csl.Expression],
        numbers: Mapping[str, int],
        starts: Mapping[csl.Expression, Expr],
    ) -> None:
        self._costs, self._windows = costs, windows
        self._functions, self._held = functions, held
        self._numbers, self._starts = numbers, starts
        self._called: dict[str, _Read] = {}

    def of(self, body: csl.Statements, local: Collection[str] = ()) -> tuple[int, int]:
        """Cycles of statements, and the vector steps among them; ``local`` names need no load."""
        found = _Read({*local})
        self._body(body, found)
        return round(found.cycles), round(found.steps)

    # --- statements

    def _body(self, body: csl.Statements, read: _Read) -> None:
        for statement in body:
            read.operations += 1
            self._statement(statement, read)

    def _statement(self, statement: csl.Statement, read: _Read) -> None:
        match statement:
            case csl.Do(call):
                self._do(call, read)
            case csl.Declare(_, name, value) if value is not None:
                self._declare(name, value, read)
            case csl.Assign(target, value, operator):
                self._assign(target, value, operator, read)
            case csl.Return(value) if value is not None:
                self._value(value, read)
            case csl.If(arms, _, share):
                self._if(arms, share, read)
            case csl.For(variable, numbers, body, most):
                self._for(variable, numbers, body, most, read)
            case csl.While(test, body, passes):
                inside = read.inside()
                self._test(test, inside)
                self._body(body, inside)
                inside.spend(BACK)
                read.take(inside, passes)
                read.stays = True
                self._test(test, read)
            case csl.Scope(body) | csl.Became(_, body):
                self._body(body, read)

    def _declare(self, name: str, value: csl.Expression, read: _Read) -> None:
        window = self._window(value, read)
        if window is None:
            self._value(value, read)
        else:
            self._made(value, read)
            read.windows[name] = window
            read.made |= {name} if isinstance(value, csl.Call) else set()
        read.local.add(name)
        self._forget(name, read)

    def _assign(
        self, target: csl.Expression, value: csl.Expression, operator: str, read: _Read
    ) -> None:
        if operator != "=":
            self._value(target, read)
            read.spend(1)
        self._value(value, read)
        name = target.array if isinstance(target, csl.Element) else getattr(target, "text", "")
        at = self._placed(target, read)
        if name not in read.local:
            read.spend(1)
        self._forget(name, read)
        if isinstance(target, csl.Element) and not at:
            read.known.add(target)

    def _placed(self, target: csl.Expression, read: _Read) -> int:
        """Work out where an element lies; the cycles beside those of its index."""
        if not isinstance(target, csl.Element) or isinstance(target.index, csl.Literal):
            return 0
        self._value(target.index, read)
        found = int(not _names(target.index) <= read.counters)
        read.spend(found)
        return found

    def _if(
        self,
        arms: tuple[tuple[csl.Expression | None, csl.Body], ...],
        share: float,
        read: _Read,
    ) -> None:
        """The arm that takes the most, or the first one as often as is said."""
        found = []
        for test, body in arms:
            if test is not None:
                self._test(test, read)
            inside = read.inside()
            inside.known = {*read.known}
            self._body(body, inside)
            found.append(inside)
        taken = max(found, key=lambda arm: arm.cycles)
        operations = read.operations + sum(arm.operations for arm in found)
        read.take(taken, share)
        read.operations = operations
        read.known &= taken.known

    def _test(self, test: csl.Expression, read: _Read) -> None:
        self._value(test, read)
        read.spend(BRANCH)

    def _for(
        self,
        variable: str,
        numbers: tuple[csl.Expression, ...],
        body: csl.Body,
        most: int,
        read: _Read,
    ) -> None:
        """A loop is written out where its passes are known and few operations in all."""
        for number in numbers:
            self._value(number, read)
        known = len(numbers) == 1 and isinstance(numbers[0], csl.Literal)
        passes = int(numbers[0].text) if known else most  # type: ignore[attr-defined]
        size = read.inside({variable})
        for statement in body:
            size.known.clear()
            self._body([statement], size)
        out = known and not size.stays and size.operations * passes <= UNROLLED
        inside = read.inside({variable}, {variable} if out else ())
        inside.spend(0 if out else PASS)
        self._body(body, inside)
        read.spend(BEGIN_OF_LOOP_WRITTEN_OUT if out else BEGIN_OF_LOOP)
        read.take(inside, passes)
        read.stays |= not out
        read.known.clear()

    # --- calls

    def _do(self, call: csl.Call, read: _Read) -> None:
        if call.function in self._functions:
            self._call(call, read)
        elif call.function == "@map":
            self._map(call, read)
        elif call.function == "@load_to_dsr":
            self._load(call, read)
        elif call.function == "@set_dsr_base_addr":
            self._rebase(call, read)
        else:
            self._operation(call, read)

    def _load(self, call: csl.Call, read: _Read) -> None:
        """A register loaded with a descriptor, or with one that moves on behind each operation."""
        register, descriptor, *moving = call.arguments
        window = self._window(descriptor, read)
        assert window is not None
        if moving:
            window = window.moved(Expr.var(_ROW) * (window.size * window.dims[-1].stride))
        made = isinstance(descriptor, csl.Call) or _text(descriptor) in read.made
        self._made(descriptor, read)
        read.spend(self._costs.load if made else CONSTANT)
        read.windows[_text(register)] = window
        read.ready[_text(register)] = read.cycles + WRITTEN

    def _rebase(self, call: csl.Call, read: _Read) -> None:
        """A register that gets another address, from which it moves on as before."""
        register, place = call.arguments
        read.spend(REBASED)
        read.ready[_text(register)] = max(read.cycles, read.ended + DRAINED) + WRITTEN
        window = read.windows[_text(register)]
        moving = window.start - window.start.substitute({_ROW: 0})
        read.windows[_text(register)] = window.moved(self._starts[place] + moving - window.start)

    def _call(self, call: csl.Call, read: _Read) -> None:
        """A call, or what stands in its place."""
        for argument in call.arguments:
            self._value(argument, read)
        function = self._functions[call.function]
        if call.function not in self._called:
            names = {parameter.partition(":")[0] for parameter in function.parameters}
            inside = self._called[call.function] = _Read(names)
            self._body(function.body, inside)
        read.take(self._called[call.function])
        read.operations += _OF_A_CALL
        if _stays(function):
            read.spend(CALLED)
            read.stays = True
        read.known.clear()

    def _map(self, call: csl.Call, read: _Read) -> None:
        """A function for each element of its operands."""
        name, *operands = call.arguments
        windows = [w for o in operands if (w := self._window(o, read)) is not None]
        for operand in operands:
            self._made(operand, read)
        function = self._functions[_text(name)]
        inside = read.inside(parameter.partition(":")[0] for parameter in function.parameters)
        inside.spend(MAPPED)
        self._body(function.body, inside)
        named = {node.text for node in csl.walk(function.body) if isinstance(node, csl.Name)}
        waits = [ready for register, ready in read.ready.items() if register in named]
        read.cycles = max([read.cycles, *(ready - CALL + OPERATION for ready in waits)])
        read.take(inside, max(window.size for window in windows))
        read.ended, read.stays = read.cycles, True

    def _operation(self, call: csl.Call, read: _Read) -> None:
        """An operation on vectors."""
        windows = [self._window(each, read) for each in call.arguments]
        self._set_up(call.arguments, read)
        named = (read.ready.get(_text(each), 0.0) for each in call.arguments)
        read.cycles = max(read.cycles, *named)
        to, *sources = (one for one in windows if one is not None)
        steps = operation_steps(self._costs, call.function, to, sources)
        read.cycles += steps
        read.steps += steps
        read.ended = read.cycles
        read.known = {known for known in read.known if not _reads_memory(known)}

    def _set_up(self, operands: Iterable[csl.Expression], read: _Read) -> None:
        """An operation before its first step: its operands are brought to registers."""
        read.spend(OPERATION)
        for each in operands:
            if _text(each) in read.ready or _text(each) in self._held:
                continue
            window = self._window(each, read)
            if window is not None:
                self._made(each, read)
                read.spend(DESCRIPTOR if has_one_dim(window) else GRID)
            elif isinstance(each, csl.Prefix) and each.operator == "&":
                place = each.operand
                if isinstance(place, csl.Element) and not isinstance(place.index, csl.Literal):
                    self._placed(place, read)
                    read.spend(OFFSET)
                read.spend(DESCRIPTOR)
            else:
                self._value(each, read)
                read.spend(NUMBER)

    # --- descriptors

    def _window(self, operand: csl.Expression, read: _Read) -> Window | None:
        """What a descriptor walks through; None for what is none."""
        if isinstance(operand, csl.Name) and operand.text in read.windows:
            return read.windows[operand.text]
        operand = self._held.get(_text(operand), operand)
        if operand in self._windows:
            return self._windows[operand]
        if not isinstance(operand, csl.Call) or operand.function not in (_MOVED, _RESIZED):
            return None
        inner = self._window(operand.arguments[0], read)
        if inner is None or operand.function == _MOVED:
            return inner and inner.moved(own("moved"))
        return inner.inner([Dim(operand.most, inner.dims[-1].stride)])

    def _made(self, operand: csl.Expression, read: _Read) -> None:
        """What moving a descriptor or setting its length takes."""
        if not isinstance(operand, csl.Call):
            return
        descriptor, by, *_ = operand.arguments
        self._made(descriptor, read)
        self._value(by, read)
        read.spend(OFFSET if operand.function == _MOVED else LENGTH)

    # --- expressions

    def _value(self, what: csl.Expression, read: _Read) -> None:
        """Work a value out, unless it is known."""
        what = self._plain(what)
        if isinstance(what, csl.Literal) or what in read.known:
            return
        names = {node.text for node in what.walk() if isinstance(node, csl.Name)}
        if names and names <= read.counters and not _reads_memory(what):
            return
        match what:
            case csl.Name(text):
                if text in read.local:
                    return
                read.spend(1)
            case csl.Infix(left, operator, right):
                self._value(left, read)
                self._value(right, read)
                read.spend(_operator(operator, what))
            case csl.Prefix(operator, operand):
                if operator == "&":
                    return
                self._value(operand, read)
                read.spend(1)
            case csl.Element(_, index):
                self._value(index, read)
                read.spend(1)
            case csl.Either(test, then, otherwise):
                self._test(test, read)
                self._value(then, read)
                self._value(otherwise, read)
            case csl.Call():
                self._called_value(what, read)
        read.known.add(what)

    def _plain(self, what: csl.Expression) -> csl.Expression:
        """The number that a constant is; also in an operation on it."""
        if isinstance(what, csl.Infix):
            return csl.Infix(self._plain(what.left), what.operator, self._plain(what.right))
        number = self._numbers.get(_text(what))
        return what if number is None else csl.as_expression(number)

    def _called_value(self, call: csl.Call, read: _Read) -> None:
        if call.function in self._functions:
            self._call(call, read)
            return
        for argument in call.arguments:
            if not isinstance(argument, csl.Name) or argument.text not in _TYPES:
                self._value(argument, read)
        if call.function == "@as":
            kind, value = call.arguments
            narrow = _text(kind) in ("i16", "u16")
            if narrow and _is_real(value):
                read.spend(TO_INTEGER)
            elif _text(kind) in _REALS:
                read.spend(1)
        elif call.function in FUNCTION:
            read.spend(FUNCTION[call.function])

    def _forget(self, name: str, read: _Read) -> None:
        """What was written is not known any more."""
        read.known = {each for each in read.known if name not in _names(each)}


_REALS = ("f32", "f16", "bf16")
_TYPES = (*_REALS, "i16", "u16", "i32", "u32")


def _stays(function: csl.Function) -> bool:
    """Whether a function is called, and not written in the place of the call."""
    found = [node for node in csl.walk(function.body) if isinstance(node, csl.Statement)]
    loops = any(isinstance(node, (csl.For, csl.While)) for node in found)
    return loops or len(found) > _LONG


def _text(operand: csl.Expression) -> str:
    return operand.text if isinstance(operand, csl.Name) else ""


def _names(what: csl.Expression) -> set[str]:
    return {
        node.text if isinstance(node, csl.Name) else node.array
        for node in what.walk()
        if isinstance(node, (csl.Name, csl.Element))
    }


def _reads_memory(what: csl.Expression) -> bool:
    return any(isinstance(node, (csl.Element, csl.Call)) for node in what.walk())


def _operator(operator: str, what: csl.Infix) -> float:
    if operator == "/" and _is_real(what):
        return REAL_DIVISION
    if operator in "/%" and not isinstance(what.right, csl.Literal):
        return DIVISION
    return 1


def _is_real(what: csl.Expression) -> bool:
    """Whether an expression is one of floats."""
    for node in what.walk():
        if isinstance(node, csl.Literal) and any(sign in node.text for sign in ".e"):
            return True
        if isinstance(node, csl.Call) and (
            node.function.startswith("math.")
            or any(_text(each) in _REALS for each in node.arguments)
        ):
            return True
    return False

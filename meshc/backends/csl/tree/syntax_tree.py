"""A program of CSL as a tree: what has a value, what is done, and what a file declares.

Nodes are equal where they say the same, so that a function with the same text is written once; who
asks what a program reads, calls or does walks through them. ``printed.py`` spells them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshc.ir.core import Op

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class Node:
    """Any part of a program."""

    def walk(self) -> Iterator[Node]:
        """This node and all that are in it, in the order of the text."""
        return walk([self])


def walk(parts: Iterable[object]) -> Iterator[Node]:
    """All nodes in ``parts``, in the order of the text."""
    left = [*parts][::-1]
    while left:
        part = left.pop()
        if isinstance(part, Node):
            yield part
            left.extend(reversed(vars(part).values()))
        elif isinstance(part, (tuple, list)):
            left.extend(reversed(part))


# --- what has a value


def _infix(operator: str, reflected: bool = False) -> Callable[[Expression, Operand], Infix]:
    """What ``operator`` is between an expression and an operand."""

    def combined(self: Expression, other: Operand) -> Infix:
        return infix(other, operator, self) if reflected else infix(self, operator, other)

    return combined


@dataclass(frozen=True)
class Expression(Node):
    """What has a value. Names and numbers may stand for the expressions that they are."""

    __add__, __radd__ = _infix("+"), _infix("+", reflected=True)
    __sub__, __rsub__ = _infix("-"), _infix("-", reflected=True)
    __mul__, __rmul__ = _infix("*"), _infix("*", reflected=True)
    __truediv__, __rtruediv__ = _infix("/"), _infix("/", reflected=True)
    __mod__ = _infix("%")

    def __neg__(self) -> Prefix:
        return Prefix("-", self)


@dataclass(frozen=True)
class Name(Expression):
    """A variable, a constant, a function, a direction or a type that has a name."""

    text: str

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.text), f"{self.text!r} is no name of CSL"


@dataclass(frozen=True)
class Literal(Expression):
    """A number, a text or a type as CSL spells it."""

    text: str


TRUE, FALSE = Literal("true"), Literal("false")


@dataclass(frozen=True)
class Infix(Expression):
    """``left operator right``."""

    left: Expression
    operator: str
    right: Expression


@dataclass(frozen=True)
class Prefix(Expression):
    """``-operand``, ``!operand`` or the address ``&operand``."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Call(Expression):
    """A call of a function or of a builtin, whose name begins with ``@``; of a descriptor that gets
    a length when the program runs ``most`` elements count."""

    function: str
    arguments: tuple[Expression, ...]
    most: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Element(Expression):
    """``array[index]``."""

    array: str
    index: Expression


@dataclass(frozen=True)
class Either(Expression):
    """``if (test) then else otherwise``."""

    test: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True)
class Record(Expression):
    """``.{ .field = value, .. }``; a field without a name is its value alone."""

    fields: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True)
class Words(Expression):
    """An array of constants, ``[2]u32{ 0x1, 0x2 }``."""

    type: str
    values: tuple[Expression, ...]


@dataclass(frozen=True)
class Walked(Expression):
    """The elements of an array that a DSD walks through, ``|i, j|{2, 3} -> array[8 * i + j]``."""

    variables: tuple[str, ...]
    extents: tuple[int, ...]
    element: Element


Operand = Expression | str | int | float
"""An expression, a name or a number."""


def as_expression(operand: Operand) -> Expression:
    """The expression that ``operand`` is."""
    if isinstance(operand, Expression):
        return operand
    return Name(operand) if isinstance(operand, str) else Literal(repr(operand))


def infix(left: Operand, operator: str, right: Operand) -> Infix:
    """``left operator right``."""
    return Infix(as_expression(left), operator, as_expression(right))


def joined(operator: str, operands: Iterable[Expression]) -> Expression:
    """All ``operands``, of which there is one at least, with ``operator`` between them."""
    first, *rest = operands
    for each in rest:
        first = Infix(first, operator, each)
    return first


def call(function: str, *arguments: Operand) -> Call:
    """``function(arguments)``."""
    return Call(function, tuple(map(as_expression, arguments)))


def text(words: str) -> Literal:
    """``"words"``."""
    return Literal(f'"{words}"')


def imported(module: str, *parameters: Operand) -> Call:
    """A module of the vendor's library."""
    return call("@import_module", text(f"<{module}>"), *parameters)


def cast(kind: object, value: Operand) -> Call:
    """``value`` as one of the type ``kind``."""
    return call("@as", str(kind), value)


def bits(kind: object, value: int) -> Call:
    """The word of the type ``kind`` with these bits."""
    return cast(kind, Literal(f"{value:#x}"))


def element(array: str, index: Operand) -> Element:
    """``array[index]``."""
    return Element(array, as_expression(index))


def either(test: Expression, then: Operand, otherwise: Operand) -> Expression:
    """``then`` where ``test`` holds, else ``otherwise``; the one of them where that is known."""
    if test in (TRUE, FALSE):
        return as_expression(then if test == TRUE else otherwise)
    return Either(test, as_expression(then), as_expression(otherwise))


def all_of(tests: Iterable[Expression]) -> Expression:
    """``test and test``, of those that are not known to hold."""
    open_ = [test for test in tests if test != TRUE]
    return FALSE if FALSE in open_ else joined("and", open_) if open_ else TRUE


def record(*values: Operand, **fields: Operand) -> Record:
    """``.{ value, .field = value }``."""
    named = [*(("", value) for value in values), *fields.items()]
    return Record(tuple((name, as_expression(value)) for name, value in named))


def address(operand: Operand) -> Prefix:
    """``&operand``."""
    return Prefix("&", as_expression(operand))


# --- what is done and declared


@dataclass(frozen=True)
class Statement(Node):
    """What stands on lines of its own."""


Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Do(Statement):
    """A call."""

    call: Call


@dataclass(frozen=True)
class Assign(Statement):
    """``target = value``, or with an ``operator`` such as ``+=``."""

    target: Expression
    value: Expression
    operator: str = "="


@dataclass(frozen=True)
class Declare(Statement):
    """``word name: type = value``, of a ``const``, ``var`` or ``param``."""

    word: str
    name: str
    value: Expression | None = None
    type: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Return(Statement):
    """The end of a function."""

    value: Expression | None = None


@dataclass(frozen=True)
class If(Statement):
    """The body of the first of ``arms`` whose test holds; a test that is None always does. A
    ``short`` one has a line for each arm. The arms are entered in a ``share`` of all cases."""

    arms: tuple[tuple[Expression | None, Body], ...]
    short: bool = False
    share: float = field(default=1, compare=False)


@dataclass(frozen=True)
class For(Statement):
    """A loop over the numbers of a ``range``, which is a count or a first number, one behind the
    last and a step. Where only the run knows that, ``most`` passes count."""

    variable: str
    range: tuple[Expression, ...]
    body: Body
    most: int = field(default=1, compare=False)


@dataclass(frozen=True)
class While(Statement):
    """A loop, of which so many ``passes`` count."""

    test: Expression
    body: Body
    passes: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Scope(Statement):
    """Statements whose names end with them; a ``word`` such as ``comptime`` says what they are."""

    body: Body
    word: str = ""


@dataclass(frozen=True)
class Switch(Statement):
    """What is done for each value of ``subject``: cases with a label, a remark and a body."""

    subject: Expression
    cases: tuple[tuple[str, str, Body], ...]


@dataclass(frozen=True)
class Function(Statement):
    """A function, or what ``word`` says it is, with a ``remark`` before it; ``parameters`` have
    their types."""

    name: str
    parameters: tuple[str, ...]
    body: Body
    result: str = "void"
    remark: str = ""
    word: str = "fn"


@dataclass(frozen=True)
class Remark(Statement):
    """A comment."""

    text: str


@dataclass(frozen=True)
class Blank(Statement):
    """An empty line."""


@dataclass(frozen=True)
class Became(Statement):
    """The statements that an op of the tile level became. A ``remark`` that says it stands behind
    their first line."""

    op: Op
    body: Body
    remark: str = ""


Statements = Sequence[Statement]


def do(function: str, *arguments: Operand) -> Do:
    """A call as a statement."""
    return Do(call(function, *arguments))


def assign(target: Operand, value: Operand, operator: str = "=") -> Assign:
    """``target = value``."""
    return Assign(as_expression(target), as_expression(value), operator)


def const(name: str, value: Operand) -> Declare:
    """``const name = value``."""
    return Declare("const", name, as_expression(value))


def var(name: str, kind: object, value: Operand) -> Declare:
    """``var name: kind = value``."""
    return Declare("var", name, as_expression(value), str(kind))


def returned(value: Operand) -> Return:
    """``return value``."""
    return Return(as_expression(value))


def when(
    test: Expression,
    body: Statements,
    other: Statements = (),
    short: bool = False,
    share: float = 1,
) -> If:
    """``body`` where ``test`` holds, in a ``share`` of all cases, else ``other``."""
    arms: list[tuple[Expression | None, Body]] = [(test, tuple(body))]
    return If((*arms, (None, tuple(other))) if other else tuple(arms), short, share)


def chosen(arms: Iterable[tuple[Expression, Statements]], short: bool = False) -> list[Statement]:
    """The statements of the first of ``arms`` whose test holds, without those that never are."""
    open_: list[tuple[Expression | None, Body]] = []
    for test, body in arms:
        if test == TRUE and not open_:
            return [*body]
        if test != FALSE and body:
            open_.append((None if test == TRUE else test, tuple(body)))
        if test == TRUE:
            break
    return [If(tuple(open_), short)] if open_ else []


def loop(variable: str, count: Operand, body: Statements, most: int = 1) -> For:
    """``body`` so many times, ``most`` where only the run knows how many."""
    return For(variable, (as_expression(count),), tuple(body), most)


def scope(body: Statements) -> Scope:
    """``body`` in a scope of its own."""
    return Scope(tuple(body))


def function(
    name: str,
    parameters: Iterable[str],
    body: Statements,
    result: str = "void",
    remark: str = "",
) -> Function:
    """A function; parameters are written with their types."""
    return Function(name, tuple(parameters), tuple(body), result, remark)

"""What a ``.mesh`` text says: one frozen dataclass per construct, each with its place.

Chains of operators stay flat and brackets bound the depth, so walking a tree needs little stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshc.support.spans import Span

Constant = int | float | bool | str


@dataclass(frozen=True)
class Name:
    """A name where it is used as a dim, a dtype or a count."""

    text: str
    span: Span


@dataclass(frozen=True)
class Literal:
    """A number, a truth value or a quoted text."""

    value: Constant
    span: Span


@dataclass(frozen=True)
class Reference:
    """A value, parameter or dim by name, or ``cache.name`` (``path`` has two parts)."""

    path: tuple[str, ...]
    span: Span

    @property
    def name(self) -> str:
        """The path as it was written."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Chain:
    """Operands joined by operators of one precedence, applied from left to right."""

    operands: tuple[Expression, ...]
    operators: tuple[Name, ...]
    span: Span


@dataclass(frozen=True)
class Unary:
    """``-x``, ``+x`` or ``not x``."""

    operator: str
    operand: Expression
    span: Span


@dataclass(frozen=True)
class Argument:
    """One argument of a call; ``name`` is empty when it is given by position."""

    name: str
    value: Expression
    span: Span


@dataclass(frozen=True)
class Call:
    """A built-in function or a block, applied."""

    name: str
    arguments: tuple[Argument, ...]
    span: Span


Expression = Literal | Reference | Chain | Unary | Call


@dataclass(frozen=True)
class Tensor:
    """A name, with the names of its dims where they are written."""

    name: str
    dims: tuple[Name, ...] | None
    span: Span


@dataclass(frozen=True)
class Parameter:
    """A compile-time constant with its default, of a model or of a block."""

    name: str
    default: Expression | None
    span: Span


@dataclass(frozen=True)
class Dtype:
    """``weights f16`` or ``accumulate f32``."""

    role: str
    name: Name
    span: Span


@dataclass(frozen=True)
class Heads:
    """``heads H share G``: each of the G key/value heads serves H/G query heads."""

    many: Name
    few: Name
    span: Span


@dataclass(frozen=True)
class Params:
    """``param w[E, F], ...``: tensors of the checkpoint."""

    tensors: tuple[Tensor, ...]
    span: Span


@dataclass(frozen=True)
class Assign:
    """``x = value``, or several targets for a block with several results."""

    targets: tuple[Tensor, ...]
    value: Expression
    span: Span


@dataclass(frozen=True)
class Return:
    """``return a, b``, perhaps only ``when`` a constant condition is true."""

    values: tuple[Expression, ...]
    when: Expression | None
    span: Span


@dataclass(frozen=True)
class Repeat:
    """``repeat layers { ... }``; its params are stacked on a leading dim ``dim``."""

    dim: Name
    body: tuple[Statement, ...]
    span: Span


@dataclass(frozen=True)
class Choice:
    """``if ... else if ... else``, decided at compile time."""

    branches: tuple[tuple[Expression, tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]
    span: Span


@dataclass(frozen=True)
class Block:
    """A named piece of a model. ``results`` is empty when the dims of its results are not stated.

    ``scope`` is the key of the blocks it can call in :attr:`Model.visible`. For ``main`` the name
    is ``main``.
    """

    name: str
    formals: tuple[Tensor | Parameter, ...]
    results: tuple[tuple[Name, ...], ...]
    body: tuple[Statement, ...]
    span: Span
    scope: str = ""


Statement = Dtype | Heads | Params | Assign | Return | Repeat | Choice | Block


@dataclass(frozen=True)
class Use:
    """``use blocks`` (shipped library) or ``use "own.mesh"`` (a file beside this one)."""

    target: str
    quoted: bool
    span: Span


@dataclass(frozen=True)
class Model:
    """A model: its parameters, the statements of its body apart from blocks and ``main``, ``main``.

    ``visible`` gives, for each scope, the blocks that can be called there by name. ``scope`` is
    that of the model's own blocks, which see its parameters, and of ``main``.
    """

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    main: Block
    scope: str
    span: Span
    visible: Mapping[str, Mapping[str, Block]] = field(default_factory=dict, repr=False)

    def blocks(self) -> tuple[Block, ...]:
        """Every block of the model and of the files it uses, each once."""
        found = {(b.scope, b.name): b for scope in self.visible.values() for b in scope.values()}
        return tuple(found.values())


@dataclass(frozen=True)
class File:
    """What one text holds."""

    uses: tuple[Use, ...]
    blocks: tuple[Block, ...]
    models: tuple[RawModel, ...]


@dataclass(frozen=True)
class RawModel:
    """A model as written, before its blocks are resolved."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    span: Span


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement of ``body``, those in branches and repeats included, blocks not entered."""
    for statement in body:
        yield statement
        if isinstance(statement, Repeat):
            yield from statements(statement.body)
        elif isinstance(statement, Choice):
            for _, branch in statement.branches:
                yield from statements(branch)
            yield from statements(statement.otherwise)


def expressions_of(statement: Statement) -> tuple[Expression, ...]:
    """The expressions a statement itself contains."""
    match statement:
        case Assign(value=value):
            return (value,)
        case Return(values=values, when=when):
            return values if when is None else (*values, when)
        case Choice(branches=branches):
            return tuple(condition for condition, _ in branches)
        case _:
            return ()


def parts(expression: Expression) -> Iterator[Expression]:
    """``expression`` and everything inside it, left to right."""
    yield expression
    match expression:
        case Chain(operands=operands):
            for operand in operands:
                yield from parts(operand)
        case Unary(operand=operand):
            yield from parts(operand)
        case Call(arguments=arguments):
            for argument in arguments:
                yield from parts(argument.value)
        case _:
            pass

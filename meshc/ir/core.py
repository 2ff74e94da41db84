"""The mutable part of the IR: values, operations and blocks, shared by all levels.

An op is a dataclass: its fields are its attributes, so printing, parsing, cloning and comparing
need no code of their own. Values and ops have identity and are edited only through
:mod:`meshc.ir.builder` and :mod:`meshc.ir.rewriter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, NoReturn, TypeVar

from meshc.ir.affine import Cond
from meshc.ir.declared import Signature, signature
from meshc.ir.types import TensorType, Type
from meshc.ir.values import Value
from meshc.ir.views import Symbol, View
from meshc.support.diagnostics import fail
from meshc.support.shared import shared
from meshc.support.spans import Span

Operand = Value | View | Symbol


@dataclass(eq=False)
class Block:
    """A list of ops with arguments: the body of a function, a loop or a sweep."""

    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """This block and all in regions of its ops, each in front of those inside it."""
        yield self
        for op in self.ops:
            for region in op.regions:
                yield from region.blocks()

    def walk(self) -> Iterator[Op]:
        """Every op in text order, ops inside regions included."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(eq=False)
class Op:
    """Base of all operations. Subclasses add attributes as dataclass fields with defaults."""

    NAME: ClassVar[str] = ""
    SIGNATURE: ClassVar[Signature] = Signature()

    operands: list[Operand] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    regions: list[Block] = field(default_factory=list)
    when: Cond | None = None
    span: Span | None = None

    def infer(self, extents: Mapping[str, int]) -> list[Type] | None:
        """Result types that follow from the operands, or None when the text states them."""
        return None

    def verify(self, extents: Mapping[str, int]) -> None:
        """Raise a diagnosed error when the op's own rules do not hold."""

    def attributes(self) -> dict[str, object]:
        """The attribute fields of the subclass by name, ``when`` last when there is one."""
        found: dict[str, object] = {
            name: getattr(self, name) for name in attribute_names(type(self))
        }
        if self.when is not None:
            found["when"] = self.when
        return found

    def tensors(self) -> list[Value]:
        """The operands that are values."""
        return [o for o in self.operands if isinstance(o, Value)]

    def views(self) -> list[View]:
        """The operands that are views of buffers."""
        return [o for o in self.operands if isinstance(o, View)]

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def reject(self, message: str) -> NoReturn:
        """Fail with ``invalid-ir``, pointing at this op."""
        fail("invalid-ir", f"{self.NAME}: {message}", self.span)


_STRUCTURE = frozenset(f.name for f in fields(Op))


@shared
def attribute_names(cls: type[Op]) -> tuple[str, ...]:
    """Names of the attribute fields of an op's class."""
    return tuple(f.name for f in fields(cls) if f.name not in _STRUCTURE)


OP_CLASSES: dict[str, type[Op]] = {}

OpClass = TypeVar("OpClass", bound=type[Op])


def register(name: str, form: str) -> Callable[[OpClass], OpClass]:
    """Class decorator: make an op known to the parser under ``name`` (``level.mnemonic``), which
    takes and gives what ``form`` declares (:mod:`meshc.ir.declared`)."""

    def add(cls: OpClass) -> OpClass:
        if name in OP_CLASSES:
            raise ValueError(f"op '{name}' is registered twice")
        cls.NAME = name
        cls.SIGNATURE = signature(form)
        OP_CLASSES[name] = cls
        return cls

    return add


def tensor_type(value: Operand) -> TensorType:
    """The tensor type of ``value``; anything else is an internal mistake."""
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        return value.type
    raise TypeError(f"{value} is no tensor")

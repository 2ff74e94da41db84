"""Declarations: what an op or a microkernel takes and gives, spelled in one line of text.

A microkernel declares views, with a role, a shape and, where it is not a float, an element type::

    out c[*batch, m, n], a[*batch, m, k], b[*batch, k, n]
    inout scores[*rows, slots], state[2]: i32
    out b[k, n], codes[k, n]: code

``in`` is the role of an operand that states none. A name in brackets is the extent of one dim,
``2*half`` twice that of another, a number an extent itself, ``*batch`` any number of dims and
``*batch|1`` as many, of which those of extent 1 are repeated. Equal names are equal extents in all
operands of a call.

An op of the graph and mesh levels declares the names of its operands, an arrow and those of its
results, ``{body}`` for a region::

    x, gain: within x -> y: like x
    left, right+ -> product*

``+`` and ``*`` stand for one or more and any number of them, ``?`` for one that may be left out;
``within x`` has some of the dims of ``x`` and lies as it does, ``like x`` has all of them.

Attributes have a kind and perhaps a bound: ``count: int >= 1``, ``form: erf | tanh``. The fields of
an op's class, which have a type already, state the bound alone, with :func:`attribute`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

Role = Literal["out", "in", "inout"]
AttributeKind = Literal["affine", "int", "float", "bool", "name"]
Default = TypeVar("Default")

MANY = 1 << 30
_RULE = "rule"  # the key of a bound in the metadata of a dataclass's field

_OPERAND = re.compile(r"(?:(out|inout|in) )?(\w+)\[([^\]]*)\](?:: (i32|f32|code))?\Z")
_DIM = re.compile(r"(?:(\d+)\*)?([a-z_]\w*)\Z|(\d+)\Z|(\*)(\w+)(\|1)?\Z")
_NAMED = re.compile(r"(\w+)([*+?]?)(?:: (like|within) (\w+))?\Z")
_ATTRIBUTE = re.compile(r"(\w+): (?:(affine|int|float|bool)(?: >= (\S+))?|(\w+(?: \| \w+)+))\Z")


@dataclass(frozen=True)
class Dim:
    """One entry of a declared shape: ``factor`` times the extent ``name``; ``factor`` itself where
    there is no name; any number of dims if ``many``, each of which may be 1 if ``repeats``."""

    name: str = ""
    factor: int = 1
    many: bool = False
    repeats: bool = False

    def __str__(self) -> str:
        if self.many:
            return f"*{self.name}" + "|1" * self.repeats
        if not self.name:
            return str(self.factor)
        return self.name if self.factor == 1 else f"{self.factor}*{self.name}"


@dataclass(frozen=True)
class Operand:
    """A view that a microkernel takes. ``element`` is ``i32``, ``f32``, empty for any float, or
    ``code`` for codes of quantised weights."""

    name: str
    role: Role
    dims: tuple[Dim, ...]
    element: str = ""

    @property
    def shape(self) -> str:
        """Name and shape, as declared."""
        return f"{self.name}[{', '.join(map(str, self.dims))}]"

    def __str__(self) -> str:
        element = f": {self.element}" if self.element else ""
        return f"{'' if self.role == 'in' else self.role + ' '}{self.shape}{element}"


@dataclass(frozen=True)
class Rule:
    """What the value of an attribute may be: at least ``least``, or one of ``among``."""

    least: float | None = None
    among: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What follows the name of the attribute, if anything."""
        if self.among:
            return ": " + " | ".join(word or "none" for word in self.among)
        return "" if self.least is None else f" >= {self.least:g}"

    def mistake(self, value: object) -> str | None:
        """Why ``value`` is none that the rule admits, such as ``is 0, but it is at least 1``."""
        if self.among and value not in self.among:
            return f"is '{value}', but it is one of {', '.join(w or 'none' for w in self.among)}"
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.least is not None and number and not cast(float, value) >= self.least:
            return f"is {value}, but it is at least {self.least:g}"
        return None


@dataclass(frozen=True)
class Attribute:
    """A named constant that a microkernel is given."""

    name: str
    kind: AttributeKind
    rule: Rule = Rule()

    def __str__(self) -> str:
        return f"{self.name}{'' if self.rule.among else f': {self.kind}'}{self.rule}"


@dataclass(frozen=True)
class Named:
    """An operand or a result of an op: ``least`` to ``most`` values, that stand as ``rule`` (like
    or within) to the operand ``of``."""

    name: str
    least: int = 1
    most: int = 1
    rule: str = ""
    of: str = ""

    def __str__(self) -> str:
        count = {(0, 1): "?", (0, MANY): "*", (1, MANY): "+"}.get((self.least, self.most), "")
        return f"{self.name}{count}" + (f": {self.rule} {self.of}" if self.rule else "")


@dataclass(frozen=True)
class Signature:
    """What an op takes and gives, and how many regions it has."""

    operands: tuple[Named, ...] = ()
    results: tuple[Named, ...] = ()
    regions: int = 0

    def __str__(self) -> str:
        sides = [", ".join(map(str, side)) or "()" for side in (self.operands, self.results)]
        return " -> ".join(sides) + " {body}" * self.regions


def signature(text: str) -> Signature:
    """The declaration of an op. Raises ValueError for a text that is none."""
    text, body, _ = text.partition(" {body}")
    left, arrow, right = text.partition(" -> ")
    if not arrow:
        raise ValueError(f"'{text}' has no arrow")
    return Signature(_named(left), _named(right), 1 if body else 0)


def _named(text: str) -> tuple[Named, ...]:
    return tuple(_one_named(part) for part in text.split(", ") if part != "()")


def _one_named(text: str) -> Named:
    match = _NAMED.match(text)
    if match is None:
        raise ValueError(f"'{text}' declares no value")
    name, count, rule, of = match.groups(default="")
    least, most = {"": (1, 1), "*": (0, MANY), "+": (1, MANY), "?": (0, 1)}[count]
    return Named(name, least, most, rule, of)


def operands(text: str) -> tuple[Operand, ...]:
    """The views that a microkernel declares. Raises ValueError for a text that is none."""
    parts = re.split(r", (?![^\[]*\])", text)
    return tuple(_operand(part) for part in parts)


def _operand(text: str) -> Operand:
    match = _OPERAND.match(text)
    if match is None:
        raise ValueError(f"'{text}' declares no view")
    role, name, dims, element = match.groups(default="")
    shape = tuple(_dim(part) for part in dims.split(", ") if part)
    return Operand(name, cast(Role, role or "in"), shape, element)


def _dim(text: str) -> Dim:
    match = _DIM.match(text)
    if match is None:
        raise ValueError(f"'{text}' is no extent")
    factor, name, number, many, several, repeats = match.groups()
    if several:
        return Dim(several, many=bool(many), repeats=bool(repeats))
    return Dim("", int(number)) if number else Dim(name, int(factor or 1))


def attributes(text: str) -> tuple[Attribute, ...]:
    """The attributes that a microkernel declares. Raises ValueError for a text that is none."""
    return tuple(_attribute(part) for part in text.split(", ") if part)


def _attribute(text: str) -> Attribute:
    match = _ATTRIBUTE.match(text)
    if match is None:
        raise ValueError(f"'{text}' declares no attribute")
    name, kind, least, words = match.groups()
    if words:
        return Attribute(name, "name", Rule(among=tuple(words.split(" | "))))
    return Attribute(name, cast(AttributeKind, kind), Rule(float(least) if least else None))


def attribute(
    default: Default, *, least: float | None = None, among: tuple[str, ...] = ()
) -> Default:
    """A field of an op's class, with a default and a bound of its values."""
    rule = Rule(least, among)
    return field(default=default, metadata={_RULE: rule})


def rule_of(metadata: object) -> Rule:
    """The bound that the metadata of a field state; none admits everything."""
    found = cast(dict[str, Rule], metadata).get(_RULE)
    return found or Rule()

"""Holds an op against what its class declares: operands, results, regions, attributes, layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from meshc.ir.core import Op
from meshc.ir.declared import MANY, Named, Rule, rule_of
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType, Layout, TensorType
from meshc.ir.values import Value
from meshc.support.shared import shared


def form_of(op: Op) -> str:
    """What an op takes and gives, as it declares it."""
    if isinstance(op, Compute):
        return str(op.declared)
    given = ", ".join(f"{name}{rule}" for name, rule in rules_of(type(op)).items())
    return f"{op.NAME} {op.SIGNATURE}" + (f" {{{given}}}" if given else "")


@shared
def rules_of(cls: type[Op]) -> Mapping[str, Rule]:
    """The attributes that a class declares, with the bound of each."""
    known = {f.name for f in fields(Op)}
    rules = {f.name: rule_of(f.metadata) for f in fields(cls) if f.name not in known}
    return MappingProxyType(rules)


@shared
def _counts_of(cls: type[Op]) -> tuple[tuple[int, int], tuple[int, int], int]:
    """The least and the most operands and results that a class declares, and its regions."""
    declared = cls.SIGNATURE
    return _range(declared.operands), _range(declared.results), declared.regions


@shared
def _bounded_attributes(cls: type[Op]) -> tuple[tuple[str, Rule], ...]:
    """The attributes of a class of which not every value is admitted."""
    return tuple((name, rule) for name, rule in rules_of(cls).items() if rule != Rule())


def count_mistake(op: Op) -> str | None:
    """What is wrong with the number of operands, results or regions, or None."""
    if isinstance(op, Compute):
        takes, gives, regions = (len(op.declared.operands_of(op.params)),) * 2, (0, 0), 0
    else:
        takes, gives, regions = _counts_of(type(op))
    if not takes[0] <= len(op.operands) <= takes[1]:
        return f"takes {_count_text(*takes)} operands, not {len(op.operands)}"
    if not gives[0] <= len(op.results) <= gives[1]:
        return f"gives {_count_text(*gives)} results, not {len(op.results)}"
    if len(op.regions) != regions:
        return f"has {regions} regions, not {len(op.regions)}"
    return None


def _range(declared: tuple[Named, ...]) -> tuple[int, int]:
    return sum(n.least for n in declared), min(MANY, sum(n.most for n in declared))


def _count_text(least: int, most: int) -> str:
    if least == most:
        return str(least)
    return f"at least {least}" if most == MANY else f"{least} to {most}"


def attribute_mistakes(op: Op) -> list[str]:
    """Attributes with values that their bounds do not admit."""
    if isinstance(op, Compute):
        found = [(a.name, a.rule.mistake(op.params[a.name])) for a in op.declared.attributes]
    else:
        rules = _bounded_attributes(type(op))
        found = [(name, rule.mistake(getattr(op, name))) for name, rule in rules]
    return [f"'{name}' {words}" for name, words in found if words]


def standing_mistakes(op: Op) -> list[str]:
    """Operands and results that do not stand to an operand as the signature says: ``within`` it,
    with some of its dims, or ``like`` it, with all of them, and laid out as it is."""
    if not _has_standing(type(op)):
        return []
    values = {}
    for declared, value in zip(op.SIGNATURE.operands, op.operands, strict=False):
        values[declared.name] = value
    pairs = [*zip(op.SIGNATURE.operands, op.operands, strict=False)]
    pairs += [*zip(op.SIGNATURE.results, op.results, strict=False)]
    found = []
    for declared, value in pairs:
        other = values.get(declared.of)
        if declared.rule and isinstance(value, Value) and isinstance(other, Value):
            words = _standing(declared, value, other)
            found += [words] if words else []
    return found


@shared
def _has_standing(cls: type[Op]) -> bool:
    """Whether the signature says of a value how it stands to an operand."""
    return any(n.rule for n in (*cls.SIGNATURE.operands, *cls.SIGNATURE.results))


def _standing(declared: Named, value: Value, other: Value) -> str | None:
    kind, given = value.type, other.type
    if not isinstance(kind, TensorType) or not isinstance(given, TensorType):
        return None
    if declared.rule == "like" and kind.dims != given.dims:
        return f"the dims of {value} are not those of {other}, {_list(given.dims)}"
    if (kind.dtype is DType.I32) != (given.dtype is DType.I32):
        return (
            f"{value} holds {kind.dtype}, {other} {given.dtype}: ids are no numbers to compute with"
        )
    if not set(kind.dims) <= set(given.dims):
        return f"cannot spread {_list(kind.dims)} over {_list(given.dims)}"
    layout, wanted = (k.layout or Layout() for k in (kind, given))
    for dim in kind.dims:
        if layout.split_of(dim) != wanted.split_of(dim):
            return f"{dim} of {value} does not lie as that of {other} does"
    return None


def _list(dims: tuple[str, ...]) -> str:
    return f"[{', '.join(dims)}]"

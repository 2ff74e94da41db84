"""Holds an op against what its class declares: operands, results, regions, attributes, layouts."""

from __future__ import annotations

from dataclasses import fields

from meshc.ir.core import Op
from meshc.ir.declared import MANY, Named, Rule, rule_of
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType, Layout, TensorType
from meshc.ir.values import Value


def form_of(op: Op) -> str:
    """What an op takes and gives, as it declares it."""
    if isinstance(op, Compute):
        return str(op.declared)
    given = ", ".join(f"{name}{rule}" for name, rule in rules_of(type(op)).items())
    return f"{op.NAME} {op.SIGNATURE}" + (f" {{{given}}}" if given else "")


def rules_of(cls: type[Op]) -> dict[str, Rule]:
    """The attributes that a class declares, with the bound of each."""
    known = {f.name for f in fields(Op)}
    return {f.name: rule_of(f.metadata) for f in fields(cls) if f.name not in known}


def count_mistake(op: Op) -> str | None:
    """What is wrong with the number of operands, results or regions, or None."""
    if isinstance(op, Compute):
        takes, gives, regions = (len(op.declared.operands_of(op.params)),) * 2, (0, 0), 0
    else:
        takes, gives = _range(op.SIGNATURE.operands), _range(op.SIGNATURE.results)
        regions = op.SIGNATURE.regions
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
        rules = {a.name: a.rule for a in op.declared.attributes}
    else:
        rules = rules_of(type(op))
    given = op.attributes()
    found = [(name, rule.mistake(given[name])) for name, rule in rules.items()]
    return [f"'{name}' {words}" for name, words in found if words]


def standing_mistakes(op: Op) -> list[str]:
    """Operands and results that do not stand to an operand as the signature says: ``within`` it,
    with some of its dims, or ``like`` it, with all of them, and laid out as it is."""
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

"""Affine expressions and conditions as CSL text, in i16 arithmetic.

CSL's ``%`` and ``/`` round towards zero. An operand that may be negative is made positive by a
multiple of the divisor where its bounds are known; else the emitted program's own ``mod`` and
``floor`` are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meshc.ir.affine import Atom, Call, Cond, Constraint, Expr, Floor, Mod, Var


@dataclass(frozen=True)
class Spelling:
    """How names are written, and the largest values of those whose bounds are known; all names
    stand for values that are not negative. ``kept`` are the variables that keep the value of a
    part of expressions."""

    name: Callable[[str], str]
    most: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[Atom, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        """The spelling of ``name``."""
        return self.name(name)


PLAIN = Spelling(lambda name: name)

HELPERS = {
    "mod": [
        "fn mod(a: i16, n: i16) i16 {",
        "    const rest = a % n;",
        "    return if (rest < 0) rest + n else rest;",
        "}",
    ],
    "floor": [
        "fn floor(a: i16, n: i16) i16 {",
        "    return (a - mod(a, n)) / n;",
        "}",
    ],
}


def expression(value: Expr, spell: Spelling) -> str:
    """``value`` as a sum."""
    parts = [(_term(atom, factor, spell), factor > 0) for atom, factor in value.terms]
    parts.sort(key=lambda part: not part[1])
    if value.constant or not parts:
        constant = (str(abs(value.constant)), value.constant >= 0)
        parts.insert(0 if constant[1] and parts and not parts[0][1] else len(parts), constant)
    text = parts[0][0] if parts[0][1] else f"-{parts[0][0]}"
    return text + "".join(f" {'+' if plus else '-'} {part}" for part, plus in parts[1:])


def condition(cond: Cond, spell: Spelling) -> str:
    """``cond`` as a boolean expression."""
    if cond.is_true or cond.is_false:
        return "true" if cond.is_true else "false"
    clauses = [" and ".join(_comparison(c, spell) for c in clause) for clause in cond.clauses]
    if len(clauses) == 1:
        return clauses[0]
    return " or ".join(f"({c})" if " and " in c else c for c in clauses)


def helpers(lines: list[str]) -> list[str]:
    """The functions of :data:`HELPERS` that ``lines`` call."""
    text = "\n".join(lines)
    uses_floor = "floor(" in text
    found = HELPERS["mod"] if uses_floor or "mod(" in text else []
    return [*found, *([""] + HELPERS["floor"] if uses_floor else [])]


def nonnegative(value: Expr) -> bool:
    """Whether ``value`` is surely not negative: coordinates, loop variables and scalars are not."""
    return value.constant >= 0 and all(
        factor > 0 and (not isinstance(atom, Floor) or nonnegative(atom.body))
        for atom, factor in value.terms
    )


def _comparison(constraint: Constraint, spell: Spelling) -> str:
    """One comparison, with what is subtracted moved to the other side."""
    expr = constraint.expr
    plus = Expr.sum((a, c) for a, c in expr.terms if c > 0)
    minus = Expr.sum((a, -c) for a, c in expr.terms if c < 0)
    if constraint.relation == "=":
        left, right = (plus, minus - expr.constant) if plus.terms else (minus, plus + expr.constant)
        return f"{_operand(left, spell)} == {expression(right, spell)}"
    if minus.is_const:
        return f"{_operand(plus, spell)} >= {-expr.constant}"
    if plus.terms and expr.constant == -1:
        return f"{_operand(minus, spell)} < {expression(plus, spell)}"
    return f"{_operand(minus, spell)} <= {expression(plus + expr.constant, spell)}"


def _operand(value: Expr, spell: Spelling) -> str:
    return expression(value, spell)


def _term(atom: Atom, factor: int, spell: Spelling) -> str:
    text = _atom(atom, spell)
    if abs(factor) == 1:
        return f"({text})" if factor < 0 and " " in text and not text.endswith(")") else text
    return (
        f"{abs(factor)} * ({text})"
        if " " in text and not text.startswith("mod(")
        else (f"{abs(factor)} * {text}")
    )


def _atom(atom: Atom, spell: Spelling) -> str:
    if isinstance(atom, Var):
        return spell(atom.name)
    if atom in spell.kept:
        return spell.kept[atom]
    if isinstance(atom, Call):
        return f"{spell(atom.function)}({expression(atom.argument, spell)})"
    by, raised = _divisor(atom), _raise(atom, spell.most)
    if raised is None:
        body = expression(atom.body, spell)
        return f"{'mod' if isinstance(atom, Mod) else 'floor'}({body}, {by})"
    body = expression(atom.body + raised, spell)
    operator = "%" if isinstance(atom, Mod) else "/"
    text = f"({body}) {operator} {by}" if " " in body else f"{body} {operator} {by}"
    return f"({text} - {raised // by})" if raised and isinstance(atom, Floor) else text


def _raise(atom: Mod | Floor, most: Mapping[str, int]) -> int | None:
    """The multiple of the divisor that keeps the body from being negative; None if unknown."""
    if nonnegative(atom.body):
        return 0
    low = atom.body.constant
    for part, factor in atom.body.terms:
        if factor > 0 and nonnegative(Expr(((part, 1),))):
            continue
        if not isinstance(part, Var) or part.name not in most:
            return None
        low += min(0, factor * most[part.name])
    return max(0, -(low // _divisor(atom)) * _divisor(atom))


def _divisor(atom: Mod | Floor) -> int:
    return atom.modulus if isinstance(atom, Mod) else atom.divisor

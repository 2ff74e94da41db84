"""Affine expressions and conditions as CSL text, in i16 arithmetic.

CSL's ``%`` and ``/`` round towards zero; where an operand may be negative the emitted program's own
``mod`` and ``floor`` are called instead.
"""

from __future__ import annotations

from collections.abc import Callable

from meshc.ir.affine import Atom, Call, Cond, Constraint, Expr, Floor, Mod, Var

COORDINATES = frozenset({"r", "y", "x", "xh", "xd", "rank_y", "rank_x", "rank_xd"})

Spelling = Callable[[str], str]

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


def varies(value: Expr | Cond) -> bool:
    """Whether ``value`` may differ between cores."""
    return bool(value.free_vars & COORDINATES)


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
    if isinstance(atom, Call):
        return f"{spell(atom.function)}({expression(atom.argument, spell)})"
    body, by = expression(atom.body, spell), _divisor(atom)
    if not nonnegative(atom.body):
        return f"{'mod' if isinstance(atom, Mod) else 'floor'}({body}, {by})"
    operator = "%" if isinstance(atom, Mod) else "/"
    return f"({body}) {operator} {by}" if " " in body else f"{body} {operator} {by}"


def _divisor(atom: Mod | Floor) -> int:
    return atom.modulus if isinstance(atom, Mod) else atom.divisor

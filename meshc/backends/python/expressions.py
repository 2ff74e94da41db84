"""Affine expressions and conditions as Python text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshc.backends.python.source_text import Argument, Chain, joined
from meshc.ir.affine import Atom, Call, Cond, Constraint, Expr, Mod, Var
from meshc.ir.ops.tile import ParamValue

Spelling = Callable[[str], str]  # how a name is written


def spelled(names: Mapping[str, str]) -> Spelling:
    """Names by ``names``; what ``names`` does not have are coordinates of the core."""

    def spell(name: str) -> str:
        return names.get(name, f"core.{name}")

    return spell


def expression(value: Expr, spell: Spelling) -> str:
    """``value`` as a sum; put it in parentheses where it is an operand of a product."""
    return str(summed(value, spell))


def summed(value: Expr, spell: Spelling) -> Argument:
    """``value`` as a sum that can be broken before its signs."""
    parts = [(_term(atom, factor, spell), factor > 0) for atom, factor in value.terms]
    parts.sort(key=lambda part: not part[1])
    if value.constant or not parts:
        parts.append((str(abs(value.constant)), value.constant >= 0))
        if not parts[0][1] and value.constant > 0:
            parts.insert(0, parts.pop())
    first, positive = parts[0]
    texts = [first if positive else f"-({first})" if _divides(first) else f"-{first}"]
    signs = "".join("+" if positive else "-" for _, positive in parts[1:])
    texts += [part for part, _ in parts[1:]]
    return Chain(signs, tuple(texts)) if signs else texts[0]


def condition(cond: Cond, spell: Spelling, plain: bool = False) -> Argument:
    """``cond``, elementwise over cores; or ``plain`` Python, for numbers equal on all cores."""
    both, either = ("and", "or") if plain else ("&", "|")
    if cond.is_true or cond.is_false:
        return str(cond.is_true)
    clauses = [[comparison(c, spell) for c in clause] for clause in cond.clauses]
    if len(clauses) == 1 and len(clauses[0]) == 1:
        return clauses[0][0]
    wrapped = [c if plain else [f"({text})" for text in c] for c in clauses]
    if len(wrapped) == 1:
        return joined(both, wrapped[0])
    texts = [(f" {both} ".join(c), len(c)) for c in wrapped]
    return joined(either, [f"({text})" if count > 1 else text for text, count in texts])


def comparison(constraint: Constraint, spell: Spelling) -> str:
    """One comparison, with what is subtracted moved to the other side."""
    expr = constraint.expr
    plus = Expr.sum((a, c) for a, c in expr.terms if c > 0)
    minus = Expr.sum((a, -c) for a, c in expr.terms if c < 0)
    if constraint.relation == "=":
        left, right = (plus, minus - expr.constant) if plus.terms else (minus, plus + expr.constant)
        return f"{expression(left, spell)} == {expression(right, spell)}"
    if minus.is_const:
        return f"{expression(plus, spell)} >= {-expr.constant}"
    if plus.terms and expr.constant == -1:
        return f"{expression(minus, spell)} < {expression(plus, spell)}"
    return f"{expression(minus, spell)} <= {expression(plus + expr.constant, spell)}"


def parameter(name: str, value: ParamValue, spell: Spelling) -> Argument:
    """``name=value``, a kernel's parameter."""
    if isinstance(value, Expr):
        text = summed(value, spell)
        if isinstance(text, Chain):
            return Chain(text.operators, (f"{name}={text.operands[0]}", *text.operands[1:]))
        return f"{name}={text}"
    return f"{name}={number(value) if isinstance(value, float) else repr(value)}"


def number(value: float) -> str:
    """A float that reads back as the same value, infinities included."""
    text = repr(float(value))
    return f'float("{text}")' if text.strip("-") in ("inf", "nan") else text


def _divides(term: str) -> bool:
    """Whether a minus in front would bind tighter than the term's own operator."""
    return not term.startswith("(") and any(f" {sign} " in term for sign in ("%", "//"))


def _term(atom: Atom, factor: int, spell: Spelling) -> str:
    text = _atom(atom, spell)
    if abs(factor) == 1:
        return text
    return f"{abs(factor)} * ({text})" if " " in text else f"{abs(factor)} * {text}"


def _atom(atom: Atom, spell: Spelling) -> str:
    if isinstance(atom, Var):
        return spell(atom.name)
    if isinstance(atom, Call):
        return f"core.{atom.function}({expression(atom.argument, spell)})"
    body = expression(atom.body, spell)
    operator, by = ("%", atom.modulus) if isinstance(atom, Mod) else ("//", atom.divisor)
    return (
        f"({body}) {operator} {by}" if " " in body or body[0] == "-" else f"{body} {operator} {by}"
    )

"""Affine expressions and conditions as those of CSL, in i16 arithmetic.

CSL's ``%`` and ``/`` round towards zero. An operand that may be negative is made positive by a
multiple of the divisor where its bounds are known; else the emitted program's own ``mod`` and
``floor`` are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Atom, Cond, Constraint, Expr, Floor, Mod, Var
from meshc.ir.affine import Call as Applied

_VALUE, _SIZE, _LEFT = csl.Name("value"), csl.Name("size"), csl.Name("left")
HELPERS = {
    "mod": csl.function(
        "mod",
        ("value: i16", "size: i16"),
        [
            csl.const("left", _VALUE % _SIZE),
            csl.returned(csl.either(csl.infix(_LEFT, "<", 0), _LEFT + _SIZE, _LEFT)),
        ],
        "i16",
    ),
    "floor": csl.function(
        "floor",
        ("value: i16", "size: i16"),
        [csl.returned((_VALUE - csl.call("mod", _VALUE, _SIZE)) / _SIZE)],
        "i16",
    ),
}


@dataclass(frozen=True)
class Spelling:
    """How names are written, and the largest values of those whose bounds are known; all names
    stand for values that are not negative.

    ``kept`` are variables that keep the value of a part of expressions. ``stride`` names the factor
    of a variable, given the variable's text and the factor; without it factors are numbers.
    """

    name: Callable[[str], str | csl.Expression]
    most: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[Atom, str] = field(default_factory=dict)
    stride: Callable[[str, int], str] | None = None

    def __call__(self, name: str) -> csl.Expression:
        """The spelling of ``name``."""
        return csl.as_expression(self.name(name))


def as_named() -> Spelling:
    """Names as they are."""
    return Spelling(lambda name: name)


def expression(value: Expr, spell: Spelling) -> csl.Expression:
    """``value`` as a sum."""
    parts = [(_term(atom, factor, spell), factor > 0) for atom, factor in value.terms]
    parts.sort(key=lambda part: not part[1])
    if value.constant or not parts:
        constant = (csl.Literal(str(abs(value.constant))), value.constant >= 0)
        parts.insert(0 if constant[1] and parts and not parts[0][1] else len(parts), constant)
    (first, positive), *rest = parts
    total = first if positive else csl.Prefix("-", first)
    for part, plus in rest:
        total = csl.infix(total, "+" if plus else "-", part)
    return total


def condition(cond: Cond, spell: Spelling) -> csl.Expression:
    """``cond`` as a boolean expression."""
    if cond.is_true or cond.is_false:
        return csl.TRUE if cond.is_true else csl.FALSE
    clauses = ([_comparison(each, spell) for each in clause] for clause in cond.clauses)
    return csl.joined("or", [csl.joined("and", clause) for clause in clauses])


def helpers(nodes: Iterable[csl.Node]) -> list[csl.Statement]:
    """The functions of :data:`HELPERS` that ``nodes`` call, with those that these call."""
    called = {node.function for node in csl.walk(nodes) if isinstance(node, csl.Call)}
    return [
        helper
        for name, helper in HELPERS.items()
        if name in called or (name == "mod" and "floor" in called)
    ]


def nonnegative(value: Expr) -> bool:
    """Whether ``value`` is surely not negative: coordinates, loop variables and scalars are not."""
    return value.constant >= 0 and all(
        factor > 0 and (not isinstance(atom, Floor) or nonnegative(atom.body))
        for atom, factor in value.terms
    )


def _comparison(constraint: Constraint, spell: Spelling) -> csl.Expression:
    """One comparison, with what is subtracted moved to the other side."""
    expr = constraint.expr
    plus = Expr.sum((a, c) for a, c in expr.terms if c > 0)
    minus = Expr.sum((a, -c) for a, c in expr.terms if c < 0)
    left, relation, right = minus, "<=", plus + expr.constant
    if constraint.relation == "=":
        left, right = (plus, minus - expr.constant) if plus.terms else (minus, plus + expr.constant)
        relation = "=="
    elif minus.is_const:
        left, relation, right = plus, ">=", Expr.const(-expr.constant)
    elif plus.terms and expr.constant == -1:
        relation, right = "<", plus
    return csl.infix(expression(left, spell), relation, expression(right, spell))


def _term(atom: Atom, factor: int, spell: Spelling) -> csl.Expression:
    """``atom`` times the magnitude of ``factor``."""
    found = _atom(atom, spell)
    if abs(factor) == 1:
        return found
    if spell.stride and isinstance(found, csl.Name):
        return csl.infix(spell.stride(found.text, abs(factor)), "*", found)
    return csl.infix(abs(factor), "*", found)


def _atom(atom: Atom, spell: Spelling) -> csl.Expression:
    if isinstance(atom, Var):
        return spell(atom.name)
    if atom in spell.kept:
        return csl.Name(spell.kept[atom])
    if isinstance(atom, Applied):
        called = spell(atom.function)
        assert isinstance(called, csl.Name)
        return csl.call(called.text, expression(atom.argument, spell))
    by, raised = _divisor(atom), _raise(atom, spell.most)
    if raised is None:
        helper = "mod" if isinstance(atom, Mod) else "floor"
        return csl.call(helper, expression(atom.body, spell), by)
    body = expression(atom.body + raised, spell)
    quotient = csl.infix(body, "%" if isinstance(atom, Mod) else "/", by)
    return quotient if not raised or isinstance(atom, Mod) else quotient - raised // by


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

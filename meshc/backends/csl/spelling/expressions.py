"""Affine expressions and conditions as CSL text, in i16 arithmetic.

CSL's ``%`` and ``/`` round towards zero. An operand that may be negative is made positive by a
multiple of the divisor where its bounds are known; else the emitted program's own ``mod`` and
``floor`` are called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshc.ir.affine import Atom, Call, Cond, Constraint, Expr, Floor, Mod, Var

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


@dataclass(frozen=True)
class Spelling:
    """How names are written, and the largest values of those whose bounds are known; all names
    stand for values that are not negative.

    ``helpers`` gathers which of :data:`HELPERS` the text that is written calls, so that its file
    can define them. ``kept`` are variables that keep the value of a part of expressions.
    ``stride`` names the factor of a variable, given the variable's text and the factor; without
    it factors are numbers.
    """

    name: Callable[[str], str]
    most: Mapping[str, int] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    kept: Mapping[Atom, str] = field(default_factory=dict)
    stride: Callable[[str, int], str] | None = None

    def __call__(self, name: str) -> str:
        """The spelling of ``name``."""
        return self.name(name)


def as_named() -> Spelling:
    """Names as they are, without helpers so far."""
    return Spelling(lambda name: name)


@dataclass(frozen=True)
class Written:
    """The text of an expression and what a core does to work it out: the names that it ``reads``,
    as the IR has them, the helpers that it ``calls``, both in order, and the ``operations`` beside.

    ``single`` says that the text is one operand, wherever it stands: a name, a number, a call, or
    something in parentheses.
    """

    text: str
    reads: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    operations: int = 0
    single: bool = True

    @property
    def operand(self) -> str:
        """The text, in parentheses if it needs them as an operand of a product."""
        return self.text if self.single else f"({self.text})"


def expression(value: Expr, spell: Spelling) -> str:
    """``value`` as a sum."""
    return _noted(written(value, spell), spell)


def condition(cond: Cond, spell: Spelling) -> str:
    """``cond`` as a boolean expression."""
    return _noted(written_condition(cond, spell), spell)


def helpers(called: Collection[str]) -> list[str]:
    """The functions of :data:`HELPERS` that text needs which calls those in ``called``."""
    found = HELPERS["mod"] if called else []
    return [*found, *([""] + HELPERS["floor"] if "floor" in called else [])]


def written(value: Expr, spell: Spelling) -> Written:
    """``value`` as a sum, for those who ask what it costs; its helpers are not gathered."""
    parts = [(_term(atom, factor, spell), factor > 0) for atom, factor in value.terms]
    parts.sort(key=lambda part: not part[1])
    if value.constant or not parts:
        constant = (Written(str(abs(value.constant))), value.constant >= 0)
        parts.insert(0 if constant[1] and parts and not parts[0][1] else len(parts), constant)
    (first, positive), *rest = parts
    text = first.text if positive else f"-{first.text}"
    text += "".join(f" {'+' if plus else '-'} {part.text}" for part, plus in rest)
    single = first.single and positive and not rest
    return _together(text, [part for part, _ in parts], len(rest) + (not positive), single)


def written_condition(cond: Cond, spell: Spelling) -> Written:
    """``cond`` as a boolean expression, as :func:`written` writes values."""
    if cond.is_true or cond.is_false:
        return Written("true" if cond.is_true else "false")
    clauses = [_clause([_comparison(c, spell) for c in clause]) for clause in cond.clauses]
    if len(clauses) == 1:
        return clauses[0]
    text = " or ".join(
        f"({found.text})" if len(clause) > 1 else found.text
        for clause, found in zip(cond.clauses, clauses, strict=True)
    )
    return _together(text, clauses, len(clauses) - 1, False)


def nonnegative(value: Expr) -> bool:
    """Whether ``value`` is surely not negative: coordinates, loop variables and scalars are not."""
    return value.constant >= 0 and all(
        factor > 0 and (not isinstance(atom, Floor) or nonnegative(atom.body))
        for atom, factor in value.terms
    )


def _noted(found: Written, spell: Spelling) -> str:
    """The text of what is written, whose helpers ``spell`` gathers."""
    spell.helpers.update(found.calls)
    return found.text


def _together(text: str, parts: Sequence[Written], operations: int, single: bool) -> Written:
    """``text``, which is made of ``parts`` and ``operations`` between them."""
    return Written(
        text,
        tuple(name for part in parts for name in part.reads),
        tuple(name for part in parts for name in part.calls),
        operations + sum(part.operations for part in parts),
        single,
    )


def _clause(comparisons: list[Written]) -> Written:
    """Comparisons of which all hold."""
    text = " and ".join(one.text for one in comparisons)
    return _together(text, comparisons, len(comparisons) - 1, False)


def _comparison(constraint: Constraint, spell: Spelling) -> Written:
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
    sides = [written(left, spell), written(right, spell)]
    return _together(f" {relation} ".join(side.text for side in sides), sides, 1, False)


def _term(atom: Atom, factor: int, spell: Spelling) -> Written:
    """``atom`` times the magnitude of ``factor``."""
    found = _atom(atom, spell)
    if factor == 1:
        return found
    if factor == -1:
        return replace(found, text=found.operand, single=True)
    number = str(abs(factor))
    if spell.stride and (isinstance(atom, Var) or atom in spell.kept):
        number = spell.stride(found.text, abs(factor))
    return _together(f"{number} * {found.operand}", [found], 1, False)


def _atom(atom: Atom, spell: Spelling) -> Written:
    if isinstance(atom, Var):
        return Written(spell(atom.name), reads=(atom.name,))
    if atom in spell.kept:
        return Written(spell.kept[atom], reads=(spell.kept[atom],))
    if isinstance(atom, Call):
        argument = written(atom.argument, spell)
        call = replace(argument, text=f"{spell(atom.function)}({argument.text})", single=True)
        return replace(call, reads=(atom.function, *argument.reads))
    by, raised = _divisor(atom), _raise(atom, spell.most)
    if raised is None:
        body = written(atom.body, spell)
        helper = "mod" if isinstance(atom, Mod) else "floor"
        call = replace(body, text=f"{helper}({body.text}, {by})", single=True)
        return replace(call, calls=(helper, *body.calls))
    body = written(atom.body + raised, spell)
    operator = "%" if isinstance(atom, Mod) else "/"
    quotient = _together(f"{body.operand} {operator} {by}", [body], 1, False)
    if not raised or isinstance(atom, Mod):
        return quotient
    return _together(f"({quotient.text} - {raised // by})", [quotient], 1, True)


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

"""Writes affine objects in the text that isl reads: numbered dimensions, calls as existentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from meshc.ir.affine import AffineMap, Call, Cond, Constraint, Expr, Mod, Piecewise, Var
from meshc.ir.affine.expr import Atom
from meshc.support.diagnostics import fail

MAX_FUNCTION_DEPTH = 8


class Writer:
    """Writes affine objects as formulas over numbered dimensions ``v0, v1, ...``.

    ``ids`` gives each name its dimension; a caller may add aliases to it.
    """

    def __init__(self, functions: Mapping[str, Piecewise], dims: Sequence[str]) -> None:
        self.functions = functions
        self.ids = {name: f"v{i}" for i, name in enumerate(dims)}
        self.fresh = count()

    def cond(self, cond: Cond, depth: int = 0) -> str:
        """The disjunction of the clauses."""
        if cond.is_false:
            return "1 = 0"
        clauses = (self.clause(clause, depth) for clause in cond.clauses)
        return " or ".join(f"({c})" for c in clauses)

    def clause(self, clause: tuple[Constraint, ...], depth: int) -> str:
        """The conjunction of the constraints."""
        return " and ".join(self.constraint(c, depth) for c in clause) or "1 = 1"

    def constraint(self, constraint: Constraint, depth: int) -> str:
        """One comparison with zero."""
        sign = ">=" if constraint.relation == ">=" else "="
        return self.using([constraint.expr], lambda e: f"{e[0]} {sign} 0", depth)

    def using(self, exprs: Sequence[Expr], write: Callable[[list[str]], str], depth: int) -> str:
        """``write`` applied to the texts of ``exprs``, under the existentials their calls need."""
        definitions: list[tuple[str, str]] = []
        texts = [self.expr(e, definitions, depth) for e in exprs]
        body = write(texts)
        if not definitions:
            return body
        needed = " and ".join(d for _, d in definitions)
        return f"(exists ({', '.join(n for n, _ in definitions)} : {needed} and {body}))"

    def expr(self, expr: Expr, definitions: list[tuple[str, str]], depth: int) -> str:
        """A sum; calls add an existential and its definition to ``definitions``."""
        parts = [f"{c}*{self.atom(a, definitions, depth)}" for a, c in expr.terms]
        return " + ".join([*parts, f"({expr.constant})"])

    def atom(self, atom: Atom, definitions: list[tuple[str, str]], depth: int) -> str:
        """A name, ``mod``, ``floor`` or call."""
        if isinstance(atom, Var):
            return self.ids[atom.name]
        if isinstance(atom, Call):
            return self.call(atom, definitions, depth)
        body = self.expr(atom.body, definitions, depth)
        if isinstance(atom, Mod):
            return f"(({body}) mod {atom.modulus})"
        return f"floor(({body})/{atom.divisor})"

    def call(self, call: Call, definitions: list[tuple[str, str]], depth: int) -> str:
        """The value of a coordinate function: its expression, or an existential."""
        function = self.functions.get(call.function)
        if function is None:
            fail("affine-unbound", f"coordinate function '{call.function}' is not defined here")
        if depth > MAX_FUNCTION_DEPTH:
            fail("bad-affine", f"coordinate function '{call.function}' is defined by itself")
        if len(function.free_vars) > 1:
            fail("bad-affine", f"coordinate function '{call.function}' has more than one variable")
        applied = function.substitute(dict.fromkeys(function.free_vars, call.argument))
        if applied.expr is not None:
            return f"({self.expr(applied.expr, definitions, depth + 1)})"
        name = f"e{next(self.fresh)}"
        definitions.append((name, self.graph(name, applied, depth + 1)))
        return name

    def graph(self, name: str, function: Piecewise, depth: int = 0) -> str:
        """``name = function``, as alternatives in which the first piece that holds wins."""
        alternatives = []
        before: list[str] = []
        for cond, value in function.pieces:
            here = self.cond(cond, depth)
            other = "".join(f" and not ({c})" for c in before)
            alternatives.append(f"(({here}){other} and {self.equation(name, value, depth)})")
            before.append(here)
        return "(" + (" or ".join(alternatives) or "1 = 0") + ")"

    def equation(self, name: str, value: Expr, depth: int = 0) -> str:
        """``name = value`` for a dimension or existential called ``name`` in the text."""
        return self.using([value], lambda e: f"{name} = {e[0]}", depth)

    def relation(self, relation: AffineMap, targets: Sequence[str]) -> str:
        """The union of the map's pieces, as a formula over its inputs and ``targets``."""
        return " or ".join(self.piece(p.outputs, p.domain, targets) for p in relation.pieces) or (
            "1 = 0"
        )

    def piece(self, outputs: Sequence[Expr], domain: Cond, targets: Sequence[str]) -> str:
        """One piece; a range name becomes an alias of its target."""
        parts = []
        for output, name in zip(outputs, targets, strict=True):
            bound = [n for n in output.free_vars if n.startswith("_")]
            if bound:
                self.ids[bound[0]] = self.ids[name]
            else:
                parts.append(self.equation(self.ids[name], output))
        return "(" + " and ".join([*parts, f"({self.cond(domain)})"]) + ")"


def set_text(dims: Sequence[str], formula: str) -> str:
    """The set over ``dims`` where ``formula`` holds."""
    return f"{{ [{', '.join(f'v{i}' for i in range(len(dims)))}] : {formula} }}"


def lexicographically_less(left: Sequence[str], right: Sequence[str]) -> str:
    """The formula that ``left`` comes before ``right``."""
    clauses = []
    for i in range(len(left)):
        equal = [f"{left[j]} = {right[j]}" for j in range(i)]
        clauses.append("(" + " and ".join([*equal, f"{left[i]} < {right[i]}"]) + ")")
    return " or ".join(clauses)

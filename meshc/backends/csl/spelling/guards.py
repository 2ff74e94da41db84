"""Guards and coordinates: what a core knows when compiled, and what it works out when it runs.

A guard over coordinates alone is a boolean parameter that the layout computes, so that cores which
differ in nothing else share one compiled program and dead arms are not compiled. Coordinates in
other places are run-time variables, set once at launch; the region of a core is a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.backends.csl.spelling.expressions import Spelling, condition, expression
from meshc.backends.csl.spelling.names import Names
from meshc.ir.affine import Atom, Cond, Piecewise
from meshc.ir.mesh import Mesh


@dataclass
class Guards:
    """Spelling of names in run-time code, parameters for guards, coordinates in use; ``spelled``
    are the scalars and loop variables that have been written since they were declared, ``helpers``
    the functions of integer division that what is written calls, ``kept`` variables for what is
    worked out once of run-time scalars."""

    mesh: Mesh
    names: Names
    params: dict[Cond, str] = field(default_factory=dict)
    coordinates: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    spelled: set[str] = field(default_factory=set)
    most: dict[str, int] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    kept: dict[Atom, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis in self.mesh.plane:  # as PE programs spell them in other places too
            self.names.of("coordinate", f"my_{axis}")

    @property
    def spelling(self) -> Spelling:
        """How run-time code writes names, with the bounds that are known."""
        return Spelling(self.spell, self.most, self.helpers, self.kept)

    def spell(self, name: str) -> str:
        """A name in run-time code; names of functions' own variables stand for themselves."""
        if name in self.variables:
            self.spelled.add(name)
            return self.variables[name]
        if name in self.mesh.coordinates:
            if name not in self.coordinates:
                self.coordinates.append(name)
            return self.names.of("coordinate", f"my_{name}")
        return name

    def declare(self, name: str) -> str:
        """Spelling of a scalar or loop variable."""
        self.variables[name] = self.names.of("variable", name)
        self.spelled.discard(name)
        return self.variables[name]

    def text(self, cond: Cond, hint: str) -> str:
        """``cond`` as a boolean expression of a PE program."""
        if cond.is_true or cond.is_false:
            return "true" if cond.is_true else "false"
        if cond.free_vars <= self.mesh.coordinates:
            if cond not in self.params:
                self.params[cond] = self.names.fresh(hint)
            return self.params[cond]
        return condition(cond, self.spelling)


def layout_spelling(mesh: Mesh) -> dict[str, str]:
    """Coordinates as the layout spells them: the axes are its loop variables, others are functions
    of theirs."""
    return {
        name: f"{name}({', '.join(in_order(mesh, value))})" if known is None else known
        for name, value in coordinate_values(mesh).items()
        for known in [_without_function(mesh, name, value)]
    }


def _without_function(mesh: Mesh, name: str, value: Piecewise) -> str | None:
    """A coordinate that is a loop variable or a number; None for one that needs a function."""
    if name in mesh.names:
        return name
    single = value.expr
    known = single is not None and (single.is_const or str(single) in mesh.plane)
    return str(single) if known else None


def coordinate_functions(mesh: Mesh, used: set[str], spell: Spelling) -> list[str]:
    """Functions of the position for the coordinates in ``used`` that need one."""
    lines: list[str] = []
    for name, value in coordinate_values(mesh).items():
        if name in used and _without_function(mesh, name, value) is None:
            lines += ["", *piecewise_function(mesh, name, value, spell)]
    return lines[1:]


def in_order(mesh: Mesh, value: Piecewise) -> list[str]:
    """The axes that ``value`` depends on, outermost first."""
    return [name for name in mesh.names if name in value.free_vars]


def piecewise_function(mesh: Mesh, name: str, value: Piecewise, spell: Spelling) -> list[str]:
    """``fn name(y: i16, x: i16) i16``, of the axes that ``value`` depends on: the value of the
    first piece whose condition holds."""
    params = ", ".join(f"{n}: i16" for n in in_order(mesh, value))
    lines = [f"fn {name}({params}) i16 {{"]
    for cond, expr in value.pieces:
        text = expression(expr, spell)
        if cond.is_true:
            return [*lines, f"    return {text};", "}"]
        lines.append(f"    if ({condition(cond, spell)}) {{ return {text}; }}")
    return [*lines, "    return 0;", "}"]

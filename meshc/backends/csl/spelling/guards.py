"""Guards and coordinates: what a core knows when compiled, and what it works out when it runs.

A guard over coordinates alone is a boolean parameter that the layout computes, so that cores which
differ in nothing else share one compiled program and dead arms are not compiled. Coordinates in
other places are run-time variables, set once at launch; the region of a core is a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.analysis.layout.coordinates import coordinate_values
from meshc.analysis.layout.shortest import on_cores
from meshc.backends.csl.spelling.expressions import Spelling, as_named, condition, expression
from meshc.backends.csl.spelling.names import Names
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Atom, Cond, Piecewise
from meshc.ir.mesh import Mesh


@dataclass
class Guards:
    """Spelling of names in run-time code, parameters for guards, coordinates in use; ``kept`` are
    variables for what is worked out once of run-time scalars."""

    mesh: Mesh
    names: Names
    params: dict[Cond, str] = field(default_factory=dict)
    coordinates: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    kept: dict[Atom, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis in self.mesh.plane:  # as PE programs spell them in other places too
            self.names.of("coordinate", f"my_{axis}")

    @property
    def spelling(self) -> Spelling:
        """How run-time code writes names, with the bounds that are known."""
        return Spelling(self.spell, self.most, self.kept)

    def spell(self, name: str) -> str:
        """A name in run-time code; names of functions' own variables stand for themselves."""
        if name in self.variables:
            return self.variables[name]
        if name in self.mesh.coordinates:
            if name not in self.coordinates:
                self.coordinates.append(name)
            return self.names.of("coordinate", f"my_{name}")
        return name

    @property
    def given(self) -> dict[str, Cond]:
        """What the layout says of a PE, by parameter."""
        return {name: on_cores(cond, self.mesh) for cond, name in self.params.items()}

    def declare(self, name: str) -> str:
        """Spelling of a scalar or loop variable."""
        self.variables[name] = self.names.of("variable", name)
        return self.variables[name]

    def test(self, cond: Cond, hint: str) -> csl.Expression:
        """``cond`` as a boolean expression of a PE program, in its shortest form."""
        found = on_cores(cond, self.mesh)
        if found.is_true or found.is_false or not cond.free_vars <= self.mesh.coordinates:
            return condition(found, self.spelling)
        if cond not in self.params:
            self.params[cond] = self.names.fresh(hint)
        return csl.Name(self.params[cond])


def layout_spelling(mesh: Mesh) -> dict[str, csl.Expression]:
    """Coordinates as the layout spells them: the axes are its loop variables, others are functions
    of theirs."""
    return {
        name: csl.call(name, *in_order(mesh, value)) if known is None else known
        for name, value in coordinate_values(mesh).items()
        for known in [_without_function(mesh, name, value)]
    }


def _without_function(mesh: Mesh, name: str, value: Piecewise) -> csl.Expression | None:
    """A coordinate that is a loop variable or a number; None for one that needs a function."""
    if name in mesh.names:
        return csl.Name(name)
    single = value.expr
    if single is None or not (single.is_const or str(single) in mesh.plane):
        return None
    return expression(single, as_named())


def coordinate_functions(mesh: Mesh, used: set[str], spell: Spelling) -> list[csl.Statement]:
    """Functions of the position for the coordinates in ``used`` that need one."""
    found: list[csl.Statement] = []
    for name, value in coordinate_values(mesh).items():
        if name in used and _without_function(mesh, name, value) is None:
            found.append(piecewise_function(mesh, name, value, spell))
    return found


def in_order(mesh: Mesh, value: Piecewise) -> list[str]:
    """The axes that ``value`` depends on, outermost first."""
    return [name for name in mesh.names if name in value.free_vars]


def piecewise_function(
    mesh: Mesh, name: str, value: Piecewise, spell: Spelling, remark: str = ""
) -> csl.Function:
    """``fn name(y: i16, x: i16) i16``, of the axes that ``value`` depends on: the value of the
    first piece whose condition holds."""
    params = [f"{n}: i16" for n in in_order(mesh, value)]
    body: list[csl.Statement] = []
    for cond, expr in value.pieces:
        found = csl.returned(expression(expr, spell))
        if cond.is_true:
            return csl.function(name, params, [*body, found], "i16", remark)
        body.append(csl.when(condition(cond, spell), [found], short=True))
    return csl.function(name, params, [*body, csl.returned(0)], "i16", remark)

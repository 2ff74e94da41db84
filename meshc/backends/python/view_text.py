"""Views and guards as Python text; what is equal in every run is computed once, under a name."""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.analysis.layout.shortest import on_cores
from meshc.backends.python.expressions import condition, expression, spelled
from meshc.backends.python.names import Names
from meshc.backends.python.source_text import Argument, call
from meshc.ir.affine import Cond, Expr
from meshc.ir.mesh import Mesh
from meshc.ir.ops.tile import Sweep
from meshc.ir.views import Index, Point, Range, View

_INDENT = 4


@dataclass
class Hoisted:
    """Definitions that stand before the statements: guards, chains, places, extents."""

    guards: list[str] = field(default_factory=list)
    chains: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)  # text of the value -> how to use it


class Writer:
    """Spells the names of one phase: buffers, channels, scalars, loop variables, tokens; the
    ``coordinates`` of its cores are those of its ``mesh``."""

    def __init__(self, names: Names, mesh: Mesh) -> None:
        self.names = names
        self.mesh = mesh
        self.coordinates = mesh.coordinates
        self.hoisted = Hoisted()
        self.extents: dict[Expr, str] = {}
        self.variables: dict[str, str] = {}
        self.several: dict[str, str] = {}
        self.renamed: dict[View, str] = {}

    def declare(self, name: str) -> str:
        """Spelling of a scalar or loop variable."""
        self.variables[name] = self.names.of("variable", name)
        return self.variables[name]

    def declare_several(self, name: str) -> str:
        """Spelling of the list of a scalar of which each round of a loop has its own."""
        self.declare(name)
        self.several[name] = self.names.of("several", f"{name}_of_each")
        return self.several[name]

    def spell(self, name: str) -> str:
        """Spelling of a name in an expression."""
        return spelled(self.variables)(name)

    def varies(self, value: Expr | Cond) -> bool:
        """Whether ``value`` may differ between cores."""
        return bool(value.free_vars & self.coordinates)

    def number(self, value: Expr) -> str:
        """An expression where it is used; extents that have a name are spelled by it."""
        return self.extents.get(value) or expression(value, self.spell)

    # --- views

    def view(self, view: View) -> str:
        """A view as Python text."""
        if view in self.renamed:
            return self.renamed[view]
        text = self.names.of("buffer", view.buffer.name)
        indices = list(view.indices)
        while indices and not isinstance(indices[-1], (Point, Range)):
            indices.pop()
        if indices:
            text += f"[{', '.join(self.index(text, i) for i in indices)}]"
        if view.reshape:
            text += f".shaped({', '.join(map(self.number, view.reshape))})"
        if view.order:
            text += f".ordered({', '.join(map(str, view.order))})"
        return text

    def index(self, owner: str, index: Index) -> str:
        """One index of a view of ``owner``."""
        if isinstance(index, Point):
            return self.start(owner, index.at)
        if not isinstance(index, Range):
            return ":"
        start, extent = self.start(owner, index.start), self.number(index.extent)
        if self.varies(index.start) or index.step != 1:
            step = f", {index.step}" if index.step != 1 else ""
            return f"span({start}, {extent}{step})"
        end = self.number(index.start + index.extent)
        if index.start == Expr.const(0):
            return f": {end}" if " " in end else f":{end}"
        return f"{start} : {end}" if " " in start + end else f"{start}:{end}"

    def start(self, owner: str, at: Expr) -> str:
        """Where a window begins; places that differ between cores are computed beforehand."""
        if not self.varies(at):
            return self.number(at)
        text = expression(at, self.spell)
        return self._hoist(self.hoisted.places, f"{owner}_place", at, [text], "")

    # --- guards and chains

    def when(self, cond: Cond | None) -> Cond | None:
        """A guard in its shortest form; None for one that holds on all cores."""
        found = cond and on_cores(cond, self.mesh)
        return None if found is not None and found.is_true else found

    def guard(self, cond: Cond, hint: str) -> str:
        """The set of cores on which ``cond`` holds."""
        short = self.short_name(cond)
        return self._hoist(
            self.hoisted.guards, short or hint, cond, [condition(cond, self.spell)], "phase.where"
        )

    def short_name(self, cond: Cond) -> str | None:
        """``y_is_0`` for ``y = 0``; None for anything longer."""
        if len(cond.clauses) != 1 or len(cond.clauses[0]) != 1:
            return None
        (constraint,) = cond.clauses[0]
        terms = constraint.expr.terms
        plain = len(terms) == 1 and str(terms[0][0]) in self.coordinates and terms[0][1] == 1
        if constraint.relation != "=" or not plain:
            return None
        return f"{terms[0][0]}_is_{-constraint.expr.constant}"

    def chain(self, op: Sweep, hint: str) -> str:
        """The sweep of ``op``, without its body."""
        arguments: list[Argument] = [expression(op.rank, self.spell), str(op.count)]
        return self._hoist(self.hoisted.chains, hint, op.rank, arguments, "phase.sweep")

    def _hoist(
        self,
        into: list[str],
        hint: str,
        value: Expr | Cond,
        arguments: list[Argument],
        function: str,
    ) -> str:
        """A name for ``function(arguments)``; a remembered function of what changes in a run."""
        text = f"{function}({', '.join(map(str, arguments))})"
        if text not in self.hoisted.known:
            name = self.names.fresh(hint)
            moving = sorted(self.variables[n] for n in value.free_vars - self.coordinates)
            pad = " " * _INDENT
            if moving:
                blank = [""] if into and into[-1] else []
                into += [*blank, f"{pad}@memo", f"{pad}def {name}({', '.join(moving)}):"]
                into += [*_value("return", function, arguments, _INDENT + 4), ""]
                name = f"{name}({', '.join(moving)})"
            else:
                into += _value(f"{name} =", function, arguments, _INDENT)
            self.hoisted.known[text] = name
        return self.hoisted.known[text]


def _value(head: str, function: str, arguments: list[Argument], indent: int) -> list[str]:
    if function:
        return call(indent, f"{head} {function}", arguments)
    return [f"{' ' * indent}{head} {arguments[0]}"]

"""Extents that are known only when a program runs, such as the rows that a prompt has on a core.

They depend on run-time scalars alone, so that all functions of an emitted program can name them,
and are never zero: an operand without elements would leave the length of an operation to the others
(the vendor's rule takes the first source that has a length).
"""

from __future__ import annotations

from meshc.analysis.csl.request_rounds import told_once
from meshc.analysis.csl.words import kept_atoms, run_time_extents
from meshc.analysis.proofs.isl import Scope, is_empty
from meshc.backends.csl.spelling.names import Names
from meshc.ir.affine import Atom, Cond, Expr
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check_extents(module: Module) -> None:
    """Raise ``csl-extent`` for an extent that depends on a loop or may be zero."""
    bounds = (
        Cond.between(low, Expr.var(name), high + 1) for name, (low, high) in module.scalars.items()
    )
    scope = Scope(Cond.all(bounds))
    proved: set[Expr] = set()
    for op in module.walk():
        for view in op.views():
            for extent in run_time_extents(view):
                if extent in proved:
                    continue
                if not extent.free_vars <= told_once(module).keys():
                    problem = "depends on more than the scalars of the run"
                elif not is_empty(Cond.le(extent, 0), scope):
                    problem = "may be 0"
                else:
                    proved.add(extent)
                    continue
                fail(
                    "csl-extent",
                    f"the extent {extent} of {view} {problem}",
                    op.span,
                    help="an extent known when the program runs is at least 1 and the same in all "
                    "steps of a loop",
                )


def kept_parts(module: Module, names: Names) -> dict[Atom, str]:
    """Variables for the divisions in such extents, each worked out once when a program starts."""
    return {atom: names.fresh(_name(atom)) for atom in kept_atoms(module)}


def _name(atom: Atom) -> str:
    """``len_by_2`` for a floor of ``len`` divided by 2, whatever is added before."""
    scalars = "_".join(sorted(Expr(((atom, 1),)).free_vars))
    divisor = getattr(atom, "divisor", None)
    return f"{scalars}_by_{divisor}" if divisor else f"part_of_{scalars}"

"""Quasi-affine expressions, conditions, piecewise functions and maps, each with one canonical text.

They are what guards, routes, colors and loop bounds are made of: integer-linear combinations of
names, ``mod``, ``floor`` division by a literal, and one-argument coordinate functions. The text is
ours and stable: ``parse_X(str(x)) == x`` and ``str(parse_X(t)) == t`` for canonical ``t``. Proofs
about these objects (empty, equal, injective, witness) live in ``meshc.analysis.proofs.isl``.
"""

from meshc.ir.affine.cond import Cond, Constraint
from meshc.ir.affine.expr import (
    Atom,
    Call,
    CoordinateFunction,
    Expr,
    Floor,
    IntArray,
    IntLike,
    Mod,
    Var,
)
from meshc.ir.affine.piecewise import AffineMap, MapPiece, Piecewise
from meshc.ir.affine.text import parse_cond, parse_expr, parse_map, parse_piecewise

__all__ = [
    "AffineMap",
    "Atom",
    "Call",
    "Cond",
    "Constraint",
    "CoordinateFunction",
    "Expr",
    "Floor",
    "IntArray",
    "IntLike",
    "MapPiece",
    "Mod",
    "Piecewise",
    "Var",
    "parse_cond",
    "parse_expr",
    "parse_map",
    "parse_piecewise",
]

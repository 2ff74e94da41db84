"""How far apart two runs of the same mathematics may be, and whether they are.

A sum of n rounded terms has, with unit roundoff u, a relative error of at most
``gamma_n = n u / (1 - n u)``, and the chain of all reductions that lead to a result behaves like
one sum over their total length. Rounding errors being close to independent, the error is in
practice within ``lambda sqrt(n) u`` with a small lambda (Higham and Mary, "A new approach to
probabilistic rounding error analysis", 2019). The bound used here is

    bound = SAFETY * sqrt(n) * u * largest magnitude of the reference

``SAFETY`` covers lambda, cancellation and what exponentials and divisions amplify. A mistake in a
program moves results by about their own size, many orders of magnitude more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from meshc.interp.named import Array
from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import graph, mesh, tile

SAFETY = 16
UNIT_ROUNDOFF = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "e4m3": 2.0**-4,
}

_PRODUCTS = (graph.Matmul, mesh.Gemv, mesh.Gemm, mesh.GemmT, mesh.ExpertGemv)
_SUMS = (graph.RmsNorm, graph.Centre, graph.Softmax, mesh.SquareSum, mesh.RowSum, mesh.Combine)


@dataclass(frozen=True)
class Comparison:
    """The largest difference between two runs, where it is, and the bound it should keep."""

    max_error: float
    bound: float
    place: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the runs are the same up to rounding (never when one is not a number)."""
        return self.max_error <= self.bound


def compare(
    reference: Sequence[Array],
    got: Sequence[Array],
    dtype: str,
    reduction_length: int,
    tags: int = 0,
) -> Comparison:
    """Compare arrays one by one; the one that exceeds its bound most is reported.

    ``dtype`` is that of the less precise run (``f64``, ``f32``, ``f16``, ``bf16``, or ``e4m3`` of
    coded caches), of whose words so many bits are ``tags``. Other numbers of arrays, other shapes,
    and infinities or NaN in different places differ without bound.
    """
    if len(reference) != len(got):
        return Comparison(np.inf, 0.0, f"{len(got)} results instead of {len(reference)}")
    found = [
        _compared(a, b, UNIT_ROUNDOFF[dtype] * 2**tags, reduction_length, f"result {i}")
        for i, (a, b) in enumerate(zip(reference, got, strict=True))
    ]
    return max(found, key=_excess, default=Comparison(0.0, 0.0))


def _excess(comparison: Comparison) -> float:
    if comparison.max_error == 0:
        return 0.0
    return comparison.max_error / comparison.bound if comparison.bound else np.inf


def _compared(reference: Array, got: Array, unit: float, length: int, name: str) -> Comparison:
    if reference.shape != got.shape:
        return Comparison(np.inf, 0.0, f"{name}: shape {got.shape}, not {reference.shape}")
    a, b = reference.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    error = np.where(a == b, 0.0, np.inf)
    error[finite] = np.abs(a[finite] - b[finite])
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    bound = SAFETY * sqrt(max(length, 1)) * unit * scale
    if not error.size:
        return Comparison(0.0, bound)
    worst = np.unravel_index(int(error.argmax()), error.shape)
    return Comparison(float(error[worst]), bound, f"{name}{[int(i) for i in worst]}")


def reduction_length(module: Module, dtype: str = "f32") -> int:
    """Terms that are summed one into the other in ``dtype`` on the way to a result.

    Counted over all ops and layers. Where sums are accumulated in a wider type than ``dtype``,
    only the store of each op rounds to it.
    """
    stores = dtype in ("f16", "bf16", "e4m3") and str(module.accumulate()) != dtype
    return max(1, sum(_block_length(block, module, stores) for block in module.blocks()))


def _block_length(block: Block, module: Module, stores: bool) -> int:
    return sum(_op_length(op, module, stores) for op in block.ops)


def _op_length(op: Op, module: Module, stores: bool) -> int:
    inside = sum(_block_length(region, module, stores) for region in op.regions)
    if isinstance(op, graph.Repeat):
        return module.dims[op.dim] * inside
    if isinstance(op, graph.Fuse):
        return inside
    if isinstance(op, tile.For):
        return _largest(op.count, module) * inside
    if isinstance(op, tile.Sweep):
        return op.count * inside
    return 1 if stores else _terms(op, module)


def _terms(op: Op, module: Module) -> int:
    """How many terms one op sums."""
    if isinstance(op, _PRODUCTS):
        return prod(module.dims[d] for d in op.contract)
    if isinstance(op, _SUMS):
        return module.dims[op.dim]
    if isinstance(op, mesh.AllReduce):
        return module.the_mesh().size(op.axis)
    return max(_view_extents(op, module), default=0)


def _view_extents(op: Op, module: Module) -> Iterator[int]:
    """Extents of all dims of the op's views: no kernel sums more terms than the largest."""
    for view in op.views():
        yield from (_largest(extent, module) for extent in view.shape())


def _largest(expr: Expr, module: Module) -> int:
    """``expr`` at the upper end of the run-time scalars; loop variables count as 0."""
    names = dict.fromkeys(expr.free_vars, 0)
    names |= {name: high for name, (_, high) in module.scalars.items()}
    return int(expr.evaluate(names))

"""Mesh level: a reduction with the residual sum and the norm that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.core import Op, register, tensor_type
from meshc.ir.declared import attribute
from meshc.ir.types import Layout, TensorType


@register("mesh.all_reduce_norm", "partial, residual, gain -> normed, stream")
@dataclass(eq=False)
class AllReduceNorm(Op):
    """``all_reduce`` over ``axis``, residual sum and RMSNorm over ``dim`` in one (TokenWeave, Gond
    and others, 2025).

    ``stream`` is the residual and the sum of ``partial`` over the axis, ``normed`` is ``stream /
    sqrt(mean(stream^2 over dim) + eps) * gain``. Each core of the axis adds up and normalises its
    own ``rows``, which lie over the axis in the residual and in the stream; every core has all rows
    of ``partial`` and gets all of ``normed``.
    """

    axis: str = ""
    rows: str = ""
    dim: str = ""
    eps: float = attribute(1e-5, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """The five values are one tensor and a gain, and lie as described."""
        partial, residual, gain = (tensor_type(operand) for operand in self.operands)
        normed, stream = (tensor_type(result) for result in self.results)
        if not partial.dims == residual.dims == normed.dims == stream.dims:
            self.reject("partial sums, residual and results must have the same dims")
        if self.rows == self.dim or not {self.rows, self.dim} <= {*partial.dims}:
            self.reject(f"'{self.rows}' and '{self.dim}' are no two dims of the partial sums")
        if gain.dims != (self.dim,):
            self.reject(f"the gain has dim {self.dim} alone")
        summed, kept = _layout(partial), _layout(residual)
        if summed.partial != (self.axis,) or summed.roots:
            self.reject(f"the operand must be a sum to be completed over {self.axis} alone")
        if _layout(normed) != Layout(summed.splits):
            self.reject("what is normalised must lie as the partial sums do")
        if _layout(stream) != kept or kept.partial or kept.roots:
            self.reject("the residual must be complete, and lie alike before and after")
        own = kept.split_of(self.rows)
        if own is None or own.axis != self.axis or own.copies > 1:
            self.reject(f"{self.rows} of the residual does not lie over {self.axis}")
        for dim in (self.rows, self.dim):
            split = summed.split_of(dim)
            if split is not None and (split.copies > 1 or split.block < extents[dim]):
                self.reject(f"a core must have all {dim} of the partial sums")
        for dim in partial.dims:
            others = [_layout(residual)] + ([_layout(gain)] if dim == self.dim else [])
            if dim != self.rows and any(o.split_of(dim) != summed.split_of(dim) for o in others):
                self.reject(f"{dim} does not lie alike in all operands")


def _layout(kind: TensorType) -> Layout:
    return kind.layout or Layout()

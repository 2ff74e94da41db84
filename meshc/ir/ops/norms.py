"""Mesh level: what scales rows by their sums of squares (RMSNorm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.core import Op, register, tensor_type
from meshc.ir.declared import attribute


@register("mesh.rms_scale", "x, squares: within x, gain: within x -> y: like x")
@dataclass(eq=False)
class RmsScale(Op):
    """``x / sqrt(s / extent + eps) * gain``; operands x, the sum of squares s, gain. The extent is
    that of ``dim``, times those of ``also``."""

    dim: str = ""
    also: tuple[str, ...] = ()
    eps: float = attribute(1e-5, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        for dim in (self.dim, *self.also):
            if dim not in tensor_type(self.operands[0]).dims:
                self.reject(f"'{dim}' is no dim of what is scaled")
            if dim in tensor_type(self.operands[1]).dims:
                self.reject(f"its sums are not of squares over '{dim}', which they have")


@register("mesh.inverse_rms", "squares -> y: like squares")
@dataclass(eq=False)
class InverseRms(Op):
    """``1 / sqrt(s / extent + eps)``, of sums of squares over the dim ``dim``; a product with it
    scales what was computed of values that are not normalised yet."""

    dim: str = ""
    eps: float = attribute(1e-5, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """``dim`` is one of the module's; the sums have it no more."""
        if self.dim not in extents or self.dim in tensor_type(self.operands[0]).dims:
            self.reject(f"its sums are not of squares over a dim '{self.dim}'")

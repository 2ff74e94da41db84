"""Mesh level: products of what cores hold, and those whose operands travel from core to core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshc.ir.core import Op, Operand, register, tensor_type
from meshc.ir.declared import attribute
from meshc.ir.ops import graph
from meshc.ir.types import Layout

PRODUCTS = ("cyclic_shift", "cannon", "summa", "allgather")
"""How the operands of a distributed product travel."""


@dataclass(eq=False)
class Product(Op):
    """The left operand times one or more right ones; ``contract`` and ``group`` as for
    ``graph.matmul``. ``IN_PLACE`` says that each dim of a result lies as it does in the operand."""

    IN_PLACE: ClassVar[bool] = True

    contract: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    def verify(self, extents: Mapping[str, int]) -> None:
        """Operands have the dims that are contracted, and results those that are left."""
        graph.check_product(self, extents, self.contract, self.group)
        reject_repeated(self, self.contract)
        left = tensor_type(self.operands[0]).dims
        for right, result in zip(self.operands[1:], self.results, strict=True):
            wanted = graph.matmul_dims(left, tensor_type(right).dims, self.contract, self.group)
            if tensor_type(result).dims != wanted:
                self.reject(f"the dims of {result} are not {', '.join(wanted)}, which are left")
            for dim in wanted:
                source = self.operands[0] if dim in left else right
                if self.IN_PLACE and not self.lies_alike(source, result, dim):
                    self.reject(f"{dim} of {result} does not lie as that of {source} does")

    def axes_of_contraction(self, operand: Operand) -> set[str]:
        """The axes that what is contracted lies over in an operand."""
        layout = tensor_type(operand).layout or Layout()
        return {s.axis for s in layout.splits if s.dim in self.contract}

    def lies_alike(self, source: Operand, result: Operand, dim: str) -> bool:
        """Whether a core has as many lanes of ``dim`` in both: what moves may turn them."""
        splits = [(tensor_type(v).layout or Layout()).split_of(dim) for v in (source, result)]
        axes = [split and (split.axis, split.block, split.kind, split.copies) for split in splits]
        return axes[0] == axes[1]


def reject_repeated(op: Op, dims: tuple[str, ...]) -> None:
    """Refuse to combine parts of ``dims`` of the first operand that several cores have."""
    if (tensor_type(op.operands[0]).layout or Layout()).repeats(dims):
        op.reject(f"several cores have the same part of {', '.join(dims)}")


@register("mesh.gemv", "left, right+ -> product+")
@dataclass(eq=False)
class Gemv(Product):
    """Local products of the left operand with one or more right ones (WaferLLM section 6.2).

    Contracts what the core holds of ``contract``; results are partial over the axes that
    split it. The left operand is one row, or as many as a core has of a batch or of a prompt.
    """

    def verify(self, extents: Mapping[str, int]) -> None:
        """Both sides have the same lanes of what is contracted, and of what both have."""
        super().verify(extents)
        left = tensor_type(self.operands[0])
        for right in self.operands[1:]:
            for dim in tensor_type(right).dims:
                if dim in left.dims and not self.lies_alike(self.operands[0], right, dim):
                    self.reject(f"{dim} of {right} does not lie as that of {self.operands[0]} does")


@register("mesh.gemm", "left, right+ -> product+")
@dataclass(eq=False)
class Gemm(Product):
    """Distributed matrix product by cyclic shifts (MeshGEMM, WaferLLM section 5.3).

    The left operand moves along ``axis`` and the right ones along the axis that crosses it.
    ``algo`` is ``cyclic_shift``; the placement of the axes makes its hops constant.
    ``left_aligned`` says that the left operand already lies skewed; of what else has to turn ahead
    of the first step a core may get its part by the shorter way around the ring (``both_ways``).
    """

    axis: str = ""
    algo: str = attribute("cyclic_shift", among=PRODUCTS)
    left_aligned: bool = False
    both_ways: bool = False

    def verify(self, extents: Mapping[str, int]) -> None:
        super().verify(extents)
        if not self.axis:
            self.reject("it names no axis along which the left operand moves")
        left = self.axes_of_contraction(self.operands[0])
        for right in self.operands[1:]:
            axes = self.axes_of_contraction(right)
            if not left or not axes or left & axes:
                self.reject(
                    f"{', '.join(self.contract)} must lie over one axis in {self.operands[0]} and "
                    f"over another in {right}"
                )


@register("mesh.gemm_t", "left, right+ -> product+")
@dataclass(eq=False)
class GemmT(Product):
    """``left @ right^T`` without a transpose (dist-GEMM-T, WaferLLM section 5.4).

    The right operand moves along the axis that crosses ``axis``, the accumulators along ``axis``,
    so that the result lies skewed as a following ``gemm`` wants its left operand. Cached rows turn
    ``both_ways`` ahead of the first step, or one.
    """

    IN_PLACE: ClassVar[bool] = False

    axis: str = ""
    algo: str = attribute("cyclic_shift", among=PRODUCTS)
    both_ways: bool = False

    def verify(self, extents: Mapping[str, int]) -> None:
        super().verify(extents)
        if not self.axis:
            self.reject("it names no axis along which the sums move")

"""Ports: which element of a logical tensor each lane of a buffer holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.ir.affine import Cond, Expr
from meshc.ir.rows import Paired
from meshc.ir.types import Split, TensorType
from meshc.passes.tile.expand.emitter import Emitter


class LaneMap:
    """Logical indices of a flattened group of dims, from a lane number.

    Lanes of the dim that is ``paired`` lie as pairs: lane 2i is the element i, lane 2i + 1 is
    i + D/2, in each run of D lanes.
    """

    def __init__(self, emitter: Emitter, paired: Paired | None = None) -> None:
        self.emitter = emitter
        self.paired = paired
        self.elements: dict[str, Expr] = {}
        self.conds: list[Cond] = []

    def add(
        self,
        dims: Sequence[str],
        kind: TensorType,
        lane: Expr,
        parts: Mapping[str, Expr] | None = None,
        layout_of: Sequence[Split] | None = None,
    ) -> int:
        """Dims of ``kind`` flattened into ``lane``, row-major; returns how many lanes there are.

        ``parts`` overrides which part of an axis is meant; ``layout_of`` the splits.
        """
        splits = {s.dim: s for s in (layout_of or (kind.layout.splits if kind.layout else ()))}
        blocks = [splits[d].block if d in splits else self.emitter.source.dims[d] for d in dims]
        total = 1
        for block in blocks:
            total *= block
        step = total
        for dim, block in zip(dims, blocks, strict=True):
            inner = (lane % step) if step != total else lane
            step //= block
            self.elements[dim] = self.element(dim, inner // step, splits.get(dim), parts or {})
        return total

    def element(self, dim: str, lane: Expr, split: Split | None, parts: Mapping[str, Expr]) -> Expr:
        """Logical index of lane ``lane`` of ``dim``."""
        found = lane
        if split is not None:
            part = parts.get(split.axis, self.emitter.index_of(split.axis))
            part = part // split.copies if split.copies > 1 else part
            size = self.emitter.mesh.size(split.axis)
            found = part * split.block + lane if split.kind == "block" else part + lane * size
        if self.paired is not None and dim == self.paired.dim:
            extent = self.emitter.source.dims[dim]
            self.conds.append(Cond.lt(found, extent))
            found = self.paired.element(found, extent)
        return found

    def where(self, *more: Cond) -> Cond | None:
        """The conditions gathered, or None when there are none."""
        conds = [c for c in (*self.conds, *more) if not c.is_true]
        return Cond.all(conds) if conds else None

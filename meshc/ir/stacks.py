"""Types in loops over layers: stacks outside, slices of one layer inside."""

from __future__ import annotations

from dataclasses import replace

from meshc.ir.ops import graph
from meshc.ir.types import Split, TensorType, Type


def inner_type(op: graph.Repeat, position: int, kind: Type, layers: Split | None) -> Type | None:
    """Type inside the body of an operand or result of ``op``: stacked ones lose their dim, and the
    split ``layers`` of it."""
    if position < op.carried:
        return kind
    if not isinstance(kind, TensorType) or kind.dims[:1] != (op.dim,):
        return None
    layout = kind.layout
    if layout is not None and layers is not None:
        layout = replace(layout, splits=tuple(s for s in layout.splits if s != layers))
    return TensorType(kind.dtype, kind.dims[1:], layout)


def has_split(kind: Type, split: Split) -> bool:
    """Whether a value of type ``kind`` is laid out with ``split``."""
    layout = kind.layout if isinstance(kind, TensorType) else None
    return layout is not None and split in layout.splits

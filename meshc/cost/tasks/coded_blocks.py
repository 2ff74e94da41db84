"""Weights of tasks that stay quantised: the blocks in which tasks stream them."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.analysis.tasks.tiles import multiplied_whole
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import View

FRAGMENT_ROWS = 16
"""Rows that tensor cores multiply at once."""


@dataclass(frozen=True)
class Coded:
    """Blocks of a matrix that stays quantised: codes of this element type, which are multiplied as
    ``values``, in ``groups`` for so many ``fragments`` of tensor cores, with scales and, if
    ``lifted``, least numbers of these, ``bytes`` in all. What are ``whole`` numbers may be
    multiplied as such."""

    codes: DType
    values: DType
    groups: int
    fragments: int
    bytes: int
    lifted: bool
    whole: bool = False

    def multiplied_whole(self, vectors: int, width: int) -> bool:
        """Whether these are, by so many ``vectors`` of ``width`` elements in a block's memory."""
        return multiplied_whole(self.codes, self.group, self.groups * self.group, vectors, width)

    @property
    def group(self) -> int:
        """Elements that have a scale."""
        return self.fragments * FRAGMENT_ROWS


def coded_of(module: Module, family: task.Family, stream: Value) -> Coded | None:
    """The blocks of codes of which a stream of ``family`` brings a part, None where it brings
    numbers."""
    decodes = {
        op.views()[0].buffer: op
        for op in family.regions[0].walk()
        if isinstance(op, tile.Compute) and op.kernel == "dequantise"
    }
    inner = {view.buffer for op in decodes.values() for view in op.views()[1:]}
    for numbers, op in decodes.items():
        _, codes, *others = op.views()
        coded = [decodes[view.buffer] for view in others if view.buffer in decodes]
        parts = [view for view in others if view.buffer not in decodes]
        parts += [view for one in coded for view in one.views()[1:]]
        if numbers in inner or stream not in [view.buffer for view in (codes, *parts)]:
            continue
        group = int(str(op.params["group"]))
        groups = int(str(coded[0].params["group"])) if coded else 1
        size = sum(_bits(view) for view in (codes, *parts)) * group * groups // _columns(codes)
        return Coded(
            codes.buffer_type.dtype,
            module.dtype(),
            groups,
            -(-group // FRAGMENT_ROWS),
            size * FRAGMENT_ROWS // 8,
            len(others) > 1,
        )
    return None


def _columns(view: View) -> int:
    """How many elements of a row a task has of a stream of rows."""
    return view.buffer_type.shape[-1]


def _bits(view: View) -> int:
    """Bits of a row of a stream of rows."""
    return _columns(view) * view.buffer_type.dtype.bits

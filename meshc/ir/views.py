"""Views: strided windows of a core's buffers, the operands of the tile level.

``%b[i, lo +: n, :]`` indexes leading dims: a point, a range given by start and extent
(``by s`` for a stride), or a whole dim; dims that are not written are whole.
``as [..]`` reshapes, ``order [..]`` permutes. A start may differ per core; an extent may depend
on loop variables and run-time scalars only, so that all cores work on equal shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.ir.affine import Expr
from meshc.ir.types import BufferType
from meshc.ir.values import Value
from meshc.support.spans import Span


@dataclass(frozen=True)
class Symbol:
    """A reference to something with a global name, such as a channel."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


@dataclass(frozen=True)
class Point:
    """One position of a dim; the dim disappears."""

    at: Expr

    def __str__(self) -> str:
        return str(self.at)


@dataclass(frozen=True)
class Range:
    """``extent`` positions from ``start``, ``step`` apart."""

    start: Expr
    extent: Expr
    step: int = 1

    def __str__(self) -> str:
        by = f" by {self.step}" if self.step != 1 else ""
        return f"{self.start} +: {self.extent}{by}"


@dataclass(frozen=True)
class Whole:
    """All positions of a dim."""

    def __str__(self) -> str:
        return ":"


Index = Point | Range | Whole


@dataclass(frozen=True)
class View:
    """A window of ``buffer``; see the module's text for the syntax."""

    buffer: Value
    indices: tuple[Index, ...] = ()
    reshape: tuple[Expr, ...] = ()
    order: tuple[int, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        text = str(self.buffer)
        if self.indices:
            text += f"[{', '.join(map(str, self.indices))}]"
        if self.reshape:
            text += f" as [{', '.join(map(str, self.reshape))}]"
        if self.order:
            text += f" order [{', '.join(map(str, self.order))}]"
        return text

    @property
    def dtype_text(self) -> str:
        """Element type of the buffer, as text."""
        return str(self.buffer_type.dtype)

    @property
    def buffer_type(self) -> BufferType:
        """Type of the buffer under the view."""
        if not isinstance(self.buffer.type, BufferType):
            raise TypeError(f"{self.buffer} is no buffer")
        return self.buffer.type

    def shape(self) -> tuple[Expr, ...]:
        """Extents of the view as expressions in loop variables and run-time scalars."""
        if self.reshape:
            extents = self.reshape
        else:
            full = self.buffer_type.shape
            kept: list[Expr] = []
            for position, extent in enumerate(full):
                index = self.indices[position] if position < len(self.indices) else Whole()
                if isinstance(index, Whole):
                    kept.append(Expr.const(extent))
                elif isinstance(index, Range):
                    kept.append(index.extent)
            extents = tuple(kept)
        return tuple(extents[i] for i in self.order) if self.order else extents

    @property
    def free_vars(self) -> frozenset[str]:
        """The names on which its place and its extents depend."""
        values: list[Expr] = [*self.reshape]
        for index in self.indices:
            if isinstance(index, Point):
                values.append(index.at)
            elif isinstance(index, Range):
                values += [index.start, index.extent]
        return frozenset(name for value in values for name in value.free_vars)

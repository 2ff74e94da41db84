"""Types of values: element types, layouts, tensors over named dims, buffers and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from meshc.support.shared import hashed_once, shared

_LOWEST = {
    "f32": -(2 - 2.0**-23) * 2.0**127,
    "f16": -65504.0,
    "bf16": -(2 - 2.0**-7) * 2.0**127,
    "i32": -(2.0**31),
    **dict.fromkeys(("u8", "u6", "u5", "u4", "u3", "u2"), 0.0),
    "e4m3": -448.0,
    "e2m1": -6.0,
}


class DType(Enum):
    """Element type; the value is its text in ``.mesh``, ``.meshir`` and on the command line."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    U8 = "u8"
    U6 = "u6"
    U5 = "u5"
    U4 = "u4"
    U3 = "u3"
    U2 = "u2"
    E4M3 = "e4m3"
    E2M1 = "e2m1"

    @property
    def bits(self) -> int:
        """Bits of one element in a core's memory."""
        if self in _CODE_BITS:
            return _CODE_BITS[self]
        return 32 if self in (DType.F32, DType.I32) else 16

    @property
    def bytes(self) -> int:
        """Bytes of one element in a core's memory, of a code those that hold it."""
        return -(-self.bits // 8)

    @property
    def coded(self) -> bool:
        """Whether elements are codes of quantised weights, whole numbers from 0 on or floats of a
        few bits, which only `dequantise` reads."""
        return self in _CODE_BITS

    @property
    def floats(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self is not DType.I32 and not self.coded

    @property
    def half(self) -> bool:
        """Whether it is a floating-point type of 16 bits."""
        return self in (DType.F16, DType.BF16)

    @property
    def lowest(self) -> float:
        """The least finite number."""
        return _LOWEST[self.value]

    def __str__(self) -> str:
        return self.value


_CODE_BITS = {
    DType.U8: 8,
    DType.U6: 6,
    DType.U5: 5,
    DType.U4: 4,
    DType.U3: 3,
    DType.U2: 2,
    DType.E4M3: 8,
    DType.E2M1: 4,
}
SplitKind = Literal["block", "cyclic", "shift"]
_KIND_MARK = {"block": "", "cyclic": "%", "shift": "~"}


@dataclass(frozen=True)
class Split:
    """How one dim lies on one mesh axis.

    ``block`` kind: part ``i`` of the axis holds elements ``[i*block, (i+1)*block)``.
    ``cyclic``: part ``i`` holds the elements congruent to ``i`` modulo the axis size.
    ``shift``: like cyclic in counts (floor or ceil per part), but the order is kept by the
    KV-cache shift of WaferLLM section 4.3.
    ``skew`` names the axis whose rank rotates the parts (Cannon's alignment), or is empty.
    ``block`` is the number of lanes each core keeps, padding included.
    ``copies`` neighbours along the axis hold the same ``block`` part, so that there are that many
    times fewer parts than cores: of key heads, of which each is read by several queries.
    """

    dim: str
    axis: str
    block: int
    kind: SplitKind = "block"
    skew: str = ""
    copies: int = 1

    def __str__(self) -> str:
        skew = f">>{self.skew}" if self.skew else ""
        copies = f"*{self.copies}" if self.copies != 1 else ""
        return f"{self.dim}_{self.axis}{copies}{skew}{_KIND_MARK[self.kind]}:{self.block}"


@hashed_once
@dataclass(frozen=True)
class Layout:
    """Where the elements of a value live: one split per distributed dim, axes still to be summed,
    axes of which only the first core has them.

    A dim that is not named is whole on every core; an axis that is not named replicates.
    """

    splits: tuple[Split, ...] = ()
    partial: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()

    def split_of(self, dim: str) -> Split | None:
        """The split of ``dim``, or None when every core holds all of it."""
        for split in self.splits:
            if split.dim == dim:
                return split
        return None

    def on_axis(self, axis: str) -> tuple[Split, ...]:
        """The splits along ``axis``, in the order of the dims."""
        return tuple(s for s in self.splits if s.axis == axis)

    def repeats(self, dims: Sequence[str]) -> bool:
        """Whether several cores of an axis hold the same part of one of ``dims``, so that a sum
        over the axis would count it several times."""
        return any(s.copies > 1 for s in self.splits if s.dim in dims)

    def axes(self) -> tuple[str, ...]:
        """Every axis the layout names, without repeats, in order."""
        return tuple(dict.fromkeys([s.axis for s in self.splits] + [*self.partial, *self.roots]))

    def __str__(self) -> str:
        words = [str(s) for s in self.splits] + [f"+{axis}" for axis in self.partial]
        words += [f"@{axis}" for axis in self.roots]
        return "<" + " ".join(words) + ">"


@hashed_once
@dataclass(frozen=True)
class TensorType:
    """A tensor over named dims; extents live in the module's ``dims``. No layout at graph level."""

    dtype: DType
    dims: tuple[str, ...]
    layout: Layout | None = None

    def shape(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Logical extents of the dims, in order."""
        return tuple(extents[d] for d in self.dims)

    def local_shape(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Extents of the part that one core keeps, padding included."""
        layout = self.layout or Layout()
        splits = [layout.split_of(d) for d in self.dims]
        return tuple(
            extents[d] if split is None else split.block
            for d, split in zip(self.dims, splits, strict=True)
        )

    @shared
    def with_layout(self, layout: Layout | None) -> TensorType:
        """The same tensor laid out as ``layout``."""
        return TensorType(self.dtype, self.dims, layout)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.dims)}]{self.layout or ''}"


@dataclass(frozen=True)
class BufferType:
    """Memory of one core: element type and extents (tile level)."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes per core, without alignment. Two codes of 4 bits share a byte."""
        bits = self.dtype.bits
        for extent in self.shape:
            bits *= extent
        return -(-bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class TokenType:
    """The end of one asynchronous transfer, to be waited for."""

    def __str__(self) -> str:
        return "token"


Type = TensorType | BufferType | TokenType

"""The arguments of host transfers, in the present form and in that of SDKs before 0.7."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshc.support.diagnostics import fail

_PLACES = ("px", "py", "w", "h", "elem_per_pe")
_OPTIONS = ("streaming", "data_type", "order", "nonblock")
_OLD = ("streaming", *_PLACES, "data_type", "nonblock")


@dataclass(frozen=True)
class Transfer:
    """A rectangle of PEs, elements for each of them, and how they travel.

    ``px``, ``py``, ``w`` and ``h`` count PEs; ``data_type`` and ``order`` are numbers of
    MemcpyDataType and MemcpyOrder; ``streaming`` and ``nonblock`` are 0 or 1. With strides ``w``
    and ``h`` count the PEs that receive.
    """

    px: int
    py: int
    w: int
    h: int
    elem_per_pe: int
    streaming: int = 0
    data_type: int = 0
    order: int = 0
    nonblock: int = 0
    row_stride: int = 1
    col_stride: int = 1

    @property
    def steps(self) -> tuple[int, int]:
        """How far PEs that receive are apart, along a row and along a column."""
        return self.row_stride, self.col_stride

    @property
    def region(self) -> tuple[int, int, int, int]:
        """The rectangle of PEs."""
        return self.px, self.py, self.w, self.h


def strided(args: tuple[Any, ...], options: dict[str, Any]) -> Transfer:
    """A transfer to PEs of a rectangle that are ``row_stride`` apart in a row and ``col_stride`` in
    a column, the first of each among them. Raises MeshcError ``csl-host``."""
    names = (*_PLACES, "row_stride", "col_stride")
    given = {**dict(zip(names, args, strict=False)), **options}
    strides = [given.pop(name, None) for name in names[5:]]
    if len(args) > len(names) or not all(isinstance(s, int) and s > 0 for s in strides):
        fail("csl-host", "memcpy_h2d_stride needs a row_stride and a col_stride of 1 or more")
    how = transfer_of("memcpy_h2d_stride", (), given)
    w, h = (1 + (n - 1) // s for n, s in zip((how.w, how.h), strides, strict=True))
    return replace(how, w=w, h=h, row_stride=strides[0], col_stride=strides[1])


def transfer_of(function: str, args: tuple[Any, ...], options: dict[str, Any]) -> Transfer:
    """What is given behind the arrays of ``function``.

    The present form has five positions and names the rest; the old one has ``streaming`` in front
    and ``data_type`` and ``nonblock`` behind, all by position. Raises MeshcError ``csl-host``.
    """
    old = len(args) > len(_PLACES) and isinstance(args[0], bool)
    names = _OLD if old else _PLACES
    if len(args) > len(names):
        fail(
            "csl-host",
            f"{function} takes {len(names)} arguments behind the arrays, found {len(args)}",
            help=f"give {', '.join(_PLACES)} by position and {', '.join(_OPTIONS)} by name",
        )
    given = {**dict(zip(names, args, strict=False)), **options}
    unknown = [name for name in options if name not in (*_PLACES, *_OPTIONS)]
    if unknown:
        fail("csl-host", f"{function} has no argument '{unknown[0]}'")
    missing = [name for name in _PLACES if name not in given]
    if missing:
        fail("csl-host", f"{function} lacks the argument '{missing[0]}'")
    return Transfer(**{name: int(value) for name, value in given.items()})

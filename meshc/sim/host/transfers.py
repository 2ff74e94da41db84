"""The arguments of host transfers, in the present form and in that of SDKs before 0.7."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshc.support.diagnostics import fail

_PLACES = ("px", "py", "w", "h", "elem_per_pe")
_OPTIONS = ("streaming", "data_type", "order", "nonblock")
_OLD = ("streaming", *_PLACES, "data_type", "nonblock")


@dataclass(frozen=True)
class Transfer:
    """A rectangle of PEs, elements for each of them, and how they travel.

    ``px``, ``py``, ``w`` and ``h`` count PEs; ``data_type`` and ``order`` are numbers of
    MemcpyDataType and MemcpyOrder; ``streaming`` and ``nonblock`` are 0 or 1.
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

    @property
    def region(self) -> tuple[int, int, int, int]:
        """The rectangle of PEs."""
        return self.px, self.py, self.w, self.h


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

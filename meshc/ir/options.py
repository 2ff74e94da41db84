"""Options of a module's header: what each may be, so that passes read them without a doubt.

An option that is not listed is a note of whoever wrote it, and no pass reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from meshc.ir.types import DType

if TYPE_CHECKING:
    from meshc.ir.module import Scalar

MAX_EXTENT = 2**40
ALIGNMENTS = ("host", "device")
RESULTS = ("roots", "everywhere")

_DTYPES = tuple(d.value for d in DType)
_CHOICES = {"align": ("", *ALIGNMENTS), "result": ("", *RESULTS)}
_GRID = re.compile(r"\d{1,5}x\d{1,5}")


def option_mistakes(options: Mapping[str, Scalar], dims: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with ``options`` of a module that declares ``dims``, a sentence each."""
    for name, value in options.items():
        words = _mistake(name, value, dims)
        if words:
            yield f"option {name} is {_shown(value)}, {words}"


def _mistake(name: str, value: Scalar, dims: Mapping[str, int]) -> str:
    """What ``value`` fails to be; empty when it is fine."""
    if name in ("dtype", "accumulate", "weights"):
        return "" if value in _DTYPES else "no element type"
    if name in ("capacity", "seq"):
        return "" if _is_count(value) else f"no whole number from 1 to {MAX_EXTENT}"
    if name in _CHOICES:
        known = ", ".join(c for c in _CHOICES[name] if c)
        return "" if value in _CHOICES[name] else f"none of {known}"
    if name == "grid":
        sound = isinstance(value, str) and _GRID.fullmatch(value)
        return "" if sound else "no mesh: write columns x rows, such as 24x24"
    if name == "row_dim":
        return "" if value in ("", *dims) else "no dim of this module"
    if name == "head_dims":
        return _head_dims_mistake(value, dims)
    if name in ("phase", "paired", "gemm", "all_reduce", "model"):
        return "" if isinstance(value, str) else "no text"
    return ""


def _is_count(value: Scalar) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 1 <= value <= MAX_EXTENT  # type: ignore[operator]


def _head_dims_mistake(value: Scalar, dims: Mapping[str, int]) -> str:
    """Query heads, key heads, lanes of a head, keys and rows, or nothing."""
    names = value.split() if isinstance(value, str) else ["?"]
    if not names:
        return ""
    if len(names) != 5 or not set(names) <= set(dims):
        return "which does not name five dims of this module"
    query, key = dims[names[0]], dims[names[1]]
    return "" if query % max(key, 1) == 0 else f"but {key} heads do not divide {query}"


def _shown(value: Scalar) -> str:
    return f"'{value[:80]}'" if isinstance(value, str) else str(value)

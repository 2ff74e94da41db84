"""Options of a module's header: what each may be, so that passes read them without a doubt.

An option that is not listed is a note of whoever wrote it, and no pass reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from meshc.ir.types import DType

if TYPE_CHECKING:
    from meshc.ir.module import Scalar

MAX_EXTENT = 2**40

_DTYPES = tuple(d.value for d in DType)
_SECTIONS = {
    "row_dim": "rows dim = L, capacity = S",
    "capacity": "rows dim = L, capacity = S",
    "paired": "paired wq = D, wk = D",
    "head_dims": "attention query = H, key = G, lane = D, keys = S",
}


_SETTINGS = {
    "grid": "partition{grid=24x24} or --mesh 24x24; below the graph level the section mesh says it",
    "gemm": "partition{gemm=transposed}, select-gemm{algo=cannon} or --algo gemm=cannon",
    "align": "partition{align=host} or --align host",
    "result": "partition{result=roots} or --result roots",
    "all_reduce": "select-collective{algo=k_tree,k=2} or --algo all_reduce=k_tree:2",
}


def option_mistakes(options: Mapping[str, Scalar]) -> Iterator[str]:
    """What is wrong with ``options`` of a module, a sentence each."""
    for name, value in options.items():
        if name in _SECTIONS:
            words = f"a section of the header now says {name}, such as: {_SECTIONS[name]}"
            yield f"{words}; compile again what an older version printed"
            continue
        if name in _SETTINGS:
            yield f"{name} is no option of a header but a setting of passes: {_SETTINGS[name]}"
            continue
        words = _mistake(name, value)
        if words:
            yield f"option {name} is {_shown(value)}, {words}"


def _mistake(name: str, value: Scalar) -> str:
    """What ``value`` fails to be; empty when it is fine."""
    if name in ("dtype", "accumulate", "weights"):
        return "" if value in _DTYPES else "no element type"
    if name == "seq":
        return "" if _is_count(value) else f"no whole number from 1 to {MAX_EXTENT}"
    if name in ("phase", "model"):
        return "" if isinstance(value, str) else "no text"
    return ""


def _is_count(value: Scalar) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 1 <= value <= MAX_EXTENT  # type: ignore[operator]


def _shown(value: Scalar) -> str:
    return f"'{value[:80]}'" if isinstance(value, str) else str(value)

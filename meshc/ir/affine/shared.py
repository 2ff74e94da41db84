"""Results that equal operands share.

Affine objects never change, and a compile builds the same few thousand of them over and over. What
an operation gives is therefore kept and handed out again to equal operands, and with it what the
object knows of itself: its text, its hash and its names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

RESULTS = 1 << 14
"""How many results of an operation are kept, those asked for last."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def shared(operation: Callable[_P, _R]) -> Callable[_P, _R]:
    """``operation``, whose result depends on its operands alone, done once for equal ones.

    Operands are hashable and results never change. What raises is done again each time.
    """
    return cast(Callable[_P, _R], lru_cache(RESULTS)(operation))

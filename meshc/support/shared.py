"""Results that equal arguments share.

Types, expressions and declarations never change, and a compile builds the same few thousand of
them over and over. What a function gives is therefore kept and handed out again to equal
arguments, and with it what an object found out about itself: its text, its hash, its names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

RESULTS = 1 << 12
"""How many results of a function are kept, those asked for last."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def shared(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function``, whose result depends on its arguments alone, called once for equal ones.

    Arguments are hashable and results never change. A call that raises is made again each time.
    """
    return cast(Callable[_P, _R], lru_cache(RESULTS)(function))

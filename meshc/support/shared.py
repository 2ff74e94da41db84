"""Results that equal arguments share.

Types, expressions and declarations never change, and a compile builds the same few thousand of
them over and over. What a function gives is therefore kept and handed out again to equal
arguments, and with it what an object found out about itself: its text, its hash, its names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast

RESULTS = 1 << 12
"""How many results of a function are kept, those asked for last."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=type)
_HASH = "_hash"


def shared(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function``, whose result depends on its arguments alone, called once for equal ones.

    Arguments are hashable and results never change. A call that raises is made again each time.
    """
    return cast(Callable[_P, _R], lru_cache(RESULTS)(function))


def hashed_once(cls: _C) -> _C:
    """The frozen dataclass ``cls``, each object of which works out its hash once.

    Hashes of texts differ from process to process, so one is neither pickled nor copied.
    """
    work_out = cast(Callable[[Any], int], cls.__hash__)

    def hash_of(self: Any) -> int:
        found: int
        try:
            found = self._hash
        except AttributeError:  # asked the first time
            found = self.__dict__[_HASH] = work_out(self)
        return found

    def state_of(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _HASH}

    for name, function in (("__hash__", hash_of), ("__getstate__", state_of)):
        setattr(cls, name, function)
    return cls

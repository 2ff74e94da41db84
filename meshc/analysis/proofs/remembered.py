"""Questions that were answered before are not asked again.

Each fact is checked behind each pass that promises it, and most passes leave most guards and
channels as they are: of the questions of a compile more than nine in ten repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from meshc.ir.affine import AffineMap, Cond, Piecewise

ANSWERS = 4096
"""How many are kept, those asked for last."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class _Question:
    """A call of ``function``, told from others by the text of its arguments."""

    function: Callable[..., object]
    texts: Hashable
    arguments: tuple[Any, ...] = field(compare=False)
    named: Mapping[str, Any] = field(compare=False)


def remembered(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """``function``, whose answer depends on its arguments alone, asked once for equal ones.

    Arguments are affine objects, text, sequences and mappings of these, and dataclasses made of
    them. Calls that raise are not remembered.
    """

    @wraps(function)
    def answer(*arguments: _P.args, **named: _P.kwargs) -> _R:
        texts = _texts((arguments, named))
        found = _answered(_Question(function, texts, arguments, named))
        return cast(_R, found if found is None or isinstance(found, int) else deepcopy(found))

    return answer


@lru_cache(ANSWERS)
def _answered(question: _Question) -> object:
    return question.function(*question.arguments, **question.named)


def _texts(value: object) -> Hashable:
    """What tells ``value`` from others of its kind; equal texts of affine objects are equal."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, AffineMap):
        return value.inputs, str(value)
    if isinstance(value, Cond | Piecewise):
        return str(value)
    if isinstance(value, Mapping):
        return tuple((name, _texts(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_texts, value))
    return tuple(_texts(one) for one in vars(value).values())

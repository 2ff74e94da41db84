"""How values are read by the ops that take them, and the statements that several ops make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshc.torch.exported.followed_dims import Dim, settled, unite
from meshc.torch.exported.statements import Param, Statement
from meshc.torch.exported.values import (
    Followed,
    Known,
    Lanes,
    Product,
    Root,
    Scaled,
    Several,
    Stored,
    Swapped,
    Tokens,
    Turned,
    Unit,
)


class Other(Exception):
    """An op that is read, used in another way than those that are."""


def values_in(given: Any) -> tuple[Any, ...]:
    """The values of several, or of a list."""
    return given.values if isinstance(given, Several) else tuple(given)


def followed(value: Any) -> Followed:
    """``value``, which may repeat itself along an axis."""
    if isinstance(value, Unit):
        return normed(value, None)
    if not isinstance(value, Followed):
        raise Other(f"it takes {_WORDS.get(type(value), 'another value')}")
    return value


def whole(value: Any) -> Followed:
    """``value`` as one that statements can take."""
    found = followed(value)
    if found.is_repeated():
        raise Other("it takes a tensor that is repeated along an axis")
    return found


_WORDS: dict[type, str] = {
    Tokens: "token ids",
    Known: "what hangs on positions alone",
    Stored: "a param",
    Root: "a mean square that has become no norm",
    Lanes: "some lanes of a tensor",
    Swapped: "lanes that were swapped",
    Scaled: "a tensor times a table of positions",
    Turned: "some lanes, turned by RoPE, without the others",
    Several: "several tensors",
}


def mapped(text: str, given: Followed, stem: str) -> Followed:
    """A function of ``given``, whose statement is ``text``, by element."""
    found = Statement(text, (given.statement,), given.statement.dims, stem)
    return Followed(found, given.axes)


def without(dims: Sequence[Dim], last: Sequence[Dim]) -> tuple[Dim, ...]:
    """``dims`` but the ``last`` ones."""
    gone = set(settled(last))
    return tuple(dim for dim in settled(dims) if dim not in gone)


def number(value: Any) -> float | None:
    """``value`` as a constant of the language; None where it is no number."""
    found = value.value if isinstance(value, Known | Stored) else value
    if isinstance(found, torch.Tensor):
        return float(found.item()) if found.numel() == 1 else None
    return float(found) if isinstance(found, int | float) else None


def hint(stored: Stored) -> str:
    """About what a param is called."""
    return stored.names[0] if stored.names else "constant"


def numbers(stored: Stored) -> Any:
    """The elements, f32."""
    return stored.value.detach().cpu().float().numpy()


def normed(unit: Unit, gain: Stored | None) -> Followed:
    """``unit`` times ``gain``, or ones."""
    given = unit.of
    last = given.axes[-1]
    if gain is None:
        gain = Stored(torch.ones(given.shape[-1]), ("ones",))
    if not isinstance(gain, Stored) or gain.value.shape != (given.shape[-1],):
        raise Other("its gain is not one of the last axis")
    param = Param(hint(gain), last, numbers(gain))
    text = f"rms_norm({{}}, {{}}, eps = {unit.eps!r})"
    found = Statement(text, (given.statement, param), given.statement.dims, "h")
    return Followed(found, given.axes)


def product(given: Followed, weight: Stored, bias: Stored | None, table: Param | None) -> Product:
    """``given`` times the transpose of ``weight`` plus ``bias``; of the transpose of ``table``,
    which holds the same numbers, where there is one."""
    outer = Dim(weight.value.shape[0])
    if table is not None:
        words, width = table.dims
        unite(given.axes[-1], (width,))
        unite((outer,), (words,))
        text, param = "{} @ transpose({})", table
    else:
        text, param = "{} @ {}", Param(hint(weight), (*given.axes[-1], outer), numbers(weight).T)
    own = (*without(given.statement.dims, given.axes[-1]), outer)
    found = Statement(text, (given.statement, param), own, "p")
    if bias is not None:
        added = Param(hint(bias), (outer,), numbers(bias))
        found = Statement("{} + {}", (found, added), own, "p")
    return Product(found, (*given.axes[:-1], (outer,)), given, weight, bias)

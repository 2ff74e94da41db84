"""What runs are told of a batch of tokens (``batch-tokens``): whose each is, and where it stands.
The graph is told of each token's own position, -1 for one that is absent; tasks are told how many
tokens of its owner are cached, and how many are read in front of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meshc.interp.named import Array
from meshc.ir.batch import AHEAD, OWNER, POSITION, batch_of
from meshc.ir.module import Module
from meshc.support.diagnostics import fail


def check_batch(module: Module, scalars: Mapping[str, int | tuple[int, ...]]) -> None:
    """Refuse what a run of ``module`` is told of a batch of tokens where these do not come in the
    order of their positions, those of a request each once, or where tasks are told of tokens of a
    request that do not stand one behind the other. Raises ``interp-scalar``."""
    names = OWNER, POSITION, *([AHEAD] if AHEAD in module.scalars else [])
    owners, positions, *ahead = (np.broadcast_to(scalars[n], batch_of(module)) for n in names)
    if ahead:
        positions = _positions_of_tasks(owners, positions, *ahead)
    _check_order(owners, positions)


def told_alike(one: Module, other: Module) -> bool:
    """Whether runs of ``one`` are told what those of ``other`` are, perhaps in other words."""
    batches = OWNER in one.scalars and OWNER in other.scalars
    own, others = (
        {n: r for n, r in m.scalars.items() if not (batches and n in (POSITION, AHEAD))}
        for m in (one, other)
    )
    return own == others


def in_words_of(
    module: Module, scalars: Mapping[str, int | Sequence[int]]
) -> dict[str, int | Sequence[int]]:
    """``scalars`` of a graph as runs of ``module`` are told of them. Tasks have no absent tokens:
    such a one is read behind the token in front of it, into a place of the cache that its request
    writes again before it reads it."""
    if AHEAD not in module.scalars:
        return dict(scalars)
    size, (_, last) = batch_of(module), module.scalars[POSITION]
    owners, own = (np.broadcast_to(scalars[n], size).tolist() for n in (OWNER, POSITION))
    before, ahead = [last] * size, [0] * size
    for row in range(size):
        if row and (own[row] < 0 or owners[row] == owners[row - 1]):
            owners[row] = owners[row - 1]
            before[row], ahead[row] = before[row - 1], ahead[row - 1] + 1
        elif own[row] >= 0:
            before[row] = own[row]
    each = {OWNER: owners, POSITION: before, AHEAD: ahead}
    return {**scalars, **{name: tuple(values) for name, values in each.items()}}


def of_present(array: Array, scalars: Mapping[str, int | Sequence[int]]) -> Array:
    """``array``, a result of which each token of a batch has a row, with zeros for those that are
    absent by ``scalars``, which are those of a graph; any other as it is."""
    if OWNER not in scalars:
        return array
    there = np.ravel(scalars[POSITION]) >= 0
    if len(there) not in (1, len(array)):
        return array
    return np.where(there.reshape(-1, *[1] * (array.ndim - 1)), array, 0)


def _positions_of_tasks(owners: Array, before: Array, ahead: Array) -> Array:
    """The positions of the tokens of a batch, of which a run of tasks is told how many tokens of
    their owner are cached and how many stand in front of each. Raises ``interp-scalar`` where it is
    told of others."""
    first = np.arange(len(owners)) - ahead
    for token, request in enumerate(owners.tolist()):
        (every,) = np.nonzero(owners == request)
        same = np.all(first[every] == every[0]) and np.all(before[every] == before[token])
        if not same or every[-1] - every[0] + 1 != len(every):
            words = f"those of request {request} are not told so"
            fail("interp-scalar", f"tokens of a request stand one behind the other: {words}")
    return np.asarray(before + ahead)


def _check_order(owners: Array, positions: Array) -> None:
    """Refuse tokens of a batch that do not stand in the order of their positions for each request,
    each once, those of position -1 excepted."""
    last: dict[int, int] = {}
    for owner, position in zip(owners.tolist(), positions.tolist(), strict=True):
        if 0 <= position <= last.get(owner, -1):
            words = f"position {position} of request {owner} stands behind its {last[owner]}"
            fail("interp-scalar", f"tokens of a request come in the order of positions: {words}")
        last[owner] = max(position, last.get(owner, -1))

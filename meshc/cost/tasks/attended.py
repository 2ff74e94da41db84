"""How tasks attend to what is cached: for how many tokens at once, by tiles of tensor cores or
statement by statement, and how many instructions the latter takes.

Statement by statement threads have elements of scores, and of sums, each of which they add up by
themselves out of a block's memory, and meet behind each statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from meshc.analysis.cuda.blocks import FRAGMENT, WARPS, tile_query_bytes, tile_work_bytes
from meshc.analysis.tasks.tiles import (
    attended_by_tiles,
    group_attention_bytes,
    latent_neighbours,
    neighbours,
    padded_heads,
)
from meshc.ir.batch import most_of_request
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.values import Value
from meshc.ir.views import View

OF_SCORE, OF_TURNED_SCORE, OF_SUM = 4.6, 10.6, 6.5
"""Instructions of a warp for a product of 32 scores, whose keys lie in their order or in chunks
that are exchanged, and of 32 sums."""
OF_FLOAT_SCORE, OF_FLOAT_SUM = 17.2, 23.3
"""The same where caches are floats of eight bits."""
_TAKEN = ("copy", "gemm", "merge_softmax")
"""Kernels that take what there is, and need no room for it."""
OF_ROUND = 300
"""Those of a warp for the rest of what it does for a tile: weights and maxima, meetings, and what
loops begin with. All are counted in machine code (docs/step-times.md)."""
_LANES, _SCHEDULERS = 32, 4


@dataclass(frozen=True)
class Attended:
    """The attention of a family to tiles of so many ``tokens``: ``queries`` of a task, the lanes of
    each part of a key, and those of the values, which latents have in a part of the keys; none of
    those that another family multiplies, where blocks share the lanes of a head."""

    queries: int
    tokens: int
    lanes: tuple[int, ...]
    values: int

    @property
    def by_tiles(self) -> bool:
        """Whether tensor cores do it."""
        sizes = self.queries, self.lanes, self.values, self.tokens
        return bool(self.lanes and self.values) and attended_by_tiles(*sizes)

    @property
    def of_latents(self) -> bool:
        """Whether values are lanes of the keys."""
        return len(self.lanes) > 1

    def issued(self, of_floats: bool) -> float:
        """Instructions of warps for a tile, statement by statement: of those that schedulers have
        one after the other, as many as the busiest of them has for each."""
        turned = sum(self.lanes) % FRAGMENT == 0
        score = OF_TURNED_SCORE if turned else OF_SCORE
        of_score, of_sum = (OF_FLOAT_SCORE, OF_FLOAT_SUM) if of_floats else (score, OF_SUM)
        found = _warps(self.queries * self.tokens) * sum(self.lanes) * of_score
        found += WARPS * OF_ROUND if self.values else 0
        return found + _warps(self.queries * self.values) * self.tokens * of_sum


def _warps(elements: int) -> int:
    """Warps that have so many elements, so that each scheduler has as many as the busiest."""
    return -(-elements // (_LANES * _SCHEDULERS)) * _SCHEDULERS


def attended(family: task.Family) -> Attended | None:
    """How a ``family`` attends to the cached tokens that it streams; None where it does not."""
    products = [*_products(family)]
    if not products:
        return None
    scores = [op for op in products if op.params["transposed"]]
    sums = [op for op in products if not op.params["transposed"]]
    shapes = [[extent.constant for extent in op.views()[0].shape()] for op in scores or sums]
    keys = tuple(op.views()[2].shape()[-1].constant for op in scores)
    values = sum(op.views()[2].shape()[-1].constant for op in sums)
    tokens = products[0].views()[2].shape()[0].constant
    return Attended(prod(shapes[0][:-1]), tokens, keys, values)


def attending_bytes(module: Module, family: task.Family) -> int:
    """Bytes of a block's memory that ``family`` takes to attend: what a routine works in, and what
    it makes of queries, keys and values before; statement by statement all values of a task."""
    found = attended(family)
    if found is None:
        return 0
    made, lanes, new = _made(family, found.by_tiles), sum(found.lanes), most_of_request(module)
    if not found.by_tiles:
        return made
    most, together = attended_at_once(module, family), 1
    if found.of_latents:  # queries come as fragments right away
        queries = most * padded_heads(found.queries) if most > 1 else found.queries
        work = tile_work_bytes(queries, lanes, found.tokens, twice=True)
        return tile_query_bytes(queries, lanes, twice=True) + work + 8 * queries + 2 * new * lanes
    if most > 1:
        _, together = neighbours(new, found.queries, lanes)
    parts = group_attention_bytes(found.queries, lanes, most // together, together)
    own = 4 * most * (found.queries + 2) * lanes
    if most > 1:
        own = max(own, parts.pop("JOINED"))
    return own + sum(parts.values()) + (4 * new * lanes if new > 1 else 0) + made


def _made(family: task.Family, by_tiles: bool) -> int:
    """Bytes of the values of a task of ``family``: what is needed more than once, and what others
    are made of in front of its loop over tiles; all of them unless it attends ``by_tiles``."""
    body = family.regions[0]
    ops = [*(body.ops if by_tiles else body.walk())]
    read = Counter(
        view.buffer
        for op in ops
        if isinstance(op, tile.Compute) and op.kernel not in _TAKEN
        for view in op.views()[1:]
    )
    found = 0
    for op in ops:
        if isinstance(op, task.Need) and (read[op.result] > 1 or not by_tiles):
            found += prod(extent.constant for extent in op.view.shape())
        elif isinstance(op, task.Local) and (read[op.result] or not by_tiles):
            found += prod(View(op.result).buffer_type.shape)
    return 4 * found


def attended_at_once(module: Module, family: task.Family) -> int:
    """For how many tokens of a batch a block attends at once in ``family``: runs of them are found
    once for all families, for the first that attends by tiles."""
    families = (op for op in module.walk() if isinstance(op, task.Family))
    found = (most for one in families if (most := _at_once(module, one)))
    own = _at_once(module, family)
    return own if own and own == next(found) else 1


def _at_once(module: Module, family: task.Family) -> int:
    found = attended(family)
    if found is None or not found.by_tiles:
        return 0
    given = most_of_request(module), found.queries, found.values
    if not found.of_latents:
        return neighbours(*given)[0]
    few = prod(family.sizes) <= module.the_device().cores
    return 1 if few else latent_neighbours(*given)


def taken(family: task.Family, stream: Value) -> int:
    """How many products take a stream, or a copy of it: two where keys are values too."""
    return sum(op.views()[2].buffer in _copies(family, stream) for op in _gemms(family))


def _products(family: task.Family) -> Iterator[tile.Compute]:
    """The products that take what is cached."""
    cached: set[Value] = set()
    for op in family.regions[0].walk():
        if isinstance(op, task.Stream) and op.below is not None:
            cached |= _copies(family, op.result)
    return (op for op in _gemms(family) if op.views()[2].buffer in cached)


def _copies(family: task.Family, stream: Value) -> set[Value]:
    """``stream``, and a copy of it in which new tokens stand among cached ones."""
    return {stream} | {
        op.views()[0].buffer
        for op in family.regions[0].walk()
        if isinstance(op, tile.Compute) and op.kernel == "copy" and op.views()[1].buffer == stream
    }


def _gemms(family: task.Family) -> Iterator[tile.Compute]:
    for op in family.regions[0].walk():
        if isinstance(op, tile.Compute) and op.kernel == "gemm":
            yield op

"""Runs of cached tokens that tasks fold: of how many tokens one is, how many tasks share those of a
key head, and the caches that they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshc.analysis.cuda.blocks import FRAGMENT
from meshc.analysis.tasks.tiles import tile_bytes
from meshc.ir.core import tensor_type
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.passes.task.expand.program import TaskProgram
from meshc.passes.task.expand.values import Known

MOST_QUERIES = 64
"""Queries of a task at the most, of heads times tokens, and of 128 lanes at the most: of wider
heads there are fewer."""
MOST_QUERY_LANES = 128 * MOST_QUERIES


@dataclass
class Runs:
    """Runs of ``tokens`` tokens, with 0 of as many as a block of a GPU asks for at once. There are
    ``splits`` tasks for a key head that share its runs, with 0 enough for all ``blocks``, or where
    ``lanes`` is more than 1 so many that have each a part of its lanes. A task attends for
    ``together`` tokens that are read at the most, with 0 for as many as a block has room for."""

    program: TaskProgram
    tokens: int
    blocks: int
    splits: int
    together: int
    lanes: int
    caches: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.asked = self.tokens

    def fit(self, caches: Sequence[Known]) -> None:
        """Let a run have the tokens whose rows of all ``caches`` a block asks for at once, unless a
        number was asked for; scales of coded rows come beside these."""
        source = self.program.source
        rows, widest = {}, 0
        for cache in caches:
            kept = DType(cache.coded) if cache.coded else source.stored(cache.kind.dtype)
            lanes = -(-source.dims[cache.kind.dims[-1]] // self.lanes)
            rows[cache.weight] = kept.bytes * lanes
            widest = max(widest, kept.bytes)
        tile = tile_bytes(source.the_device())
        most = tile // sum(rows.values()) // FRAGMENT * FRAGMENT
        self.tokens = self.asked or min(max(most, FRAGMENT), 8 * FRAGMENT // widest)

    def asking(self, heads: int, lanes: int) -> int:
        """For how many tokens a task attends, each of which has so many ``heads`` in it; in a step
        for one, as each is of a request of its own."""
        tokens = self.program.tokens
        if not self.program.of_prompt:
            return 1
        most = self.together or min(MOST_QUERIES, MOST_QUERY_LANES // lanes) // heads
        return next(n for n in range(max(min(most, tokens), 1), 0, -1) if tokens % n == 0)

    def tasks(self, groups: int, capacity: int) -> int:
        """How many tasks share the cached tokens for each of so many ``groups`` of queries; none of
        them without any."""
        wanted = self.splits or self.blocks // groups
        return max(1, min(wanted, -(-capacity // self.tokens)))

    def cache(self, known: Known) -> Value:
        """The buffer of a cache, with room for whole runs of tokens; of heads for each part of
        their lanes."""
        param = known.weight
        assert param is not None
        if param not in self.caches:
            kind = tensor_type(param)
            shape = list(kind.shape(self.program.source.dims))
            tokens = int(known.stacked) + int(self.program.requests in kind.dims)
            shape[tokens] = -(-shape[tokens] // self.tokens) * self.tokens
            if self.lanes > 1:
                shape[-2:] = shape[-2] * self.lanes, shape[-1] // self.lanes
            self.caches[param] = self.program.buffer(param.name, shape, kind.dtype, "state")
            if known.coded:
                self.program.module.buffers[-1].coded = DType(known.coded)
        return self.caches[param]

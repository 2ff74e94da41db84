"""Which attention the library has a routine for, as tasks say it statement by statement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshc.analysis.tasks.tiles import attended_by_tiles
from meshc.backends.cuda.tasks.caches import streams_of, with_new
from meshc.backends.cuda.tasks.families import Placed
from meshc.backends.cuda.tasks.values import Values, constant, extents, taken_rows
from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import POSITION
from meshc.ir.functions import FUNCTIONS
from meshc.ir.ops import tile
from meshc.ir.views import Range, View
from meshc.support.diagnostics import fail

LOG2E = math.log2(math.e)
SET = 8
"""Queries of a GroupAttention of which a warp has the sums; each warp has one set."""
SCORES = frozenset(
    ("gemm", "scale", "mask_causal", "row_max", "at_least", "exp_sub", "row_sum", "merge_softmax")
)
"""Kernels that fold a tile whose scores are products, times a factor."""


@dataclass(frozen=True)
class LibraryAttention:
    """Attention that the library has a routine for: ``queries`` of ``lanes`` lanes over a key head,
    of ``asking`` tokens one behind the other, tiles of ``tokens``; scores are changed by ``steps``
    and seen within a ``window``, which is there where ``windowed`` holds; ``sink`` is a score of
    nothing. ``key`` and ``value`` are those of the new tokens, of which the one at ``position``
    asks first; where they stand in their places among the cached ones it is ``own`` of them."""

    queries: int
    asking: int
    lanes: int
    tokens: int
    query: View
    key: View
    value: View
    steps: tuple[tile.Compute, ...]
    window: int
    windowed: Cond | None
    sink: View | None
    position: Expr
    own: Expr | None

    @property
    def new(self) -> int:
        """How many new tokens there are."""
        return extents(self.key)[0]

    @property
    def heads(self) -> int:
        """How many query heads a token has."""
        return self.queries // self.asking


def library_shape(family: Placed, loop: tile.For, values: Values) -> LibraryAttention | None:
    """The attention of ``family``, whose ``loop`` folds its tokens, as the library has it; None
    where it does not."""
    body, streams = loop.regions[0].ops, streams_of(loop)
    computes = [op for op in body if isinstance(op, tile.Compute)]
    if [op.kernel for op in computes].count("gemm") != 2 or len(streams) != 2:
        return None
    (score, fold) = (op for op in computes if op.kernel == "gemm")
    keys, rows = (op.result for op in streams)
    seen = with_new(loop)
    folded = (op.views()[2].buffer for op in (score, fold))
    if [*folded] != [seen.get(keys, keys), seen.get(rows, rows)]:
        return None
    if seen:
        computes = [op for op in computes if op.views()[0].buffer not in seen.values()]
    query, scores = score.views()[1], score.views()[0].buffer
    queries, lanes = extents(query)
    tokens = extents(View(keys))[0]
    steps = tuple(
        op
        for op in computes
        if op.views()[0].buffer == scores and (op.kernel == "scale" or op.kernel in FUNCTIONS)
    )
    known = SCORES | {*FUNCTIONS, "mask_window"}
    of_tiles = attended_by_tiles(queries, (lanes,), extents(View(rows))[1], tokens)
    if not {op.kernel for op in computes} <= known or not of_tiles:
        return None
    windows = [op for op in computes if op.kernel == "mask_window"]
    fresh = [op for op in family.ops if isinstance(op, tile.Compute) and op.kernel == "gemm"]
    if len(fresh) != 2 or len(windows) > 1:
        return None
    key, value = (op.views()[2] for op in fresh)
    (mask,) = (op for op in computes if op.kernel == "mask_causal")
    asking = extents(mask.views()[0])[1]
    position = mask.params["query"]
    assert isinstance(position, Expr)
    return LibraryAttention(
        queries, asking, lanes, tokens, query, View(key.buffer), View(value.buffer), steps,
        int(str(windows[0].params["window"])) if windows else 0,
        _without_guard(windows[0].when, loop) if windows else None,
        _sink(family, values),
        position,
        key.indices[0].start if seen and isinstance(key.indices[0], Range) else None,
    )  # fmt: skip


def _sink(family: Placed, values: Values) -> View | None:
    before = (op for one in family.ops for op in (one, *(o for r in one.regions for o in r.ops)))
    copies = [
        op
        for op in before
        if isinstance(op, tile.Compute)
        and op.kernel == "copy"
        and op.views()[1].buffer in values.reads
        and op.views()[0].indices
        and op.views()[0].buffer not in taken_rows(family.ops)
    ]
    return copies[0].views()[1] if copies else None


def _without_guard(when: Cond | None, loop: tile.For) -> Cond | None:
    """The layers in which there is a window, of the condition of its mask, in which that of a tile
    stands too."""
    (stream, *_) = streams_of(loop)
    if when is None or when.is_true or when == stream.when:
        return None
    names = frozenset({loop.var, POSITION})
    kept = tuple(
        tuple(c for c in clause if not c.expr.free_vars & names) for clause in when.clauses
    )
    return Cond(tuple(dict.fromkeys(kept)))


def changed_scores(steps: Sequence[tile.Compute]) -> tuple[float, str]:
    """By what queries are multiplied, and how their products become scores, times log2(e), where
    that is more. Queries whose scores have a cap are as they are, as large as keys: over the cap
    they were so small that what rounding leaves of them had few bits in f16."""
    if all(op.kernel == "scale" for op in steps):
        return math.prod(_factor(op) for op in steps) * LOG2E, ""
    text, unit = "score", "mc::LOG2E"
    for n, op in enumerate(steps, 1):
        if op.kernel == "tanh":
            text = f"mc::tanh({text})"
        elif op.kernel != "scale":
            fail("cuda-graph", f"there is no CUDA for tile.{op.kernel} of scores")
        elif n < len(steps):
            text = f"{text} * {constant(_factor(op))}"
        else:
            unit = f"({constant(_factor(op))} * mc::LOG2E)"
    return 1.0, f"[](float score) {{ return {text} * {unit}; }}"


def _factor(scaled: tile.Compute) -> float:
    return float(str(scaled.params["factor"]))

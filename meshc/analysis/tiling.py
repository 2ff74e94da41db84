"""How the dims of a model meet the mesh: head dims, segments of x, chunks of rows.

One place computes the numbers that prefill and decode must agree on, so that the KV cache which
prefill leaves is the one that decode continues (no transition between the phases).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.support.diagnostics import fail


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class HeadDims:
    """Names of the dims that attention uses: query heads, key/value heads, head dim, keys, rows."""

    query: str
    key: str
    lane: str
    keys: str
    rows: str

    def __str__(self) -> str:
        return " ".join((self.query, self.key, self.lane, self.keys, self.rows))


@dataclass(frozen=True)
class Tiling:
    """Extents per core that follow from the mesh and the model.

    ``chunks`` (n) is the number of row chunks of attention's rings, ``chunks_y`` (a) of them per
    row of the mesh and ``chunks_x`` (b) per core of a segment; ``row_lanes`` is the KV capacity
    of one mesh row and the number of prompt rows a core keeps.
    """

    rows: int
    columns: int
    segments: int
    heads: HeadDims | None
    query_block: int
    key_block: int
    lane_block: int
    chunks: int
    row_lanes: int

    @property
    def segment(self) -> int:
        """Cores in one segment of x."""
        return self.columns // self.segments

    @property
    def chunks_y(self) -> int:
        """Row chunks that one mesh row owns."""
        return self.chunks // self.rows

    @property
    def chunks_x(self) -> int:
        """Row chunks that one core of a segment owns."""
        return self.chunks // self.segment


def has_many_rows(module: Module, row_dim: str) -> bool:
    """Whether a run may have several rows of tokens: as many as the run-time scalar ``len`` says,
    even if the cache takes one only, or the extent of ``row_dim``."""
    return "len" in module.scalars or module.dims.get(row_dim, 1) > 1


def find_heads(module: Module) -> HeadDims | None:
    """Dims of the attention in ``module``, or None when there is none."""
    append = next((o for o in module.walk() if isinstance(o, graph.Append)), None)
    if append is None:
        return None
    softmaxes = (o for o in module.walk() if isinstance(o, graph.Softmax))
    softmax = next((o for o in softmaxes if o.dim == append.dim), None)
    if softmax is None:
        return None
    scores = next(
        (
            o
            for o in module.walk()
            if isinstance(o, graph.Matmul)
            and len(o.operands) == 2
            and softmax.dim in _dims(o, 1)
            and softmax.dim not in o.contract
        ),
        None,
    )
    if scores is None or len(scores.contract) != 1:
        return None
    lane = scores.contract[0]
    query, key = scores.group or _shared_head(scores, append.dim, lane)
    return HeadDims(query, key, lane, append.dim, append.rows)


def choose_tiling(
    extents: Mapping[str, int], heads: HeadDims | None, rows: int, columns: int, capacity: int
) -> Tiling:
    """The tiling whose cores hold the fewest lanes of q, k and v; ties go to fewer segments."""
    if heads is None:
        return make_tiling(extents, None, rows, columns, capacity, 1)
    group = extents[heads.query] // extents[heads.key]
    best = min(
        (s for s in range(1, extents[heads.key] + 1) if columns % s == 0),
        key=lambda s: (_head_lanes(extents, heads, group, columns, s), s),
    )
    return make_tiling(extents, heads, rows, columns, capacity, best)


def tiling_of(module: Module) -> Tiling:
    """The tiling of a mesh-level module, from what partition wrote into its header."""
    words = str(module.option("head_dims", "")).split()
    heads = HeadDims(*words) if words else None
    mesh = module.the_mesh()
    capacity = int(module.option("capacity", 1))
    return make_tiling(module.dims, heads, mesh.rows, mesh.columns, capacity, mesh.segments)


def make_tiling(
    extents: Mapping[str, int],
    heads: HeadDims | None,
    rows: int,
    columns: int,
    capacity: int,
    segments: int,
) -> Tiling:
    """The tiling for a given number of segments."""
    if heads is None:
        return Tiling(rows, columns, 1, None, 0, 0, 0, rows, ceil_div(capacity, rows))
    group = extents[heads.query] // extents[heads.key]
    key_block = ceil_div(extents[heads.key], segments)
    lane_block = _lane_block(extents[heads.lane], columns // segments)
    chunks = lcm(rows, columns // segments)
    row_lanes = chunks // rows * ceil_div(capacity, chunks)
    return Tiling(
        rows, columns, segments, heads, key_block * group, key_block, lane_block, chunks, row_lanes
    )


def _head_lanes(
    extents: Mapping[str, int], heads: HeadDims, group: int, columns: int, segments: int
) -> int:
    block = ceil_div(extents[heads.key], segments)
    return block * (group + 2) * _lane_block(extents[heads.lane], columns // segments)


def _lane_block(lanes: int, cores: int) -> int:
    """Lanes of a head on each core: whole pairs, so that rotation stays local."""
    return 2 * ceil_div(ceil_div(lanes, 2), cores)


def _dims(op: graph.Matmul, position: int) -> tuple[str, ...]:
    kind = op.tensors()[position].type
    return getattr(kind, "dims", ())


def _shared_head(op: graph.Matmul, keys: str, lane: str) -> tuple[str, str]:
    """Heads of plain multi-head attention: the dim that queries and keys share beside the batch."""
    right = _dims(op, 1)
    shared = [d for d in _dims(op, 0) if d in right and d not in (keys, lane, "B")]
    if not shared:
        fail(
            "unsupported-op",
            "keys and values without a head dim have no distributed form yet",
            op.span,
            help="give them one of extent 1, and declare that the query heads share it",
        )
    return shared[-1], shared[-1]

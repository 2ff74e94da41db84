"""How the dims of a model meet the mesh: heads, segments of x, chunks of rows.

One place computes the numbers that prefill and decode must agree on, so that the KV cache which
prefill leaves is the one that decode continues (no transition between the phases).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm

from meshc.ir.core import tensor_type
from meshc.ir.header import names_text
from meshc.ir.module import Module
from meshc.ir.read_rows import attention_of
from meshc.ir.rows import Attention
from meshc.support.diagnostics import fail
from meshc.support.spans import Span


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Tiling:
    """Extents per core that follow from the mesh and the model.

    ``copies`` segments have the same key heads, of which each has a share of the queries.
    ``chunks`` (n) is the number of row chunks of attention's rings, ``chunks_y`` (a) of them per
    row of the mesh and ``chunks_x`` (b) per core of a segment; ``row_lanes`` is the number of
    prompt rows a core keeps, ``key_lanes`` the KV capacity of one mesh row.
    """

    rows: int
    columns: int
    segments: int
    heads: Attention | None
    query_block: int
    key_block: int
    lane_block: int
    chunks: int
    row_lanes: int
    key_lanes: int
    copies: int = 1

    @property
    def head_lanes(self) -> int:
        """Lanes of queries, keys and values on a core."""
        return (self.query_block + 2 * self.key_block) * self.lane_block

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


def most_rows(module: Module) -> int:
    """The most rows of a prompt that a run has room for, where it says how many it has; else as
    many as are ever known."""
    _, most = module.scalars.get("len", (1, module.capacity))
    return max(most, module.dims.get(module.row_dim, 1))


def heads_of(module: Module) -> Attention | None:
    """The attention that ``module`` records, whose heads are dealt to the mesh; None without one.
    Of latent attention, whose scores are a sum over several caches without heads, it is the first.

    Fails with ``unsupported-op`` where neither queries nor keys have heads and where there are
    several kinds of attention, for which a mesh has no layout yet.
    """
    for found in module.attention:
        if not found.query:
            fail(
                "unsupported-op",
                "attention without a head dim has no distributed form yet",
                _place(module, found),
                help="give queries and keys a head dim of extent 1",
            )
    first = next(iter(module.attention), None)
    for second in module.attention[1:]:
        if first is None or (first.headless and replace(second, lane=first.lane) == first):
            continue
        fail(
            "unsupported-op",
            f"attention of {names_text(second)} beside one of {names_text(first)} has no "
            "distributed form yet",
            _place(module, second),
            help="give all layers of the model the same dims of heads and lanes",
        )
    return first


def _place(module: Module, wanted: Attention) -> Span | None:
    """Where ``wanted`` is: its product in a graph, else the header's section."""
    products = (op.span for found, op in attention_of(module) if found == wanted)
    return next(products, module.places.get("attention"))


LONG_SEGMENT = 32
"""Cores of a segment along which a reduction takes longer than its messages."""


def choose_tiling(
    extents: Mapping[str, int],
    heads: Attention | None,
    rows: int,
    columns: int,
    capacity: int,
    whole_heads: bool = False,
    most_rows: int | None = None,
) -> Tiling:
    """The tiling whose cores hold the fewest lanes of q, k and v.

    Ties go to fewer segments, whose reductions take fewer channels of a mesh, unless any of these
    are long: then to fewer key heads on a core, whose products have longer rows, and chains along a
    segment are shorter. With ``whole_heads`` it is the one with the fewest lanes of q, and ties go
    to more segments, which leaves the most lanes of a head together: where all cores reach each
    other at once, scores then need no messages. Several segments may have the same key heads there.
    Where keys have no heads, every column is a segment: query heads are dealt to columns, each of
    which has all lanes of the cache.
    """
    if heads is None:
        return make_tiling(extents, None, rows, columns, capacity, 1, 1, most_rows)
    if heads.headless:
        return make_tiling(extents, heads, rows, columns, capacity, columns, 1, most_rows)
    divisors = [s for s in range(1, columns + 1) if columns % s == 0]
    known = [
        make_tiling(extents, heads, rows, columns, capacity, segments, copies, most_rows)
        for segments in divisors
        for copies in _copies(extents, heads, segments, whole_heads)
    ]
    if whole_heads:
        return min(known, key=lambda t: (t.query_block * t.lane_block, -t.segments))
    fewest = min(t.head_lanes for t in known)
    tied = [t for t in known if t.head_lanes == fewest]
    long = any(t.segment >= LONG_SEGMENT for t in tied)
    return min(tied, key=lambda t: (t.key_block if long else 0, t.segments))


def _copies(
    extents: Mapping[str, int], heads: Attention, segments: int, whole_heads: bool
) -> list[int]:
    """How many of ``segments`` may have the same key heads: 1 where there are enough of these, else
    as many as leave each one its own and share its queries evenly, if there are such numbers."""
    keys, group = extents[heads.key], extents[heads.query] // extents[heads.key]
    if segments <= keys:
        return [1]
    if not whole_heads:
        return []
    shares = range(2, min(group, segments // keys) + 1)
    return [n for n in shares if group % n == 0 and segments % n == 0][-1:]


def tiling_of(module: Module) -> Tiling:
    """The tiling of a mesh-level module."""
    heads, mesh = heads_of(module), module.the_mesh()
    kinds = [tensor_type(p.value).layout for p in module.function.params]
    splits = [split for layout in kinds if layout for split in layout.splits]
    copies = max((s.copies for s in splits if heads and s.dim == heads.key), default=1)
    return make_tiling(
        module.dims,
        heads,
        mesh.rows,
        mesh.columns,
        module.capacity,
        mesh.segments,
        copies,
        most_rows(module),
    )


def make_tiling(
    extents: Mapping[str, int],
    heads: Attention | None,
    rows: int,
    columns: int,
    capacity: int,
    segments: int,
    copies: int = 1,
    most_rows: int | None = None,
) -> Tiling:
    """The tiling for a given number of segments, ``copies`` of which have the same key heads. A run
    has at most ``most_rows`` rows of a prompt, as many as the caches hold if not given."""
    tokens = capacity if most_rows is None else most_rows
    if heads is None:
        own, kept = ceil_div(tokens, rows), ceil_div(capacity, rows)
        return Tiling(rows, columns, 1, None, 0, 0, 0, rows, own, kept)
    if heads.headless:
        key_block, query_block = 1, ceil_div(extents[heads.query], segments)
    else:
        group = extents[heads.query] // extents[heads.key]
        key_block = ceil_div(extents[heads.key], segments // copies)
        query_block = key_block * group // copies
    lane_block = _lane_block(extents[heads.lane], columns // segments)
    chunks = lcm(rows, columns // segments)
    return Tiling(
        rows,
        columns,
        segments,
        heads,
        query_block,
        key_block,
        lane_block,
        chunks,
        chunks // rows * ceil_div(tokens, chunks),
        chunks // rows * ceil_div(capacity, chunks),
        copies,
    )


def _lane_block(lanes: int, cores: int) -> int:
    """Lanes of a head on each core: whole pairs, so that rotation stays local."""
    return 2 * ceil_div(ceil_div(lanes, 2), cores)

"""Layouts that forms ask for: of activations as they enter, of heads, of weights' columns."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.analysis.layout.tiling import ceil_div
from meshc.ir.types import Layout, Split
from meshc.ir.values import Value
from meshc.passes.mesh.forms.lowering import Lowering


def activation_layout(way: Lowering, dims: tuple[str, ...], axis: str) -> Layout:
    """Activations with features over ``axis``: single rows lie over it whole, as ``BE_yL^x`` of
    WaferLLM Fig. 4; many rows are dealt to the rows of the mesh (``BL_y E_x``, Fig. 3)."""
    rows = (row_split(way),) if way.problem.many_rows else ()
    others = [d for d in dims if d != way.problem.row_dim]
    if not others:
        return Layout(rows)
    return Layout((*rows, Split(others[-1], axis, lanes(way, others[-1], axis))))


def whole_rows(way: Lowering, dims: tuple[str, ...]) -> Layout:
    """Activations of many rows all of whose features are on every core of a row of the mesh."""
    return Layout((row_split(way),) if way.problem.row_dim in dims else ())


def lies_over(way: Lowering, value: Value, axis: str) -> bool:
    """Whether some dim of ``value`` lies over ``axis`` or a factor of it."""
    return any(way.mesh.whole(s.axis) == axis for s in way.layout_of(value).splits)


def usual_axis(way: Lowering) -> str:
    """The axis over which features lie where nothing else is asked for."""
    return way.mesh.across if way.problem.many_rows else way.mesh.down


def row_split(way: Lowering) -> Split:
    """Rows of a prompt over rows of the mesh, dealt cyclically."""
    return Split(way.problem.row_dim, way.mesh.down, way.tiling.row_lanes, "cyclic")


def cache_layout(way: Lowering, dims: tuple[str, ...]) -> Layout:
    """KV caches: rows of the sequence over rows, heads over columns (WaferLLM section 4.3); without
    heads every column has the same."""
    keys = Split(way.heads().keys, way.mesh.down, way.tiling.key_lanes, "shift")
    return Layout((keys, *head_splits(way, dims)))


def head_splits(way: Lowering, dims: tuple[str, ...]) -> tuple[Split, ...]:
    """Whole head groups over segments of columns, then pairs of lanes inside them; of queries that
    share keys without heads the heads alone."""
    found = []
    heads, tiling = way.tiling.heads, way.tiling
    for dim in dims:
        if heads is not None and dim == heads.query and dim != heads.key:
            found.append(Split(dim, way.mesh.group, tiling.query_block))
        elif heads is not None and dim == heads.key:
            block, copies = tiling.key_block, tiling.copies
            found.append(Split(dim, way.mesh.group, block, copies=copies))
        elif heads is not None and dim == heads.lane and not heads.headless:
            found.append(Split(dim, way.mesh.inner, tiling.lane_block))
    return tuple(found)


def has_heads(way: Lowering, dims: tuple[str, ...]) -> bool:
    """Whether ``dims`` are those of queries, keys or values."""
    heads = way.tiling.heads
    if heads is not None and heads.headless:
        return heads.query in dims
    return heads is not None and heads.lane in dims and bool({heads.query, heads.key} & {*dims})


def column_splits(
    way: Lowering, dims: tuple[str, ...], axis: str, by_experts: bool = False
) -> tuple[Split, ...]:
    """Splits of a product's new dims over ``axis``: heads on columns, else the largest dim that
    does not count experts, or that one which does if ``by_experts``."""
    if has_heads(way, dims) and axis == way.mesh.across:
        return head_splits(way, dims)
    if not dims:
        return ()
    among = [d for d in dims if (d in way.problem.experts) == by_experts] or dims
    widest = max(among, key=lambda d: way.problem.extents[d])
    return (Split(widest, axis, lanes(way, widest, axis)),)


def lanes(way: Lowering, dim: str, axis: str) -> int:
    """Lanes of ``dim`` on each core of ``axis``: equal shares, in whole pairs where RoPE turns
    neighbours."""
    extent, size = way.problem.extents[dim], way.mesh.size(axis)
    if dim in way.problem.turned:
        return 2 * ceil_div(ceil_div(extent, 2), size)
    return ceil_div(extent, size)


def has_experts(way: Lowering, news: Sequence[tuple[str, ...]]) -> bool:
    """Whether some of the new dims of a product's right operands count experts."""
    return any(not way.problem.experts.isdisjoint(dims) for dims in news)


def on_axis(way: Lowering, value: Value, axis: str) -> Layout:
    """The layout of ``value`` with the dims that are split over ``axis`` instead."""
    splits = way.layout_of(value).splits
    return Layout(tuple(Split(s.dim, axis, lanes(way, s.dim, axis)) for s in splits))


def laid_out(way: Lowering, value: Value) -> Value:
    """``value``, which is computed on; a constant whose use leaves the layout open lies as
    activations do."""
    kind = way.type_of(value)
    if kind.layout is None:
        layout = activation_layout(way, kind.dims, usual_axis(way))
        way.settle(value, Layout(tuple(s for s in layout.splits if s.dim in kind.dims)))
    return value

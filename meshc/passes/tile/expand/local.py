"""Pointwise ops, norms, masks and softmax pieces: work on a core's own lanes."""

from __future__ import annotations

from math import prod

from meshc.analysis.rotary_angles import rope_frequencies
from meshc.ir.affine import Expr
from meshc.ir.batch import POSITION
from meshc.ir.core import tensor_type
from meshc.ir.module import Port
from meshc.ir.ops import mesh
from meshc.ir.types import DType, TensorType
from meshc.ir.views import Point, View, Whole
from meshc.passes.tile.expand.emitter import Emitter, Place, expr, window
from meshc.support.diagnostics import fail


def rope(emitter: Emitter, op: mesh.Rope, table: View, source: Place, target: Place) -> None:
    """Turn each pair of lanes by its position; ``table`` has the frequencies of the pairs."""
    local = _lanes(emitter, op)
    heads = source.width // local
    if source.rows:
        order = (1, 0, 2)
        views = [emitter.view(p, (heads, local), order) for p in (target, source)]
        start, step = emitter.index_of(emitter.mesh.down), emitter.mesh.rows
    else:
        views = [emitter.view(p, (heads, 1, local)) for p in (target, source)]
        start, step = Expr.const(0), 1
    if POSITION in emitter.source.scalars:
        start = start + Expr.var(POSITION)
    emitter.compute("rope", *views, table, position=start, step=step)


def _lanes(emitter: Emitter, op: mesh.Rope) -> int:
    """Lanes of the dim that turns which a core holds."""
    kind = tensor_type(op.result)
    return dict(zip(kind.dims, kind.local_shape(emitter.source.dims), strict=True))[op.dim]


def frequency_table(emitter: Emitter, op: mesh.Rope, between: bool = False) -> View:
    """The frequencies of a core's pairs, or those of layers ``between`` every ``period``-th one, in
    a buffer that is filled once."""
    kind, lanes, here = tensor_type(op.result), emitter.source.dims[op.dim], _lanes(emitter, op)
    values = rope_frequencies(op, lanes, between)
    module = emitter.module
    name = next((n for n, v in module.constants.items() if v == values), None)
    if name is None:
        name = emitter.fresh("rope_frequency")
        module.constants[name] = values
        dim = f"{op.dim}_pairs"
        module.dims.setdefault(dim, lanes // 2)
        buffer = emitter.buffer(name + "_lanes", (here // 2,), DType.F32, "weight")
        split = kind.layout.split_of(op.dim) if kind.layout else None
        lane = Expr.var("i")
        element = emitter.index_of(split.axis) * (here // 2) + lane if split else lane
        tensor = TensorType(DType.F32, (dim,))
        emitter.port(Port(name, "in", tensor, buffer, ("i",), (), (element,)))
    buffer = next(p.buffer for p in module.ports if p.name == name)
    return View(buffer)


def mask(emitter: Emitter, op: mesh.Mask, place: Place) -> None:
    """Minus infinity where a row must not see an element, and in lanes that hold none, in place."""
    kind = tensor_type(op.result)
    dims = [d for d in emitter.held_dims(kind) if place.rows or d != emitter.held_first]
    extent = emitter.source.dims[op.dim]
    limit = Expr.var("len") if _of_the_run(emitter, op.dim) else expr(extent)
    key, key_step = _elements(emitter, op, kind)
    query, query_step = limit, 0
    if op.kind == "causal":
        rows = place.rows and op.dim != emitter.row_dim
        query, query_step = (
            (emitter.index_of(emitter.mesh.down), emitter.mesh.rows) if rows else (Expr.const(0), 0)
        )
        if POSITION in emitter.source.scalars:
            query = query + Expr.var(POSITION)
    others = [d for d in dims if d not in (op.dim, emitter.row_dim)]
    if place.rows and op.dim != emitter.row_dim:
        order = tuple(dims.index(d) for d in (*others, emitter.row_dim, op.dim))
        view = emitter.view(place, order=() if order == tuple(range(len(dims))) else order)
    else:
        order = (*(dims.index(d) for d in others), len(dims), dims.index(op.dim))
        view = emitter.view(place, (*place.shape, 1), order)
    emitter.compute(
        "mask_causal",
        view,
        query=query,
        query_step=query_step,
        key=key,
        key_step=key_step,
        limit=limit,
    )


def _of_the_run(emitter: Emitter, dim: str) -> bool:
    """Whether the run says how many elements of ``dim`` there are."""
    return dim == emitter.row_dim and "len" in emitter.source.scalars


def _elements(emitter: Emitter, op: mesh.Mask, kind: TensorType) -> tuple[Expr, int]:
    """The first element of the masked dim on a core, and the step from each to the next."""
    split = kind.layout.split_of(op.dim) if kind.layout else None
    if split is None:
        return Expr.const(0), 1
    if split.skew or split.kind == "shift":
        fail("unsupported-op", f"{op.NAME} of {op.dim}, which lies as {split}", op.span)
    if split.kind == "cyclic":
        return emitter.index_of(split.axis), emitter.mesh.size(split.axis)
    return emitter.index_of(split.axis) * split.block, 1


def mask_window(emitter: Emitter, window: int, place: Place) -> None:
    """Minus infinity in slots of tokens that lie ``window`` or more before a single row, in place;
    of a cache whose slots are dealt cyclically to rows of the mesh."""
    position = emitter.scalar(POSITION)
    *heads, slots = place.shape
    emitter.compute(
        "mask_window",
        emitter.view(place, (prod(heads), 1, slots)),
        window=window,
        query=position,
        query_step=0,
        key=emitter.index_of(emitter.mesh.down),
        key_step=emitter.mesh.rows,
        limit=position + 1,
    )


def mask_scores(emitter: Emitter, place: Place, window: int = 0) -> None:
    """Minus infinity where a row of the prompt must not see a cached key or, with a ``window``,
    where the key lies before that, in place."""
    kernel, given = ("mask_window", {"window": window}) if window else ("mask_causal", {})
    tiling = emitter.tiling
    known = emitter.known_rows
    limit = expr(emitter.source.capacity) if known is None else known
    query = emitter.index_of(emitter.mesh.down)
    if POSITION in emitter.source.scalars:
        query = query + emitter.scalar(POSITION)
    with emitter.loop("m", tiling.chunks_x) as slot:
        chunk = (
            emitter.index_of(emitter.mesh.down) * tiling.chunks_y
            + emitter.index_of(emitter.mesh.inner) * tiling.chunks_x
            + slot
        ) % tiling.chunks
        key = chunk // tiling.chunks_y + (chunk % tiling.chunks_y) * emitter.mesh.rows
        view = score_slot(emitter, place, slot, order=(1, 0, 2))
        emitter.compute(
            kernel,
            view,
            **given,
            query=query,
            query_step=emitter.mesh.rows,
            key=key,
            key_step=emitter.mesh.rows * tiling.chunks_y,
            limit=limit,
        )


def score_slot(emitter: Emitter, place: Place, slot: Expr, order: tuple[int, ...] = ()) -> View:
    """One chunk of keys of the scores: ``[rows, heads, keys]``."""
    rows, keys = window(0, emitter.rows), window(0, emitter.chunk_keys)
    return View(place.buffer, (Point(slot), rows, Whole(), keys), (), order)

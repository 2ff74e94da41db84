"""Expands ops that each core computes on what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from meshc.ir.affine import Cond, Expr
from meshc.ir.core import Op, tensor_type
from meshc.ir.ops import mesh
from meshc.ir.types import Layout
from meshc.ir.values import Value
from meshc.ir.views import View
from meshc.passes.tile.expand import local
from meshc.passes.tile.expand.emitter import Place
from meshc.passes.tile.expand.values import Values
from meshc.support.diagnostics import fail


class Pointwise(Values):
    """A method for each op, named after its mnemonic."""

    def unary(self, op: Op, kernel: str, **params: float | str) -> None:
        """A pointwise kernel of one operand."""
        source = self.place_of(cast(Value, op.operands[0]))
        target = self.result_place(op, op.operands[0])
        self.emitter.compute(kernel, self.view(target), self.view(source), **params)

    def repeating(self, op: Op, kernel: str, trailing: bool) -> None:
        """A pointwise kernel of two operands; either may give its room to the result. The kernel
        repeats the second over ``trailing`` or leading dims that it lacks, so the dims that it has
        come first or last in the views of the others."""
        left, right = (cast(Value, o) for o in op.operands)
        source, second = self.place_of(left), self.place_of(right)
        shared = self.emitter.held_dims(tensor_type(right))
        lead, tail = (shared, []) if trailing else ([], shared)
        order = self.order(op, left, lead, tail)
        target = self.result_place(op, left, right)
        views = [self.emitter.view(place, order=order) for place in (target, source)]
        if not shared and (source.rows or source.shape):
            views = [_beside_one(view, leading=trailing) for view in views]
        self.emitter.compute(kernel, *views, self.view(second))

    def order(
        self, op: Op, value: Value, lead: Sequence[str], tail: Sequence[str]
    ) -> tuple[int, ...]:
        """The order of a value's dims on a core with ``lead`` first and ``tail`` last; empty where
        they lie so."""
        dims = self.emitter.held_dims(tensor_type(value))
        between = [d for d in dims if d not in lead and d not in tail]
        wanted = [*lead, *between, *tail]
        if wanted == dims:
            return ()
        if self.place_of(value).chunked:
            fail(
                "unsupported-op",
                f"{op.NAME} of attention scores over a dim that is not their last",
                op.span,
            )
        return tuple(dims.index(d) for d in wanted)

    def add(self, op: Op) -> None:
        """A sum; the second operand is repeated over leading dims that it lacks."""
        self.repeating(op, "add", trailing=False)

    def mul(self, op: Op) -> None:
        """A product of elements; the second operand is repeated over leading dims that it lacks."""
        self.repeating(op, "mul", trailing=False)

    def div(self, op: Op) -> None:
        """A quotient; the second operand is repeated over trailing dims that it lacks."""
        self.repeating(op, "div", trailing=True)

    def exp_sub(self, op: Op) -> None:
        """The exponential of a difference; what is taken away is repeated over trailing dims."""
        self.repeating(op, "exp_sub", trailing=True)

    def function(self, op: Op) -> None:
        """A function of elements: the microkernel of its name, with its options."""
        self.unary(op, op.NAME.removeprefix("mesh."), **cast(dict[str, float], op.attributes()))

    def scale(self, op: mesh.Scale) -> None:
        """By one: a copy, which rounds to the type of the result. Scores may be scaled already."""
        if op in self.scaled:
            return
        if op.factor == 1.0:
            self.unary(op, "copy")
        else:
            self.unary(op, "scale", factor=op.factor)

    def larger(self, op: Op) -> None:
        """The larger of two elements; the second operand is repeated over leading dims."""
        self.repeating(op, "larger", trailing=False)

    def at_least(self, op: mesh.AtLeast) -> None:
        """Elements that are no less than a constant."""
        self.unary(op, "at_least", value=op.value)

    def top_k(self, op: mesh.TopK) -> None:
        """The gates of the best experts of each row, zeros for all others; the dim of experts is
        whole on a core."""
        value, *bias = (cast(Value, o) for o in op.operands)
        order = self.order(op, value, [], self.held(value, op.dim))
        places = [self.result_place(op), self.place_of(value)]
        views = [self.emitter.view(place, order=order) for place in places]
        views += [self.view(self.place_of(b)) for b in bias]
        self.emitter.compute(
            "top_k",
            *views,
            count=op.count,
            groups=op.groups,
            kept_groups=op.kept_groups,
            group_top=op.group_top,
            normalise=op.normalise,
            biased=bool(bias),
        )

    def square_sum(self, op: mesh.SquareSum) -> None:
        """The sum of squares of a row; of what several cores hold alike, each takes its share."""
        self.reduction(op, "square_sum")
        if op.sharing() > 1:
            sums = self.view(self.place_of(op.result))
            self.emitter.compute("scale", sums, sums, factor=1 / op.sharing())

    def row_max(self, op: mesh.RowMax) -> None:
        """The largest element of a row, of what this core holds."""
        self.reduction(op, "row_max")

    def row_sum(self, op: mesh.RowSum) -> None:
        """The sum of a row, of what this core holds."""
        self.reduction(op, "row_sum")

    def reduction(self, op: mesh.RowReduction, kernel: str) -> None:
        """A kernel that reduces the trailing dims of its view (the key dim of scores in its
        chunks); other dims are put last."""
        value = cast(Value, op.operands[0])
        source, target = self.place_of(value), self.result_place(op)
        over = self.held(value, *op.over())
        view = self.emitter.view(source, order=self.order(op, value, [], over))
        if not over or not (target.rows or target.shape):
            view = _beside_one(view, leading=bool(over))
        self.emitter.compute(kernel, self.view(target), view)

    def first_at(self, op: mesh.FirstAt) -> None:
        """Elements of a core follow each other from ``rank * block`` on."""
        value, top = (cast(Value, o) for o in op.operands)
        places = [self.result_place(op), self.place_of(top)]
        over = self.held(value, op.dim)
        view = self.emitter.view(self.place_of(value), order=self.order(op, value, [], over))
        if not over:
            view = _beside_one(view, leading=False)
        if not (places[0].rows or places[0].shape):
            view = _beside_one(view, leading=True)
        split = (tensor_type(value).layout or Layout()).split_of(op.dim)
        self.emitter.compute(
            "first_at",
            self.view(places[0]),
            view,
            self.view(places[1]),
            rank=Expr.const(0) if split is None else self.emitter.index_of(split.axis),
            block=0 if split is None else split.block,
            limit=self.module.dims[op.dim],
        )

    def held(self, value: Value, *dims: str) -> list[str]:
        """Those of ``dims`` that take room on a core."""
        return [d for d in self.emitter.held_dims(tensor_type(value)) if d in dims]

    def rms_scale(self, op: mesh.RmsScale) -> None:
        """A row over the root of its mean square, times a gain; the sum of squares is an operand.
        Raises ``unsupported-op`` for a gain of other dims than those that are normed."""
        value, total, gain = (cast(Value, o) for o in op.operands)
        over = (*op.also, op.dim)
        if self.emitter.row_dim in over or {*tensor_type(gain).dims} != {*over}:
            dims, normed = ", ".join(tensor_type(gain).dims), ", ".join(over)
            fail(
                "unsupported-op",
                f"a norm over {normed} with a gain of [{dims}]",
                op.span,
                help="a norm is over a dim of each row, which is the dim of its gain",
            )
        source, sums = self.place_of(value), self.place_of(total)
        scale = self.view(self.place_of(gain))
        order = self.order(op, value, [], self.emitter.held_dims(tensor_type(gain)))
        target = self.result_place(op, value)
        views = [self.emitter.view(place, order=order) for place in (target, source)]
        if not sums.rows and not sums.shape:
            views = [_beside_one(view, leading=True) for view in views]
        count = prod(self.module.dims[dim] for dim in over)
        self.emitter.compute("rms_scale", *views, self.view(sums), scale, count=count, eps=op.eps)

    def inverse_rms(self, op: mesh.InverseRms) -> None:
        """One over the root of a mean square, from the sum of squares."""
        self.unary(op, "inverse_rms", count=self.module.dims[op.dim], eps=op.eps)

    def rope(self, op: mesh.Rope) -> None:
        """Pairs of lanes turned by their positions; layers without positions are left out, or take
        angles of their own, by a condition of the layer."""
        source = self.place_of(cast(Value, op.operands[0]))
        target = self.result_place(op, op.operands[0])
        inside = self.all_but(op.period) if op.period else Cond.false()
        for between, when in ((False, ~inside), (True, inside)):
            if not when.is_false:
                table = local.frequency_table(self.emitter, op, between)
                with self.emitter.under(when), self.emitter.every_request() as request:
                    own = [self.emitter.of_request(place, request) for place in (source, target)]
                    local.rope(self.emitter, op, table, *own)

    def mask(self, op: mesh.Mask) -> None:
        """Scores of tokens that a row may not see, minus infinity: those that follow it, places of
        a cache that hold nothing, and those that are behind a window."""
        (place,) = self.overwritten(op, op.tensors())
        self.settle(op.result, place)
        heads = self.emitter.tiling.heads
        keys = heads is not None and op.dim == heads.keys
        if keys and self.emitter.many_rows:
            local.mask_scores(self.emitter, place)
            if op.window:
                with self.emitter.under(self.windowed(op)):
                    local.mask_scores(self.emitter, place, op.window)
            return
        with self.emitter.every_request() as request:
            own = self.emitter.of_request(place, request)
            if keys:
                cache = self.current_cache().of_request(request)
                # One that is absent sees what there is, so that its softmax stays a number.
                with self.emitter.under(self.emitter.present):
                    self.emitter.compute("mask_slots", self.view(own), cache.state)
                    if op.window:
                        cache.check_positions(op)
                        with self.emitter.under(self.windowed(op)):
                            local.mask_window(self.emitter, op.window, own)
            elif op.window:
                words = "a window over what is no cache has no distributed form yet"
                fail("unsupported-op", words, op.span)
            else:
                local.mask(self.emitter, op, own)

    def windowed(self, op: mesh.Mask) -> Cond:
        """That the layer which runs has the window of ``op``."""
        if op.but:
            return self.all_but(op.but)
        if op.after:
            return Cond.ge(self.layer(), op.after)
        return Cond.true() if op.every == 1 else Cond.eq(self.layer() % op.every, 0)

    def all_but(self, count: int) -> Cond:
        """That the layer which runs is none of every ``count``-th."""
        return Cond.lt(self.layer() % count, count - 1)

    def layer(self) -> Expr:
        """The layer which runs, of all regions; 0 outside of loops over layers."""
        if self.layers is None:
            return Expr.const(0)
        share, layer = self.layers
        if self.emitter.mesh.regions > 1:
            layer = layer + Expr.var(self.emitter.mesh.outer) * share
        return layer

    def relayout(self, op: mesh.Relayout) -> None:
        """The same values in a layout that splits another dim, or deals it over another axis: lanes
        of a core are selected from those that it holds."""
        value = cast(Value, op.operands[0])
        source, target = self.place_of(value), self.result_place(op)
        (old,) = (tensor_type(value).layout or Layout()).splits
        (new,) = (tensor_type(op.result).layout or Layout()).splits
        shift = (
            self.emitter.index_of(new.axis) * new.block
            - self.emitter.index_of(old.axis) * old.block
        )
        self.select(op, value, new.dim, shift, (target, source))

    def part(self, op: mesh.Part) -> None:
        """The lanes of a core's part, zeros where it ends beyond the dim."""
        value = cast(Value, op.operands[0])
        source, target = self.place_of(value), self.result_place(op)
        split = (tensor_type(op.result).layout or Layout()).split_of(op.dim)
        assert split is not None
        shift = self.emitter.index_of(split.axis) * split.block
        self.select(op, value, op.dim, shift, (target, source))

    def keep_lanes(self, op: mesh.KeepLanes) -> None:
        """Where lanes of a core hold no element, those that do move to its last lanes and back:
        what is not there when lanes are selected becomes zero."""
        value = cast(Value, op.operands[0])
        (place,) = self.overwritten(op, [value])
        self.settle(op.result, place)
        split = (tensor_type(value).layout or Layout()).split_of(op.dim)
        assert split is not None
        beyond = self.emitter.index_of(split.axis) * split.block + (
            split.block - self.module.dims[op.dim]
        )
        moved = self.emitter.place_like(place, f"{op.result.name}.moved", self.dtype(value))
        with self.emitter.under(Cond.ge(beyond, 1)):
            self.select(op, value, op.dim, -beyond, (moved, place))
            self.select(op, value, op.dim, beyond, (place, moved))

    def select(
        self, op: Op, value: Value, dim: str, shift: Expr, places: tuple[Place, Place]
    ) -> None:
        """Into the first place the lanes of ``dim`` that lie ``shift`` further in the second, where
        ``value`` is."""
        order = self.order(op, value, self.held(value, dim), [])
        views = [self.emitter.view(place, order=order) for place in places]
        self.emitter.compute("select_lanes", *views, shift=shift)


def _beside_one(view: View, leading: bool) -> View:
    """``view`` with one more dim, of extent 1, for what has a single element to be repeated."""
    one, shape = (Expr.const(1),), view.shape()
    return View(view.buffer, view.indices, (*one, *shape) if leading else (*shape, *one))

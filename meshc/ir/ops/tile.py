"""Tile level: one guarded program per phase; buffers, kernels and explicit transfers.

Nothing crosses cores except a send and its recv on a channel. Both are asynchronous and return
tokens; ``wait`` joins them. ``when`` on any op limits it to the cores (and iterations) of a guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshc.ir.affine import Expr
from meshc.ir.core import Op, Operand, register
from meshc.ir.declared import attribute
from meshc.ir.fitting import Misfit, misfit, shape_text
from meshc.ir.kernels import KERNELS, Kernel
from meshc.ir.module import Module
from meshc.ir.ops.task import Family
from meshc.ir.views import Symbol
from meshc.support.diagnostics import fail

ParamValue = Expr | int | float | bool | str


@dataclass(eq=False)
class Compute(Op):
    """A microkernel on views of the core's own buffers; printed as ``tile.<kernel>``.

    ``way`` says in which of several ways a target writes the call, ``dsr`` which descriptor
    registers it takes, and they mean nothing else: passes for resources of the target set them
    (select-csl-products, assign-csl-registers).
    """

    kernel: str = ""
    params: dict[str, ParamValue] = field(default_factory=dict)
    way: str = ""
    dsr: int = 0

    @property
    def declared(self) -> Kernel:
        """The kernel's entry in the catalogue."""
        return KERNELS[self.kernel]

    def verify(self, extents: Mapping[str, int]) -> None:
        """The views fit the shapes and element types that the kernel declares. Raises
        ``kernel-views``, at the view that does not."""
        declared, views = self.declared.operands_of(self.params), self.views()
        shapes = tuple(view.shape() for view in views)
        found = misfit(declared, shapes, tuple(view.dtype_text for view in views))
        if found is None and self.declared.extra is not None:
            words = self.declared.extra(shapes, self.params)
            found = Misfit(0, words) if words else None
        if found is not None:
            pairs = zip(declared, views, shapes, strict=True)
            given = [f"{o.name} {view.dtype_text}{shape_text(s)}" for o, view, s in pairs]
            fail(
                "kernel-views",
                f"tile.{self.kernel}: {found.words}",
                views[found.place].span or self.span,
                notes=[f"the views are {', '.join(given)}"],
                help=f"its form is: {self.declared.form(self.params)}",
            )

    def attributes(self) -> dict[str, object]:
        found: dict[str, object] = {a.name: self.params[a.name] for a in self.declared.attributes}
        if self.way:
            found["way"] = self.way
        if self.dsr:
            found["dsr"] = self.dsr
        if self.when is not None:
            found["when"] = self.when
        return found


@dataclass(eq=False)
class _Transfer(Op):
    """One end of a transfer: operands are the channel and a view of the buffer."""

    @property
    def channel(self) -> str:
        """Name of the channel."""
        return _symbol(self.operands[0])


@register("tile.send", "channel, view -> token")
@dataclass(eq=False)
class Send(_Transfer):
    """Start sending a view; its elements must not change before the token is waited for."""


@register("tile.recv", "channel, view -> token")
@dataclass(eq=False)
class Recv(_Transfer):
    """Start receiving into a view; ``combine`` is ``store``, ``add`` or ``max``."""

    combine: str = attribute("store", among=("store", "add", "max"))


@register("tile.relay", "channel, onward, view -> token")
@dataclass(eq=False)
class Relay(Op):
    """Start passing a message on: each element that arrives is combined (``add`` or ``max``) with
    the view's and goes out on the second channel at once; the view is only read.

    It is a receive on the first channel and a send on the second, on the way between them. What
    goes out is rounded to the view's element type.
    """

    combine: str = attribute("add", among=("add", "max"))

    @property
    def channel(self) -> str:
        """Name of the channel that the message comes on."""
        return _symbol(self.operands[0])

    @property
    def onward(self) -> str:
        """Name of the channel that the message leaves on."""
        return _symbol(self.operands[1])


def _symbol(operand: Operand) -> str:
    assert isinstance(operand, Symbol)
    return operand.name


Transfer = Send | Recv | Relay


def scalars_of_rounds(module: Module) -> dict[str, int]:
    """The run-time scalars of ``module`` of which a run is given several, and how many: one for
    each round of the loops, or each request of the families of tasks, that name them as
    ``each``."""
    ops = [*module.walk()]
    found = {name: op.count.constant for op in ops if isinstance(op, For) for name in op.each}
    families = [op for op in ops if isinstance(op, Family) and op.sizes]
    return found | {name: family.sizes[0] for family in families for name in family.each}


def channel_in(op: Op) -> str | None:
    """The channel on which ``op`` receives, or None."""
    return op.channel if isinstance(op, (Recv, Relay)) else None


def channel_out(op: Op) -> str | None:
    """The channel on which ``op`` sends, or None."""
    if isinstance(op, Relay):
        return op.onward
    return op.channel if isinstance(op, Send) else None


@register("tile.wait", "token+ -> ()")
@dataclass(eq=False)
class Wait(Op):
    """Go on when every transfer named by a token, where it was started, has ended."""


@register("tile.for", "() -> () {body}")
@dataclass(eq=False)
class For(Op):
    """The body for ``var`` = 0 .. ``count`` - 1, the same count on every core.

    ``each`` names run-time scalars of which a run is given one for every round, such as one
    position for each request of a batch: in round i they are the i-th ones. Outside of such loops
    they have no value.
    """

    var: str = ""
    count: Expr = field(default_factory=lambda: Expr.const(0))
    each: tuple[str, ...] = ()


@register("tile.sweep", "() -> () {body}")
@dataclass(eq=False)
class Sweep(Op):
    """The body once on every core; messages only go from ``rank`` r to rank r + 1 of 0 .. count-1.

    A core just runs the body. An executor that advances many cores at once runs it rank by rank.
    """

    rank: Expr = field(default_factory=lambda: Expr.const(0))
    count: int = attribute(1, least=1)

"""What a message carries: the view of its transfer, or a little more where no DSD walks through it.

A DSD of several dims has constant extents, so a part of rows *and* columns that are known only when
the program runs is no operand of a transfer. Its columns are then sent whole: what lies behind the
last of them is never read by anybody, which is proved here from the program's text, and both ends
of the channel agree on how many elements that makes.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.analysis.csl.windows import Window, window
from meshc.ir.affine import Expr
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute, Recv, Relay, Send, Transfer, channel_in, channel_out
from meshc.ir.views import Range, View, Whole
from meshc.support.diagnostics import fail


class Messages:
    """The windows of a program's transfers. Raises ``csl-extent`` for those that have none."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._views: dict[int, View] = {}
        widened: dict[str, Transfer] = {}
        for op in module.walk():
            if isinstance(op, (Send, Recv, Relay)):
                (given,) = op.views()
                self._views[id(op)] = self._sent(op, given)
                if self._views[id(op)] is not given:
                    widened |= dict.fromkeys(_channels(op), op)
        for name, op in widened.items():
            self._check_ends(name, op)

    def window(self, op: Transfer) -> Window:
        """The elements that a transfer reads, writes or combines with."""
        return window(self._views[id(op)], op.span)

    def _sent(self, op: Transfer, view: View) -> View:
        """``view`` with as many of its last dims whole as a DSD asks for."""
        found = view
        for place in reversed(range(len(view.indices))):
            if window(found, op.span).walked:
                return found
            index = view.indices[place]
            if isinstance(index, Range) and not index.extent.is_const:
                self._check_unread(op, view, place, index)
                indices = (*found.indices[:place], Whole(), *found.indices[place + 1 :])
                found = replace(found, indices=indices)
        if not window(found, op.span).walked:
            _refuse(op, f"no descriptor walks through {view}")
        return found

    def _check_unread(self, op: Transfer, view: View, place: int, index: Range) -> None:
        """Nobody reads what lies behind ``index`` in dim ``place`` of the buffer of ``view``."""
        if view.reshape or view.order or index.start != Expr.const(0) or index.step != 1:
            _refuse(op, f"{view} is not the beginning of a dim")
        buffer = view.buffer
        outside = {port.buffer for port in self._module.ports}
        outside |= {each.value for each in self._module.buffers if each.role}
        if buffer in outside:
            _refuse(op, f"what lies behind {view} is seen by the host")
        for other in self._module.walk():
            for number, used in enumerate(other.views()):
                if used.buffer != buffer or _writes(other, number):
                    continue
                if place >= len(used.indices) or used.indices[place] != index:
                    _refuse(op, f"what lies behind {view} may be read by '{used}'")

    def _check_ends(self, name: str, op: Transfer) -> None:
        """The ends of a channel carry as many elements, message by message."""
        sent: list[Expr] = []
        got: list[Expr] = []
        for each in self._module.walk():
            if isinstance(each, (Send, Recv, Relay)):
                size = self.window(each).count
                sent += [size] if channel_out(each) == name else []
                got += [size] if channel_in(each) == name else []
        if sent != got:
            _refuse(op, f"the ends of channel @{name} differ in what they carry")


def in_pairs(message: Window) -> bool:
    """Whether the elements of a message travel two to a wavelet: an even number of f16."""
    return message.dtype.bytes == 2 and message.count % 2 == Expr.const(0)


def _channels(op: Transfer) -> list[str]:
    return [name for name in (channel_in(op), channel_out(op)) if name is not None]


def _writes(op: Op, number: int) -> bool:
    """Whether ``op`` writes its view ``number`` without reading it."""
    if isinstance(op, Compute):
        return op.declared.operands_of(op.params)[number].role == "out" and not op.params.get(
            "accumulate"
        )
    return isinstance(op, Recv) and op.combine == "store"


def _refuse(op: Transfer, problem: str) -> None:
    fail(
        "csl-extent",
        f"a message of channel @{op.channel} has several extents that are known only when the "
        f"program runs: {problem}",
        op.span,
    )

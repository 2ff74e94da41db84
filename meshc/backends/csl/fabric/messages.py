"""What a message carries: the view of its transfer, or a little more where no DSD walks through it.

A DSD of several dims has constant extents, so a part of rows *and* columns that are known only when
the program runs is no operand of a transfer. Its columns are then sent whole: what lies behind the
last of them is never read by anybody, which is proved here from the program's text, and both ends
of the channel agree on how many elements that makes.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.analysis.csl.strided_windows import Window, window
from meshc.analysis.csl.unread import reader_behind
from meshc.ir.affine import Expr
from meshc.ir.module import Module
from meshc.ir.ops.tile import Recv, Relay, Send, Transfer, channel_in, channel_out
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
                self._check_unread(op, view, place)
                indices = (*found.indices[:place], Whole(), *found.indices[place + 1 :])
                found = replace(found, indices=indices)
        if not window(found, op.span).walked:
            _refuse(op, f"no descriptor walks through {view}")
        return found

    def _check_unread(self, op: Transfer, view: View, place: int) -> None:
        """Nobody reads what lies behind ``view`` in dim ``place`` of its buffer."""
        if view.order:
            _refuse(op, f"{view} is not the beginning of a dim")
        if words := reader_behind(self._module, view, place):
            _refuse(op, words)

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


def _refuse(op: Transfer, problem: str) -> None:
    fail(
        "csl-extent",
        f"a message of channel @{op.channel} has several extents that are known only when the "
        f"program runs: {problem}",
        op.span,
    )

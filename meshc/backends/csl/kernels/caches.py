"""Kernels of KV caches: ring buffers in a core's memory, and the mask of their empty slots.

A ring buffer has ``capacity`` slots and a state, the words (head, count): its entries lie in the
slots head, head + 1, .. modulo the capacity. The newest entry is written behind them and counts
from ``ring_grow`` on, so that several rings can share a state.
"""

from __future__ import annotations

from meshc.analysis.csl.across import lane_of
from meshc.analysis.csl.strided_windows import Window, own
from meshc.analysis.csl.ways import ACROSS
from meshc.backends.csl.kernels.shared_code import SharedCode, Writer, literal, repeat
from meshc.backends.csl.spelling.expressions import expression
from meshc.backends.csl.spelling.memory_dsds import builtin, moved, resized
from meshc.backends.csl.tree import syntax_tree as csl
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.support.diagnostics import fail


class Caches:
    """Writers of kernels on ring buffers, with the functions of ``code``."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code
        self.writers: dict[str, Writer] = {
            "ring_set": self._ring_set,
            "ring_push": self._ring_push,
            "ring_grow": self._ring_grow,
            "ring_oldest": self._ring_oldest,
            "ring_drop": self._ring_drop,
            "mask_slots": self._mask_slots,
        }

    # --- states

    def _ring_set(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        head, count = _words(self.code, op, windows[0])
        given = op.params["count"]
        assert isinstance(given, Expr)
        return [
            csl.assign(head, 0),
            csl.assign(count, expression(given, self.code.descriptors.spell)),
        ]

    def _ring_grow(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        _, count = _words(self.code, op, windows[0])
        return [csl.assign(count, 1, "+=")]

    def _ring_drop(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        head, count = _words(self.code, op, windows[0])
        given = op.params["capacity"]
        assert isinstance(given, int)
        next_head = (head + 1) % self._slots(windows[0], given)
        return [csl.assign(head, next_head), csl.assign(count, 1, "-=")]

    # --- entries

    def _ring_push(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        ring, entry, state = windows
        free = self._free(op, state, ring.dims[-2].extent)
        return [
            csl.scope([csl.const("slot", free), self.code.move(_slot(ring, own("slot")), entry)])
        ]

    def _ring_oldest(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        to, ring, state = windows
        head, _ = _words(self.code, op, state)
        moved = self.code.move(to, _slot(ring, own("slot")))
        return [csl.scope([csl.const("slot", csl.cast("i16", head)), moved])]

    # --- masks

    def _mask_slots(self, op: Compute, windows: list[Window]) -> list[csl.Statement]:
        """The empty slots follow the last entry, and go on from slot 0 where the last slot is
        among them. A half of the slots counts, and none from slot 0 on."""
        scores, state = windows
        *lead, slots = scores.dims
        half = slots.extent // 2
        if slots.stride != 1 and slots.extent > 1:
            fail("csl-view", f"slots of %{scores.buffer.name} do not follow each other", op.span)
        _, count = _words(self.code, op, state)
        capacity = csl.Name(self._slots(state, slots.extent))
        first, empty, behind, more = map(csl.Name, ("first", "empty", "behind", "more"))
        begin = [
            csl.const("first", self._free(op, state, slots.extent)),
            csl.const("empty", capacity - csl.cast("i16", count)),
        ]

        def lowest(to: csl.Expression) -> csl.Statement:
            return csl.do(builtin("fmov", scores.dtype), to, literal(float("-inf"), scores.dtype))

        if op.way == ACROSS:
            slot = lane_of(scores).moved(own("slot") * slots.stride)
            at = first + "i"
            body = [
                csl.const("slot", csl.either(csl.infix(at, "<", capacity), at, at - capacity)),
                lowest(self.code.descriptors.memory(slot)),
            ]
            return [csl.scope([*begin, csl.loop("i", "empty", body, half)])]
        rest = moved(csl.Name("row"), "first", scores.dtype)
        rows: list[csl.Statement] = [
            csl.const("row", self._row(scores, len(lead))),
            csl.when(
                csl.infix(behind, ">", 0), [lowest(resized(rest, "behind", half))], short=True
            ),
            csl.when(
                csl.infix(more, ">", 0),
                [lowest(resized(csl.Name("row"), "more", half))],
                short=True,
                share=0,
            ),
        ]
        for place in reversed(range(len(lead))):
            rows = repeat(_variable(place), lead[place].extent, rows)
        last = capacity - first
        fewer = csl.either(csl.infix(empty, "<", last), empty, last)
        return [
            csl.scope(
                [*begin, csl.const("behind", fewer), csl.const("more", empty - behind), *rows]
            )
        ]

    def _free(self, op: Compute, state: Window, capacity: int) -> csl.Expression:
        """The first slot behind the entries."""
        head, count = _words(self.code, op, state)
        return csl.cast("i16", (head + count) % self._slots(state, capacity))

    def _slots(self, state: Window, capacity: int) -> str:
        """The constant that says how many slots the rings of a state have."""
        return self.code.descriptors.number(state.buffer.name, "slots", capacity)

    def _row(self, scores: Window, heads: int) -> csl.Expression:
        """The descriptor of one row of ``scores``, in loops over the leading dims."""
        row = scores
        for place, dim in enumerate(scores.dims[:heads]):
            if dim.extent > 1:
                row = row.moved(own(_variable(place)) * dim.stride)
        return self.code.descriptors.memory(row.inner(scores.dims[heads:]))


def _variable(place: int) -> str:
    return "ijkl"[place]


def _slot(ring: Window, at: Expr) -> Window:
    """Slot ``at`` of every ring of ``ring`` [.., capacity, lanes]."""
    *lead, slots, lanes = ring.dims
    return ring.moved(at * slots.stride).inner([*lead, lanes])


def _words(code: SharedCode, op: Compute, state: Window) -> tuple[csl.Element, csl.Element]:
    """Head and count as elements of an array. Raises ``csl-dtype`` for a state that is not i32."""
    if state.dtype != DType.I32:
        fail("csl-dtype", f"the state of a ring of '{op.kernel}' is of type {state.dtype}", op.span)
    name = code.names.of("buffer", state.buffer.name)
    spell = code.descriptors.spell
    first, second = (expression(state.start + n * state.dims[0].stride, spell) for n in (0, 1))
    return csl.Element(name, first), csl.Element(name, second)

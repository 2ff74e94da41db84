"""The causal mask of scores: keys behind a row's query become minus infinity.

Keys that a query sees come first in its row, since their positions grow with their lanes. So a row
is one operation, on the lanes from the first key on that is not seen.
"""

from __future__ import annotations

from collections.abc import Callable

from meshc.analysis.csl.costs import SETUP, Costs
from meshc.analysis.csl.windows import Dim, Window, own
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, literal
from meshc.backends.csl.spelling.descriptors import builtin, element
from meshc.backends.csl.spelling.expressions import expression
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail

_ROW = 24
"""Cycles of the scalar code of a row, and of its first key that is not seen; like those of a row's
head, measured on the simulator."""
_HEAD = 20
"""Cycles of the loop around a head, and of its descriptor."""


class Masks:
    """Writers of masks by position, with the functions of ``code``."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code
        self.writers: dict[str, Callable[[Compute, list[Window]], list[str]]] = {
            "mask_causal": self._mask_causal
        }

    def cycles(self, windows: list[Window], costs: Costs) -> int:
        """Predicted cycles of a mask of which half of the keys are not seen."""
        *heads, rows, keys = windows[0].dims
        each = SETUP + costs.vector("add", windows[0].dtype, keys.extent // 2, (1,))
        return rows.extent * (_ROW + windows[0].inner(heads).size * (_HEAD + each))

    def _mask_causal(self, op: Compute, windows: list[Window]) -> list[str]:
        """Scores [.., rows, keys]; ``until`` is the position behind the last that a row sees."""
        (scores,) = windows
        *heads, rows, keys = scores.dims
        if keys.stride != 1 and keys.extent > 1:
            fail("csl-view", f"keys of %{scores.buffer.name} do not follow each other", op.span)
        query, key, limit = (_position(op, name) for name in ("query", "key", "limit"))
        each, apart = op.params["query_step"], op.params["key_step"]
        assert isinstance(each, int) and isinstance(apart, int)
        if apart < 1:
            fail("csl-kernel", f"'{op.kernel}' is emitted for a key_step of 1 or more", op.span)
        spell, kind = self.code.descriptors.spell, element(scores.dtype)
        lowest = literal(float("-inf"), scores.dtype)
        here = own("row") if rows.extent > 1 else Expr.const(0)
        row = scores.moved(here * rows.stride)
        for place, dim in enumerate(heads):
            row = row.moved(own(f"h{place}") * dim.stride if dim.extent > 1 else 0)
        start = self.code.descriptors.memory(row.inner([Dim(keys.extent, keys.stride)]))
        rest = f"@increment_dsd_offset({start}, seen, {kind})"
        masked = [
            f"{builtin('fmov', scores.dtype)}(@set_dsd_length({rest}, @as(u16, beyond)), {lowest});"
        ]
        for place, dim in reversed([*enumerate(heads)]):
            masked = self.code.over(f"h{place}", dim, masked)
        body = [
            f"const query = {expression(query + here * each + 1, spell)};",
            f"const limit = @as(i16, {expression(limit, spell)});",
            "const until = if (query < limit) query else limit;",
            f"const first = @as(i16, {expression(key, spell)});",
            f"const seen = if (until <= first) @as(i16, 0) else {_count(apart)};",
            f"const beyond = {expression(keys.steps, spell)} - seen;",
            "if (beyond > 0) {",
            *(PAD + line for line in masked),
            "}",
        ]
        loop = self.code.over("row", rows, body)
        return loop if loop is not body else ["{", *(PAD + line for line in body), "}"]


def _count(apart: int) -> str:
    """Keys at the positions ``first``, ``first + apart``, .. before ``until``."""
    return "until - first" if apart == 1 else f"(until - first + {apart - 1}) / {apart}"


def _position(op: Compute, name: str) -> Expr:
    found = op.params[name]
    assert isinstance(found, Expr)
    return found

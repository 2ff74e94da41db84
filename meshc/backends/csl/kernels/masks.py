"""Masks of scores by position: of keys behind a row's query, and of those before its window.

Positions of keys grow with their lanes. So the keys that a row sees follow each other, and a mask
is one operation on a row: on the lanes from the first key on that lies behind the query, or on all
lanes up to the last key that lies before the window.
"""

from __future__ import annotations

from collections.abc import Callable

from meshc.analysis.csl.costs import Costs, around_pass, walked
from meshc.analysis.csl.windows import Dim, Window, own
from meshc.backends.csl.kernels.shared_code import PAD, SharedCode, literal
from meshc.backends.csl.spelling.descriptors import builtin, element
from meshc.backends.csl.spelling.expressions import expression
from meshc.ir.affine import Expr
from meshc.ir.ops.tile import Compute
from meshc.support.diagnostics import fail

_ROW = {"mask_causal": 24, "mask_window": 14}
"""Cycles of the scalar code of a row, and of its first key that is not seen; like those of a row's
head, measured on the simulator."""
_HEAD, _HEAD_ALONE = 19, 10
"""Cycles of the loop around a head, and of its descriptor; where the loop is written out, as that
of the heads of a single row is, of the descriptor and its length."""
_OF_A_HEAD = 18
"""Operations of a head that make the loop longer to write out."""
_FARTHEST = 2**15 - 1
"""How far apart two positions are at most."""


class Masks:
    """Writers of masks by position, with the functions of ``code``."""

    def __init__(self, code: SharedCode) -> None:
        self.code = code
        self.writers: dict[str, Callable[[Compute, list[Window]], list[str]]] = {
            "mask_causal": self._mask_causal,
            "mask_window": self._mask_window,
        }

    def cycles(self, op: Compute, windows: list[Window], costs: Costs) -> int:
        """Predicted cycles of a mask."""
        *heads, rows, _ = windows[0].dims
        masked, hidden = _hidden(op, windows[0])
        each = walked(1, 1) + costs.vector("add", windows[0].dtype, hidden, (1,))
        count = windows[0].inner(heads).size
        alone = rows.extent == 1 and not around_pass(count, _OF_A_HEAD)
        inside = masked * count * ((_HEAD_ALONE if alone else _HEAD) + each)
        return rows.extent * _ROW[op.kernel] + inside

    def _mask_causal(self, op: Compute, windows: list[Window]) -> list[str]:
        """Scores [.., rows, keys]; ``until`` is the position behind the last that a row sees."""
        row, keys = self._row(op, windows[0])
        rest = f"@increment_dsd_offset({row}, seen, {element(windows[0].dtype)})"
        count = self._count(op, own("until") - own("first"))
        lines = [
            f"const seen = if (until <= first) @as(i16, 0) else {count};",
            f"const beyond = {keys} - seen;",
            "if (beyond > 0) {",
            *self._lowest(windows[0], f"@set_dsd_length({rest}, @as(u16, beyond))"),
            "}",
        ]
        return self._rows(op, windows[0], lines)

    def _mask_window(self, op: Compute, windows: list[Window]) -> list[str]:
        """The same; ``reach`` counts the positions from the first key to the query."""
        row, keys = self._row(op, windows[0])
        window = _window(op)
        lines = [
            "const reach = until - first;",
            f"if (reach > {window}) {{",
            f"{PAD}const passed = {self._count(op, own('reach') - window)};",
            f"{PAD}const hidden = if (passed < {keys}) passed else {keys};",
            *self._lowest(windows[0], f"@set_dsd_length({row}, @as(u16, hidden))"),
            "}",
        ]
        return self._rows(op, windows[0], lines)

    def _rows(self, op: Compute, scores: Window, lines: list[str]) -> list[str]:
        """``lines`` for each row, where ``first`` is the position of its first key."""
        spell, rows = self.code.descriptors.spell, scores.dims[-2]
        query, key, limit = (_position(op, name) for name in ("query", "key", "limit"))
        each = op.params["query_step"]
        assert isinstance(each, int)
        body = [
            f"const query = {expression(query + _index('row', rows) * each + 1, spell)};",
            f"const limit = @as(i16, {expression(limit, spell)});",
            "const until = if (query < limit) query else limit;",
            f"const first = @as(i16, {expression(key, spell)});",
            *lines,
        ]
        loop = self.code.over("row", rows, body)
        return loop if loop is not body else ["{", *(PAD + line for line in body), "}"]

    def _row(self, op: Compute, scores: Window) -> tuple[str, str]:
        """The descriptor of the keys of a row of a head, and how many these are."""
        *heads, rows, keys = scores.dims
        if keys.stride != 1 and keys.extent > 1:
            fail("csl-view", f"keys of %{scores.buffer.name} do not follow each other", op.span)
        row = scores.moved(_index("row", rows) * rows.stride)
        for place, dim in enumerate(heads):
            row = row.moved(_index(f"h{place}", dim) * dim.stride)
        descriptor = self.code.descriptors.memory(row.inner([Dim(keys.extent, keys.stride)]))
        return descriptor, expression(keys.steps, self.code.descriptors.spell)

    def _count(self, op: Compute, positions: Expr) -> str:
        """Keys at the first of so many positions, and at steps from there."""
        apart, spell = _apart(op), self.code.descriptors.spell
        text = expression(positions + (apart - 1), spell)
        return text if apart == 1 else f"({text}) / {apart}"

    def _lowest(self, scores: Window, lanes: str) -> list[str]:
        """Minus infinity in ``lanes`` of each head, as statements of a block."""
        number = literal(float("-inf"), scores.dtype)
        lines = [f"{builtin('fmov', scores.dtype)}({lanes}, {number});"]
        for place, dim in reversed([*enumerate(scores.dims[:-2])]):
            lines = self.code.over(f"h{place}", dim, lines)
        return [PAD + line for line in lines]


def _index(variable: str, dim: Dim) -> Expr:
    """The variable of a loop over ``dim``."""
    return own(variable) if dim.extent > 1 else Expr.const(0)


def _hidden(op: Compute, scores: Window) -> tuple[int, int]:
    """In how many rows a mask hides keys, and how many in each. Queries of several rows lie
    anywhere among the keys, a single one behind them."""
    rows, keys = (dim.extent for dim in scores.dims[-2:])
    if op.kernel == "mask_causal":
        return rows, keys // 2
    passed = max(0, keys - _window(op) // _apart(op))
    if rows == 1:
        return min(passed, 1), passed
    return rows * passed // keys, passed // 2


def _apart(op: Compute) -> int:
    """How far the position of a key lies behind that of the one before."""
    apart = op.params["key_step"]
    assert isinstance(apart, int)
    if apart < 1:
        fail("csl-kernel", f"'{op.kernel}' is emitted for a key_step of 1 or more", op.span)
    return apart


def _window(op: Compute) -> int:
    """The window of a mask; a wider one hides no more than one that positions do not exceed."""
    window = op.params["window"]
    assert isinstance(window, int)
    return min(window, _FARTHEST)


def _position(op: Compute, name: str) -> Expr:
    found = op.params[name]
    assert isinstance(found, Expr)
    return found
